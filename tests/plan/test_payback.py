"""When a compile has paid for itself: from the run's own seconds and the bench's measured ratio."""

import subprocess
import sys
from pathlib import Path

from backend.bench.record import Record
from backend.bench.variants import Spec
from backend.config.load import parse
from backend.config.schema import Config
from backend.plan.payback import measured_speedup, payback, steps_to_pay
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter


def test_steps_to_pay() -> None:
    # 30 s of compiling; 0.1 s a step in place of 0.15 s: 0.05 s saved a step.
    assert steps_to_pay(30, 0.1, 1.5) == 600
    assert steps_to_pay(30, 0.1, 1.0) is None and steps_to_pay(30, 0.1, 0.9) is None
    assert steps_to_pay(0, 0.1, 1.5) == 0


def test_speedup_is_read_from_the_record(tmp_path: Path) -> None:
    record = Record.open(tmp_path, "compile", [], "abc")
    for name, seconds in (("eager", 0.21), ("static:sdpa", 0.14)):
        record.add(Spec(name), 0, {"ok": True, "process_s": 1.0, "row": {"s_per_step": seconds}})
    assert abs(measured_speedup("block", tmp_path) - 1.5) < 1e-9
    assert measured_speedup("off", tmp_path) is None and measured_speedup("block", tmp_path / "none") is None
    assert measured_speedup("graph", tmp_path) is None, "measured with another kind of checkpointing"


def test_payback_is_torch_free() -> None:
    code = "import sys, backend.plan.payback; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def settings(root: Path, compile: bool, rank: int = 16) -> Config:
    config = parse(
        {"compile": {"compile": compile}, "network": {"network_dim": rank}, "saving": {"output_dir": str(root)}}
    ).config
    assert config is not None
    return config


def trained(config: Config, s_per_step: float, compile_seconds: float, steps: int = 20, **more: float) -> Run:
    run = Run.create(config)
    with MetricsWriter(run) as metrics:
        more = {"graphs": 2 if compile_seconds else 0} | more
        metrics.add(1, loss=1.0, compile_seconds=compile_seconds)
        for step in range(2, steps + 1):
            metrics.add(step, loss=1.0, s_per_step=s_per_step, compile_seconds=compile_seconds, **more)
    return run


def test_payback_comes_from_runs_of_the_same_work(tmp_path: Path) -> None:
    config, none = settings(tmp_path, True), tmp_path / "none"
    assert "not known yet" in payback(config, tmp_path, bench=none).sentence()
    trained(config, 0.125, 30.0)
    warm = trained(config, 0.125, 2.0)
    trained(settings(tmp_path, False, rank=4), 9.0, 0.0)
    known = payback(config, tmp_path, bench=none)
    assert known.steps is None and "is not known: train these settings once" in known.sentence()
    trained(settings(tmp_path, False), 0.1875, 0.0)
    # The second start read its cache in 2 s; what the compile costs is the first one's 30 s.
    for known in (payback(config, tmp_path, bench=none), payback(config, tmp_path, warm, bench=none)):
        assert known.steps == 480 and "30 s) pays off after 480 steps" in known.sentence()


def test_an_eager_run_that_records_its_passes_is_an_eager_run(tmp_path: Path) -> None:
    """Recording counts with the seconds of compiling."""
    config = settings(tmp_path, True)
    trained(config, 0.125, 30.0)
    trained(settings(tmp_path, False), 0.1875, 2.5, graphs=0)
    assert "after 480 steps" in payback(config, tmp_path, bench=tmp_path / "none").sentence()


def test_a_run_whose_blocks_all_failed_to_compile_tells_nothing_of_compiled_steps(tmp_path: Path) -> None:
    """It spent its seconds on attempts, and trained eagerly."""
    config, none = settings(tmp_path, True), tmp_path / "none"
    fell_back = trained(config, 0.5, 40.0, graphs=0)
    trained(settings(tmp_path, False), 0.1875, 0.0)
    for known in (payback(config, tmp_path, bench=none), payback(config, tmp_path, fell_back, none)):
        assert "no compiled run of these settings has been timed" in known.sentence()
    trained(config, 0.125, 30.0)
    assert payback(config, tmp_path, bench=none).steps == 480


def test_without_an_eager_run_the_bench_lends_its_ratio(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "bench", "compile", [], "abc")
    for name, kind, seconds in (
        ("eager", "", 0.1875),
        ("static:sdpa", "", 0.15),
        ("static:sdpa", "auto", 0.125),
        ("static:sdpa", "selective", 0.12),
    ):
        row = {"s_per_step": seconds}
        record.add(Spec(name, checkpointing_kind=kind), 0, {"ok": True, "process_s": 1.0, "row": row})
    on_cpu = trained(settings(tmp_path / "cpu", True), 0.125, 30.0)
    known = payback(settings(tmp_path / "cpu", True), tmp_path / "cpu", on_cpu, tmp_path / "bench")
    assert known.steps is None, "the bench's ratio is a card's"
    run = trained(settings(tmp_path / "runs", True), 0.125, 30.0, vram_total=8e10)
    known = payback(settings(tmp_path / "runs", True), tmp_path / "runs", run, tmp_path / "bench")
    assert known.steps == 480 and "ratio in the benchmarks" in known.sentence()


def test_a_compile_that_saves_nothing_is_said_to(tmp_path: Path) -> None:
    run = trained(settings(tmp_path, True), 0.125, 30.0)
    with MetricsWriter(run, generation=1, start_step=20) as metrics:
        metrics.add(21, loss=1.0, s_per_step=0.125, compile_seconds=2.0, graphs=2)
    # A resumed process has read its cache in 2 s; the run has compiled for 30.
    assert "Compiling took 30 s" in payback(settings(tmp_path, True), tmp_path, run).sentence()
    trained(settings(tmp_path, False), 0.125, 0.0)
    assert "saves no time" in payback(settings(tmp_path, True), tmp_path).sentence()
