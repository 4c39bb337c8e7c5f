"""When a compile has paid for itself: from the run's own seconds and the bench's measured ratio."""

import subprocess
import sys
from pathlib import Path

from backend.bench.record import Record
from backend.bench.variants import Spec
from backend.compile.payback import measured_speedup, steps_to_pay


def test_steps_to_pay() -> None:
    # 30 s of compiling; 0.1 s a step in place of 0.15 s: 0.05 s saved a step.
    assert steps_to_pay(30, 0.1, 1.5) == 600
    assert steps_to_pay(30, 0.1, 1.0) is None and steps_to_pay(30, 0.1, 0.9) is None
    assert steps_to_pay(0, 0.1, 1.5) == 0


def test_speedup_is_read_from_the_record(tmp_path: Path) -> None:
    record = Record.open(tmp_path, "compile", [], "abc")
    for name, seconds in (("eager", 0.21), ("static:sdpa", 0.14)):
        record.add(Spec(name), 0, {"ok": True, "process_s": 1.0, "row": {"s_per_step": seconds}})
    assert abs(measured_speedup(True, tmp_path) - 1.5) < 1e-9
    assert measured_speedup(False, tmp_path) is None and measured_speedup(True, tmp_path / "none") is None


def test_payback_is_torch_free() -> None:
    code = "import sys, backend.compile.payback; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
