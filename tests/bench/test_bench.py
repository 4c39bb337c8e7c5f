"""The bench: real measurements on a tiny model, failures as rows, and its command line."""

import contextlib
import csv
import json
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench import profile, report, work
from backend.bench.processes import Worker
from backend.bench.random_part import RandomPart
from backend.bench.record import Record, read_losses
from backend.bench.sizes import SIZES
from backend.bench.step import Step
from backend.bench.table import render
from backend.bench.variants import VARIANTS, Spec
from backend.bench.work import Stream, buckets_of, build
from backend.bench.worker import _notes, answer_of, measure
from backend.compile.cuda_graphs.recording import record
from backend.compile.model_compiler import compile_model
from backend.compile.telemetry import Telemetry
from backend.families.table import FAMILIES
from backend.memory.allocators import use_expandable_segments
from backend.models.common.load_options import LoadOptions
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.bench_rows import answer, made_up
from tests.tiny.blocks import Counting, Stack, lists

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


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measure here what a worker would, as JSON and back: a process of its own imports for longer than it measures.

    Those of `--together` still have one.
    """
    monkeypatch.setenv("MONOTILE_BENCH_CACHE", str(tmp_path / "c"))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):  # the worker's own; else they outlive the test
        monkeypatch.setenv(name, str(tmp_path / name))

    def measured(spec: Spec, timeout: float) -> dict:
        torch._dynamo.reset()
        return json.loads(json.dumps(answer_of(Spec.from_dict(spec.to_dict()))))

    monkeypatch.setattr(bench, "run_worker", measured)


def test_tiny_bench_measures_records_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    """Eager and static on the same stream: equal losses, 2 planned graphs, 0 recompiles over 9 buckets, no break."""
    lines: list[str] = []
    command = [*TINY, "--variants", "eager,static:sdpa,static:varlen", "--out", str(tmp_path), "--profile", "--rank=3"]
    assert bench.main(command, lines.append) == 0
    with (tmp_path / "tiny-compile" / "results.csv").open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    eager, static, refused = rows["eager"], rows["static:sdpa"], rows["static:varlen"]
    assert eager["ok"] == static["ok"] == "1" and float(static["loss"]) == pytest.approx(float(eager["loss"]), rel=1e-4)
    assert (static["graphs"], static["recompiles"], static["breaks"], eager["graphs"]) == ("2", "0", "0", "0")
    assert static["buckets"] == "9" and float(static["compile_s"]) > 0 and eager["compile_s"] == "0"
    parts = profile.read(eager["profile_ms"])
    assert list(parts) == list(profile.GROUPS) and all(parts[name] > 0 for name in profile.GROUPS[:6]), parts
    assert profile.read(static["compile_parts"])["tracing"] > 0 and "| ms of a step | attention |" in lines[-1]
    assert refused["ok"] == "0" and "varlen attention needs an NVIDIA GPU" in refused["error"]
    with (tmp_path / "tiny-compile" / "losses.csv").open() as file:
        assert sum(row["variant"] == "eager" for row in csv.DictReader(file)) == 11
    meta = json.loads((tmp_path / "tiny-compile" / "meta.json").read_text())
    assert meta["commit"] == "abc" and meta["device"] == "cpu" and "--size tiny" in meta["commands"][0]

    monkeypatch.setattr(bench, "run_worker", lambda spec, timeout: pytest.fail("measured again"))
    monkeypatch.setattr(bench._Clock, "fits", lambda self, spec: spec.variant != "static:varlen")
    assert bench.main(command, lines.append) == 0
    assert "no time left for static:varlen" in "".join(lines)


@pytest.mark.parametrize(
    ("variant", "how"), [("eager", {"base_quantization": "int8"}), ("static:sdpa", {"full": "adamw"})]
)
def test_swap_is_measured_beside_its_limit_and_changes_no_loss(
    variant: str, how: dict[str, str], tmp_path: Path
) -> None:
    """All blocks, of a quantised base or trained themselves; what a step waited is a part of the step."""
    spec = Spec(variant, size="tiny", steps=2, backend="eager", layers=(2, 2), cache_dir=str(tmp_path / "c"))
    spec = replace(spec, validate=False, **how)
    rows = []
    for each in (spec, replace(spec, swap=4)):
        torch._dynamo.reset()
        rows.append(measure(each))
    without, swapped = rows
    assert swapped["losses"] == without["losses"]
    assert swapped["graphs"] == without["graphs"] == (0 if variant == "eager" else 2)
    assert 0 < swapped["swap_wait_ms"] < 1000 * swapped["total_s"] and "swap_wait_ms" not in without
    assert swapped["swap_limit_ms"] > 0 and swapped["h2d_gb_s"] > 0 and swapped["swap_gb"] > 0


@pytest.mark.parametrize(("size", "classes"), [("tiny-kontext", 2), ("tiny-qwen-edit", 1)])
def test_families_make_the_planned_graphs_and_eagers_loss(size: str, classes: int, tmp_path: Path) -> None:
    """Static: one graph a class and caption bucket, over all sizes, with twice the tokens beside a control picture."""
    rows = {}
    for name, captions in (("eager", ()), ("dynamic", ()), ("static:sdpa", (16, 32))):
        torch._dynamo.reset()
        spec = Spec(name, size=size, steps=1, backend="eager", checkpointing=name == "dynamic", captions=captions)
        rows[name] = measure(replace(spec, cache_dir=str(tmp_path / "c"), validate=False))
    figures = {
        name: [row[k] for k in ("graphs", "planned_graphs", "recompiles", "breaks")] for name, row in rows.items()
    }
    # FLUX's texts of 16 places are the smallest bucket; Qwen-Image's are longer and come in both.
    buckets = 2 if size.startswith("tiny-qwen") else 1
    static = classes * buckets
    assert figures == {
        "eager": [0, 0, 0, 0],
        "dynamic": [classes, classes, 0, 0],
        "static:sdpa": [static, static, 0, 0],
    }
    assert all(row["losses"] == pytest.approx(rows["eager"]["losses"], rel=1e-4) for row in rows.values())


def test_rows_are_as_the_family_trains() -> None:
    """Kontext: a control picture of the same size. Qwen-Image: a caption's real tokens alone, of varying number.

    Qwen-Image-Edit: both, and the tokens of the picture that is read with the caption.
    """
    kontext, qwen = (Stream(Spec("eager", size=s), torch.device("cpu"), exact=False) for s in ("kontext", "tiny-qwen"))
    batch, square = kontext.batch(0), kontext.buckets.index((1024, 1024))
    assert batch.text[0]["control"].shape == batch.latents[0].shape and not batch.text[0]["control"].allclose(
        batch.latents[0]
    )
    assert kontext.image_tokens(square) == 2 * 4096
    lengths = {len(qwen.batch(step).text[0]["prompt_embeds"]) for step in range(len(qwen.buckets))}
    assert len(lengths) > 2 and max(lengths) == 32
    edit = Stream(Spec("eager", size="tiny-qwen-edit"), torch.device("cpu"), exact=False)
    assert [edit.caption_tokens(n) - qwen.caption_tokens(n) for n in range(8)] == [25] * 8
    assert edit.batch(0).text[0].keys() == {"prompt_embeds", "control"} and edit.image_tokens(
        0
    ) == 2 * qwen.image_tokens(0)
    assert SIZES["qwen"].config["num_attention_heads"] * SIZES["qwen"].config["attention_head_dim"] == 3072


def test_shape_modes_a_family_lacks_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = bench._parser().parse_args(["--size", "sdxl", "--variants", "eager,static:sdpa,static:fa4,exact"])
    assert [spec.variant for spec in bench.specs_of(options)] == ["eager", "exact"] * 2
    (line,) = bench.left_out(options)
    assert "SDXL has no shape mode static: its convolutions" in line
    record = Record.open(tmp_path / "benchmarks" / "sdxl-compile", "compile", [], "abc")
    record.add(Spec("eager", size="sdxl"), 0, answer(0.2, planned_graphs=2))
    assert "SDXL has no shape mode static" in report.page(tmp_path / "benchmarks")
    assert "| 2 of 2 |" in render(record.rows, "compile")


@pytest.mark.parametrize("size", ["tiny", "tiny-sdxl"])
def test_swapped_blocks_are_built_where_a_run_loads_them(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host, weight by weight: exactly the blocks that the swap then takes, and never the whole model before."""
    kept: list[str] = []
    load = work.load_part

    def watched(cls: type, source: RandomPart, part: object, loading: LoadOptions) -> torch.nn.Module:
        model = load(cls, source, part, loading)
        kept.extend(path for path, _ in model.named_modules() if loading.on_host(path))
        return model

    monkeypatch.setattr(work, "load_part", watched)
    spec = Spec("eager", size=size, swap=2, base_quantization="int8")
    model, _ = build(spec, torch.device("cpu"))
    swap = work.swap_of(spec, model, torch.device("cpu"))
    assert swap is not None
    blocks = [path for path in kept if not any(path.startswith(f"{other}.") for other in kept)]
    assert [id(model.get_submodule(path)) for path in blocks] == [id(held.block) for held in swap._held]
    assert len(blocks) == 2


