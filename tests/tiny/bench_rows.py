"""Rows of a record as a worker would answer them, for tests of what is made of rows."""

from pathlib import Path

from backend.bench.record import Record
from backend.bench.variants import Spec


def answer(seconds: float, **more: float | str) -> dict:
    row = {"s_per_step": seconds, "compile_s": 30.0, "graphs": 2, "recompiles": 0, "breaks": 0, "loss": 1.5}
    return {"ok": True, "process_s": 5.0, "row": {**row, "losses": [2.0, 1.5], **more}}


def made_up(folder: Path) -> Path:
    record = Record.open(folder / "flux-compile", "compile", ["--size", "flux"], "abc")
    for repeat, (eager, static, compiling) in enumerate([(0.2, 0.11, 30.0), (0.21, 0.1, 5.0), (0.4, 0.1, 4.0)]):
        record.add(Spec("eager"), repeat, answer(eager))
        record.add(Spec("static:sdpa"), repeat, answer(static, compile_s=compiling))
    record.add(Spec("static:fa4"), 0, {"ok": False, "error": "ValueError: no package", "process_s": 3.0})
    return folder
