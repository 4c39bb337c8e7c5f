"""The bench: real measurements on a tiny model, failures as rows, and a page that its raw rows alone make."""

import csv
import json
from pathlib import Path

import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench import report
from backend.bench.record import COLUMNS, Record
from backend.bench.table import groups, render
from backend.bench.variants import VARIANTS, Spec
from backend.bench.work import buckets_of, build
from backend.lora.fused import is_fused
from backend.memory.activation_offload import Offload

TINY = [
    "--size",
    "tiny",
    "--repeats",
    "1",
    "--steps",
    "2",
    "--checkpointing",
    "on",
    "--backend",
    "eager",
    "--commit",
    "abc",
]


@pytest.mark.slow
def test_tiny_bench_measures_records_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager and static on the same stream: equal losses, 2 planned graphs, 0 recompiles over 9 buckets, no break."""
    monkeypatch.setenv("MONOTILE_BENCH_CACHE", str(tmp_path / "c"))
    said: list[str] = []
    command = [*TINY, "--variants", "eager,static:sdpa,static:varlen", "--out", str(tmp_path)]
    assert bench.main(command, said.append) == 0
    with (tmp_path / "tiny-compile" / "results.csv").open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    eager, static, refused = rows["eager"], rows["static:sdpa"], rows["static:varlen"]
    assert eager["ok"] == static["ok"] == "1" and float(static["loss"]) == pytest.approx(float(eager["loss"]), rel=1e-4)
    assert (static["graphs"], static["recompiles"], static["breaks"], eager["graphs"]) == ("2", "0", "0", "0")
    assert static["buckets"] == "9" and float(static["compile_s"]) > 0 and eager["compile_s"] == "0"
    assert refused["ok"] == "0" and "varlen attention needs an NVIDIA GPU" in refused["error"]
    with (tmp_path / "tiny-compile" / "losses.csv").open() as file:
        assert sum(row["variant"] == "eager" for row in csv.DictReader(file)) == 11
    meta = json.loads((tmp_path / "tiny-compile" / "meta.json").read_text())
    assert meta["commit"] == "abc" and meta["device"] == "cpu" and "--size tiny" in meta["commands"][0]

    monkeypatch.setattr(bench, "run_worker", lambda spec, timeout: pytest.fail("measured again"))
    monkeypatch.setattr(bench._Clock, "fits", lambda self, spec: spec.variant != "static:varlen")
    assert bench.main(command, said.append) == 0
    assert "no time left for static:varlen" in "".join(said)


def answer(seconds: float, **more: float) -> dict:
    row = {"s_per_step": seconds, "compile_s": 30.0, "graphs": 2, "recompiles": 0, "breaks": 0, "loss": 1.5}
    return {"ok": True, "process_s": 5.0, "row": {**row, "losses": [2.0, 1.5], **more}}


def made_up(folder: Path) -> Path:
    record = Record.open(folder / "flux-compile", "compile", ["--size", "flux"], "abc")
    for repeat, (eager, static, compiling) in enumerate([(0.2, 0.11, 30.0), (0.21, 0.1, 5.0), (0.4, 0.1, 4.0)]):
        record.add(Spec("eager"), repeat, answer(eager))
        record.add(Spec("static:sdpa"), repeat, answer(static, compile_s=compiling))
    record.add(Spec("static:fa4"), 0, {"ok": False, "error": "ValueError: no package", "process_s": 3.0})
    return folder


def test_table_is_medians_with_cold_and_warm_apart(tmp_path: Path) -> None:
    rows = Record.open(made_up(tmp_path) / "flux-compile", "compile", []).rows
    lines = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in render(rows, "compile").splitlines()}
    assert lines["eager"][2:4] == ["210.0", "1.00"]
    assert lines["static:sdpa"][2:6] == ["100.0", "2.10", "30.0", "4.5"]
    assert "no package" in lines["static:fa4"][2]
    assert [group.variant for group in groups(rows)] == ["eager", "static:sdpa", "static:fa4"]


def test_page_and_plot_come_from_the_rows_alone(tmp_path: Path) -> None:
    made_up(tmp_path / "benchmarks")
    (tmp_path / "benchmarks" / "notes.md").write_text("What paid.\n")
    said: list[str] = []
    assert report.main([], said.append, tmp_path) == 0 and len(said) == 2
    page = (tmp_path / "benchmarks.md").read_text()
    assert "What paid." in page and "python -m backend.bench --size flux" in page and "commit abc" in page
    assert "210.0 ms" in (tmp_path / "benchmarks" / "steps.svg").read_text()
    assert report.main(["--check"], said.append, tmp_path) == 0
    record = Record.open(tmp_path / "benchmarks" / "flux-compile", "compile", [])
    record.add(Spec("dynamic"), 0, answer(0.15))
    assert report.main(["--check"], said.append, tmp_path) == 1 and "is not what the records give" in said[-1]


def test_committed_page_is_what_the_committed_rows_give() -> None:
    said: list[str] = []
    assert report.main(["--check"], said.append) == 0, "".join(said) + "run: python -m backend.bench.report"


def test_record_of_another_kind_is_not_mixed_in(tmp_path: Path) -> None:
    made_up(tmp_path)
    with pytest.raises(ValueError, match="holds a record of kind compile, not exactness"):
        Record.open(tmp_path / "flux-compile", "exactness", [])


def test_buckets_are_the_seeds_seventeen() -> None:
    from backend.bench.variants import SIZES

    table = buckets_of(SIZES["flux"], exact=False)
    assert len(table) == 17 and {(1024, 1024), (960, 1088), (1088, 960), (2048, 512)} <= set(table)
    tokens = [width * height // 256 for width, height in table]
    assert max(tokens) == 4096 and min(tokens) > 4096 * 0.984
    exact = {width * height // 256 for width, height in buckets_of(SIZES["flux"], exact=True)}
    assert len(exact) <= 2


def test_protocol_of_seed000_has_its_settings() -> None:
    given = bench._parser().parse_args(["--protocol", "seed000", "--size", "flux"])
    specs = bench.specs_of(given)
    assert [spec.variant for spec in specs][:4] == ["eager", "fallback", "static:flash2", "static:fa4"]
    assert {(s.rank, s.learning_rate, s.batch, s.seed, s.checkpointing) for s in specs} == {(32, 5e-5, 2, 42, True)}
    assert all(spec.steps + 17 == 182 and spec.validate for spec in specs)
    rows = [dict.fromkeys(COLUMNS, "") | {"variant": s.variant, "ok": "1", "total_s": "671"} for s in specs]
    table = render(rows, "seed000")
    assert "| total time | 11:11 |" in table and "compile, static tokens, FlashAttention 4" in table


@pytest.mark.parametrize(
    ("command", "words"),
    [(["--variants", "fast"], "unknown variant 'fast'"), (["--layers", "4"], "two numbers, such as 4,8")],
)
def test_wrong_names_are_refused(command: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(command)
    assert words in capsys.readouterr().err


def test_kinds_of_checkpointing_and_fused_lora_reach_the_work() -> None:
    given = bench._parser().parse_args(
        ["--size", "tiny", "--variants", "eager", "--checkpointing", "on,off,offload, selective", "--fused-lora"]
    )
    specs = bench.specs_of(given)
    assert [(s.checkpointing, s.checkpointing_kind) for s in specs] == [
        (True, ""),
        (False, ""),
        (True, "offload"),
        (True, "selective"),
    ]
    model, lora = build(specs[2], torch.device("cpu"))
    assert isinstance(model._gradient_checkpointing_func, Offload)
    assert all(is_fused(layer) for layer in lora.layers.values())
    rows = [dict.fromkeys(COLUMNS, "") | {"checkpointing_kind": s.checkpointing_kind} for s in specs]
    assert len(groups(rows)) == 3 and groups(rows)[1].settings() == "checkpointing offload"


def test_whole_model_is_left_out_under_checkpointing() -> None:
    given = bench._parser().parse_args(["--variants", "eager,whole"])
    assert [(s.variant, s.checkpointing) for s in bench.specs_of(given)] == [
        ("eager", True),
        ("eager", False),
        ("whole", False),
    ]
    assert set(VARIANTS) >= {"eager", "whole", "auto", "dynamic", "static:varlen", "static:fa4", "exact"}
