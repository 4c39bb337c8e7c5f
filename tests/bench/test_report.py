"""What is made of raw rows alone: tables of medians, the page, its plots, and rows beside what others report."""

from pathlib import Path

from backend.bench import report
from backend.bench.groups import groups
from backend.bench.products_table import products_table
from backend.bench.record import Record, read_losses
from backend.bench.table import loss_table, render, shared
from backend.bench.variants import Spec
from tests.tiny.bench_rows import answer, made_up


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
    lines: list[str] = []
    assert report.main([], lines.append, tmp_path) == 0 and len(lines) == 2
    page = (tmp_path / "benchmarks.md").read_text()
    assert "What paid." in page and "python -m backend.bench --size flux" in page and "commit abc" in page
    assert "210.0 ms" in (tmp_path / "benchmarks" / "steps.svg").read_text()
    assert report.main(["--check"], lines.append, tmp_path) == 0
    record = Record.open(tmp_path / "benchmarks" / "flux-compile", "compile", [])
    record.add(Spec("dynamic"), 0, answer(0.15))
    assert report.main(["--check"], lines.append, tmp_path) == 1 and "is out of date" in lines[-1]


def test_committed_page_is_what_the_committed_rows_give() -> None:
    lines: list[str] = []
    assert report.main(["--check"], lines.append) == 0, "".join(lines) + "run: python -m backend.bench.report"


def test_what_all_rows_share_is_said_once(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "r", "compile", [])
    for name in ("eager", "static:sdpa"):
        record.add(Spec(name, batch=2, lora_dtype="bf16", steps=200), 0, answer(0.2))
    assert shared(record.rows) == "size flux, 4 + 8 blocks, rank 32, batch 2, 200 timed steps, LoRA bf16"
    assert "| static:sdpa |" in render(record.rows, "compile")


def test_losses_are_held_against_eager_and_against_their_own_noise(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "benchmarks" / "loss", "compile", [])
    curve = [1.0 + 0.001 * step for step in range(120)]
    for repeat in (0, 1):
        for name, off in (("eager", 0.0), ("static:sdpa", 0.002)):
            spec = Spec(name, steps=103)
            record.add(
                spec,
                repeat,
                {"ok": True, "process_s": 1.0, "row": {"losses": [v + off + 0.0001 * repeat for v in curve]}},
            )
    losses = read_losses(record.folder)
    line = next(line for line in loss_table(losses).splitlines() if "static:sdpa" in line)
    assert [cell.strip() for cell in line.split("|")][5:8] == ["+0.189 %", "0.00200", "0.00010"]
    lines: list[str] = []
    assert report.main([], lines.append, tmp_path) == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert "benchmarks/loss/loss.svg" in page and "static:sdpa" in (record.folder / "loss.svg").read_text()


def test_swapped_rows_stand_beside_their_limit_and_the_unswapped_step(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "memory", "compile", [], "abc")
    record.add(Spec("static:sdpa"), 0, answer(0.5, peak_gb=27.0))
    record.add(Spec("static:sdpa", swap=9), 0, answer(0.6, swap_gb=14.0, h2d_gb_s=50.0, swap_limit_ms=280.0))
    record.add(Spec("static:sdpa", swap=9, base_quantization="fp8"), 0, answer(0.6, swap_gb=7.0))
    lines = [line for line in render(record.rows, "compile").splitlines() if line.startswith("| static:sdpa (")]
    assert "| 14.0 | 50.0 | 280 | - | 600 | 1.20 |" in lines[-2]
    assert "| 7.0 | - | - | - | 600 | - |" in lines[-1], "fp8 has no unswapped row to stand beside"


def test_our_best_exact_row_stands_beside_musubi_tuners(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "r", "compile", [])
    for name, seconds in (("eager", 0.2), ("static:sdpa", 0.125), ("unmasked", 0.1)):
        record.add(Spec(name), 0, answer(seconds, device="NVIDIA H100 80GB HBM3"))
    text = render(record.rows, "compile")
    assert "static:sdpa takes 125.0 ms a step, musubi-tuner's compiled FLUX 137 ms: 1.10 x" in text
    assert "checkpointing off" not in text


def test_what_others_report_is_compared_with_the_families_own_eager(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "r", "compile", [])
    trimmed = {"size": "qwen", "captions": (64, 512)}
    record.add(Spec("eager", size="qwen"), 0, answer(0.5))
    record.add(Spec("eager", **trimmed), 0, answer(0.3))
    record.add(Spec("static:sdpa", **trimmed), 0, answer(0.2))
    record.add(Spec("unmasked", **trimmed), 0, answer(0.1))
    text = render(record.rows, "compile")
    assert "static:sdpa (captions 64, 512) is 50 % faster than eager (200.0 and 300.0 ms a step)" in text
    assert (
        "other GPUs and programs: 15-30 % faster" in text and "checkpointing off" not in text and "musubi" not in text
    )


def test_recorded_passes_are_held_against_eager_kernel_by_kernel(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "r", "compile", [])
    record.add(Spec("eager", size="sdxl", cuda_graphs=True), 0, answer(0.1))
    record.add(Spec("eager", size="sdxl"), 0, answer(0.5))
    record.add(Spec("dynamic", size="sdxl"), 0, answer(0.25))
    text = render(record.rows, "compile")
    assert next(line for line in text.splitlines() if line.startswith("| eager (CUDA")).split("|")[4].strip() == "5.00"
    assert "dynamic is 100 % faster than eager (250.0 and 500.0 ms a step)" in text


def test_8_bit_products_are_compared_with_bf16_of_the_same_variant() -> None:
    work = {"checkpointing": "1", "repeat": "0"}
    losses = {"": 2.0, "fp8 products, fast": 2.01, "fp8 products": 1.99}
    rows = [
        {"variant": "static:fa4", "settings": settings, "step": str(step), "loss": str(loss), **work}
        for settings, loss in losses.items()
        for step in range(120)
    ]
    lines = {line.split(" | ")[0].strip("| "): line for line in loss_table(rows).splitlines()}
    assert "+0.500 %" in lines["static:fa4 (fp8 products, fast)"] and "-0.500 %" in lines["static:fa4 (fp8 products)"]


def test_products_are_compared_with_bf16_beside_them(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "flux-products", "compile", [])
    for spec, seconds in (
        (Spec("static:fa4"), 0.1), (Spec("static:fa4", base_compute="fp8", base_products="fast"), 0.08),
    ):  # fmt: skip
        record.add(spec, 0, answer(seconds))
    lines = [line.split(" | ") for line in products_table(groups(record.rows), ["size"]).splitlines() if "fa4" in line]
    assert [line[3] for line in lines] == ["1.00", "1.25"] and "fp8 products, fast" in lines[1][0]
    assert products_table(groups(record.rows[:1]), []) == ""
