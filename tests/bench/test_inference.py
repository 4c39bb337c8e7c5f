"""The inference bench: its scenes on a tiny model, the record that it continues, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench.inference import __main__ as inference
from backend.bench.inference import worker
from backend.bench.inference.scenes import SCENES
from backend.bench.inference.table import FILE, add_row, bars, failures, read_rows, table
from backend.config.packages import load_problem

SMALL = ["--width", "64", "--height", "64", "--steps", "2", "--pictures", "2", "--commit", "abc"]
SMALL += ["--setting", "compile.compile_backend=eager", "--setting", "model.text_length=16"]


def test_scenes_are_measured_on_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    run, jobs = inference._run, []

    def here(job: dict[str, Any], longest_s: float) -> dict[str, Any]:
        """The first in a process of its own, the others in this one."""
        jobs.append(job)
        if len(jobs) == 1:
            return run(job, longest_s)
        torch._dynamo.reset()
        try:
            return {"ok": True, "row": worker.measure(job), "process_s": 0.0}
        except Exception as error:  # noqa: BLE001
            return {"ok": False, "error": str(error), "process_s": 0.0}

    monkeypatch.setattr(inference, "_run", here)
    line = ["--inference", "tiny-flux", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out"), *SMALL]
    scenes = ["--scenes", "whole,nf4-offload,swaps", "--starts", "eager,cold"]
    assert bench.main([*line, *scenes], lines.append) == 0, lines
    rows = {(row["scene"], row["start"]): row for row in read_rows(tmp_path / "out" / "tiny-flux")}
    order = [("swaps", "cold"), ("whole", "cold"), ("nf4-offload", "cold"), ("nf4-offload", "eager")]
    assert list(rows) == order
    nf4 = load_problem("bitsandbytes")
    for (name, start), row in rows.items():
        if nf4 and "nf4" in name:
            assert row["ok"] == "0" and "bitsandbytes" in row["error"]
            continue
        assert row["ok"] == "1", row["error"]
        assert float(row["latency_s"]) > 0 and float(row["peak_gb"]) > 0 and float(row["estimated_gb"]) > 0
        assert row["compiled"] == ("off" if start == "eager" else "compiled"), (name, start)
        assert row["recompiles"] == "0" and row["breaks"] == "0" and row["commit"] == "abc"
    assert rows["whole", "cold"]["graphs"] == "1"
    swaps = rows["swaps", "cold"]
    assert swaps["same"] == "1" and float(swaps["swap_s"]) > 0 and rows["whole", "cold"]["swap_s"] == ""
    assert "LoRAs in turn: 0 recompiles" in lines[-1]
    assert nf4 or rows["nf4-offload", "cold"]["graphs"] == "2"
    assert "| Compiled as a whole |" in lines[-1] and FILE in lines[-1]
    # the settings of every scene are some that a preview can have
    for name, scene in SCENES.items():
        cfg = worker.settings_of({**jobs[0], "settings": scene.settings("warm")})
        assert cfg.compile.compile and cfg.memory.blocks_to_swap == (4 if "offload" in name else 0)
    # what is recorded is not measured again
    count = len(jobs)
    again = ["--scenes", "whole", "--starts", "cold"]
    assert bench.main([*line, *again], lines.append) == 0 and len(jobs) == count
    # nor is anything begun without time
    late = ["--scenes", "regional", "--budget-s", "1"]
    assert bench.main([*line, *late], lines.append) == 1 and len(jobs) == count
    assert "no time left for regional eager, regional cold, regional warm" in "".join(lines)
    # but for pictures of another size, whose rows are no part of this table
    read = inference._parser().parse_args(["--size", "tiny-flux", *line[2:], "--height", "128"])
    assert inference._missing(read, ["whole"], ["cold"], tmp_path / "out" / "tiny-flux") == [("whole", "cold")]
    assert not inference._comparable(read, tmp_path / "out" / "tiny-flux")


def test_what_makes_no_sense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--work", str(tmp_path / "work")]
    assert inference.main(["--size", "tiny-flux", "--scenes", "x", *line]) == inference.WRONG_INPUT
    assert "--scenes names x; there are regional" in capsys.readouterr().err
    assert inference.main(["--size", "tiny-flux", "--starts", "eager,warm", *line]) == inference.WRONG_INPUT
    assert "write --starts cold,warm" in capsys.readouterr().err


def test_the_table_compares_compiled_with_eager(tmp_path: Path) -> None:
    def add(scene: str, start: str, **more: object) -> None:
        add_row(tmp_path, {"scene": scene, "start": start, "ok": True, **more})

    add("regional", "eager", latency_s=6.0, peak_gb=33.0, first_s=20.0)
    add("regional", "cold", latency_s=4.1, peak_gb=33.5, first_s=40.0, compile_s=9.0)
    add("regional", "warm", latency_s=4.0, peak_gb=33.5, first_s=30.0)
    add("whole", "cold", latency_s=3.0, peak_gb=34.0, first_s=99.0, compile_s=60.0)
    add("sdpa", "eager", latency_s=6.8, peak_gb=33.0, first_s=20.0)
    add_row(tmp_path, {"scene": "nf4", "start": "eager", "ok": False, "error": "no room"})
    rows = read_rows(tmp_path)
    lines = table(rows).splitlines()[2:]
    assert lines == [
        "| Compiled block by block | 6.00 s | 4.00 s | 1.50x | 33.5 GB | 40.0 s | 30.0 s | 9.0 s |",
        "| Block by block, torch's own attention | 6.80 s | - | - | 33.0 GB | - | - | - |",
        "| Compiled as a whole | 6.00 s | 3.00 s | 2.00x | 34.0 GB | 99.0 s | - | 60.0 s |",
        "| NF4 | - | - | - | - | - | - | - |",
    ]
    assert failures(rows) == ["nf4, eager: no room"]
    assert bars(rows)[:3] == [
        "compiled / eager: 1.50 times as fast (bar: 1.5)",
        "compiled / eager with torch's own attention: 1.70 times as fast (bar: 1.5)",
        "whole model / block by block: 6.7 times the compile time (bar: 6)",
    ]


def test_a_row_that_had_no_end_counts_where_no_more_time_is_given(tmp_path: Path) -> None:
    line = ["--size", "tiny-flux", "--work", str(tmp_path), "--longest-s"]
    # the rows of before have no column of frames
    like = inference._likeness(inference._parser().parse_args([*line, "1"]))
    add_row(tmp_path, {"scene": "whole", "start": "cold", "error": "no end within 90 s", "process_s": 90.0, **like})
    for seconds, missing in (("90", []), ("91", [("whole", "cold")])):
        read = inference._parser().parse_args([*line, seconds])
        assert inference._missing(read, ["whole"], ["cold"], tmp_path) == missing
    add_row(tmp_path, {"scene": "regional", "start": "cold", "ok": True, "process_s": 40.0, "compile_s": 10.0})
    assert "not compiled by 6.0 times" in bars(read_rows(tmp_path))[0]