def test_a_row_says_what_kept_the_planned_graphs_from_serving() -> None:
    stack, telemetry = Stack(), Telemetry().start()
    compile_model(stack, lists(stack), backend=Counting(), dynamic="false")
    for tokens in (8, 12):
        stack(torch.randn(1, tokens, 8, requires_grad=True))
    telemetry.stop()
    notes = _notes(None, telemetry, 1)
    assert notes.startswith("first: ") and "expected 8, actual 12" in notes
    assert _notes(None, telemetry, 2) == _notes(None, telemetry, None) == ""


def test_record_of_another_kind_is_not_mixed_in(tmp_path: Path) -> None:
    made_up(tmp_path)
    with pytest.raises(ValueError, match="has a record of kind compile, not exactness"):
        Record.open(tmp_path / "flux-compile", "exactness", [])


def test_buckets_are_the_seeds_seventeen() -> None:
    table = buckets_of(SIZES["flux"], exact=False)
    assert len(table) == 17 and {(1024, 1024), (960, 1088), (1088, 960), (2048, 512)} <= set(table)
    tokens = [width * height // 256 for width, height in table]
    assert max(tokens) == 4096 and min(tokens) > 4096 * 0.984
    exact = {width * height // 256 for width, height in buckets_of(SIZES["flux"], exact=True)}
    assert len(exact) <= 2


def test_a_command_measures_here_and_never_shows_a_published_record_as_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published records hold the default command's measurements, of another machine."""
    monkeypatch.chdir(tmp_path)
    asked: list[Spec] = []

    def measured(spec: Spec, timeout: float) -> dict:
        asked.append(spec)
        return answer(0.5, device="this card")

    monkeypatch.setattr(bench, "run_worker", measured)
    assert not bench.OUT.is_relative_to(bench.ROOT / "docs")
    assert bench._parser().parse_args([]).out == bench.OUT
    monkeypatch.setattr(bench, "OUT", tmp_path / "bench")
    lines: list[str] = []
    command = ["--repeats", "1", "--variants", "eager", "--checkpointing", "on", "--commit", "abc"]
    assert bench.main(command, lines.append) == 0 and len(asked) == 1
    assert f"Record {tmp_path / 'bench' / 'flux-compile'}, this card, torch {torch.__version__}.\n" in lines
    lines.clear()
    assert bench.main(command, lines.append) == 0 and len(asked) == 1
    assert "Nothing was measured now" in "".join(lines)


@pytest.mark.parametrize(
    ("command", "words"),
    [(["--variants", "fast"], "unknown variant 'fast'"), (["--layers", "4"], "must be 2 numbers, such as 4,8")],
)
def test_wrong_names_are_refused(command: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(command)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "size", [name for name, size in SIZES.items() if name.startswith("tiny") and size.family in FAMILIES]
)
def test_each_family_takes_a_step_on_its_own_objective(size: str) -> None:
    spec = Spec("eager", size=size, checkpointing=False)
    model, lora = build(spec, torch.device("cpu"))
    stream = Stream(spec, torch.device("cpu"), exact=False)
    step = Step(model, torch.optim.SGD(lora.parameters(), lr=1.0), ShapeRuntime(), contextlib.nullcontext())
    first = step(stream.batch(0))
    assert len(stream.buckets) > 2 and torch.isfinite(first)
    # B of the LoRA was zero: the step has moved it.
    assert not torch.equal(step.forward(stream.batch(0)), first)


def test_whole_model_is_left_out_under_checkpointing() -> None:
    options = bench._parser().parse_args(["--variants", "eager,whole"])
    assert [(s.variant, s.checkpointing) for s in bench.specs_of(options)] == [
        ("eager", True),
        ("eager", False),
        ("whole", False),
    ]
    assert set(VARIANTS) >= {"eager", "whole", "auto", "dynamic", "static:varlen", "static:fa4", "exact"}


def test_caches_are_filled_and_warm_starts_measured(tmp_path: Path, in_process: None) -> None:
    """Filling records nothing; a warm row is no cold one; a record of losses holds them."""
    lines: list[str] = []
    command = [*TINY, "--variants", "static:sdpa", "--out", str(tmp_path)]
    assert bench.main([*command, "--warm"], lines.append) == 1 and "--fill first" in "".join(lines)
    assert bench.main([*command, "--fill"], lines.append) == 0
    assert not Record.open(tmp_path / "tiny-compile", "compile", []).rows
    assert any(folder.name.startswith("static-sdpa") for folder in (tmp_path / "c" / "mtb-tiny-compile").iterdir())
    assert bench.main([*command, "--warm"], lines.append) == 0
    (row,) = Record.open(tmp_path / "tiny-compile", "compile", []).rows
    assert (row["ok"], row["cold"], row["repeat"]) == ("1", "0", "1")
    assert bench.main([*TINY, "--variants", "eager", "--out", str(tmp_path), "--losses"], lines.append) == 0
    assert {row["variant"] for row in read_losses(tmp_path / "tiny-loss")} == {"eager"}


@pytest.mark.slow
def test_processes_get_ready_side_by_side_and_are_timed_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same losses as alone, a time a step but none of the compile; one that can't start does not hold the rest."""
    monkeypatch.setenv("MONOTILE_BENCH_CACHE", str(tmp_path / "c"))
    lines: list[str] = []
    command = [*TINY, "--variants", "static:varlen,static:sdpa", "--out", str(tmp_path), "--together", "2"]
    assert bench.main([*command, "--backend", "eager"], lines.append) == 0
    rows = {row["variant"]: row for row in Record.open(tmp_path / "tiny-compile", "compile", []).rows}
    static, refused = rows["static:sdpa"], rows["static:varlen"]
    (alone,) = bench.specs_of(bench._parser().parse_args([*TINY, "--variants", "eager"]))
    assert float(static["loss"]) == pytest.approx(measure(replace(alone, validate=False))["loss"], rel=1e-4)
    assert float(static["s_per_step"]) > 0 and (static["graphs"], static["recompiles"]) == ("2", "0")
    assert static["compile_s"] == static["step_100_s"] == "" and "needs an NVIDIA GPU" in refused["error"]


def test_a_row_of_recorded_passes_says_why_they_were_not() -> None:
    """It would else pass a plain run off as a recorded one. This is no card."""
    spec = Spec("eager", size="tiny", steps=1, cuda_graphs=True)
    assert measure(spec)["notes"] == "CUDA graphs: nothing was recorded"
    assert measure(replace(spec, cuda_graphs=False))["notes"] == ""
    recorder = record(torch.nn.Linear(1, 1))
    for name in ("full", "failed"):
        setattr(recorder, name, f"{name} for a reason")
        assert _notes(None, None, None, recorder) == f"CUDA graphs: {name} for a reason"


def test_a_measurement_takes_memory_as_training_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their peaks are of one kind."""
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    use_expandable_segments(expected := {})
    with Worker(Spec("eager", size="tiny")):
        (worker,) = _workers()
        assert expected.items() <= worker.environ().items()


def test_a_measurement_that_is_interrupted_leaves_no_process() -> None:
    with pytest.raises(KeyboardInterrupt), Worker(Spec("eager", size="tiny")):
        assert _workers()
        raise KeyboardInterrupt
    assert not _workers()


def _workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "backend.bench.worker" in child.cmdline()]
