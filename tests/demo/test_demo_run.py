"""The demo command, for real and short: what it prints is what the run wrote down."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from backend.config.schema import Config, with_values
from backend.config.toml_io import dump
from backend.demo import __main__ as demo
from backend.runs.folder import Run, list_runs
from backend.runs.metrics import MetricsReader
from tests.tiny.event_lines import event_lines
from tests.tiny.pictures import few

ROOT = Path(__file__).resolve().parents[2]


def preset(where: Path, **changes: object) -> Path:
    """The demo's own settings on few of its pictures, shortened, as a file; `changes` by path, with __ for the dot.

    Samples have half their width and height: the VAE's convolutions took longer than all steps.
    """
    cfg = demo.settings(steps=2)
    prompts = [
        prompt.model_copy(update={"steps": 2, "width": prompt.width // 2, "height": prompt.height // 32 * 16})
        for prompt in cfg.sampling.prompts
    ]
    folders = {
        name: [item.model_copy(update={"path": few(item.path, where / "few" / Path(item.path).name)}) for item in rows]
        for name, rows in (
            ("dataset.folders", cfg.dataset.folders),
            ("validation.validation_folders", cfg.validation.validation_folders),
        )
    }
    values = {
        **folders,
        "sampling.prompts": prompts,
        "validation.validation_repeats": 1,
        "dataset.cache_dir": str(where / "cache"),
        "compile.compile_cache_dir": str(where / "c"),
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    dump(with_values(cfg, values), where / "short.toml")
    return where / "short.toml"


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train in this process, for what does not depend on the trainer's own."""
    from tests.tiny.training import train_here

    monkeypatch.setattr(demo, "start", lambda cfg: train_here(cfg)[0])


def run_demo(where: Path, preset_file: Path, *more: str) -> tuple[int, str, list[Run]]:
    """Exit code, what was printed, and the runs in their folder."""
    output = StringIO()
    console = Console(file=output, width=100, highlight=False)
    code = demo.main(["--preset", str(preset_file), "--runs", str(where / "runs"), *more], console)
    return code, output.getvalue(), list_runs(where / "runs")


@pytest.mark.slow
def test_what_it_prints_is_what_the_run_wrote(tmp_path: Path, in_process: None) -> None:
    """All layers of both block classes, traced as for inductor, which compiles such blocks in tests of compiled runs.

    The process of its own, which the command waits for, is in test_video_demo.py.
    """
    code, text, runs = run_demo(tmp_path, preset(tmp_path, compile__compile_backend="eager"), "--steps", "3")
    assert code == 0, text
    (run,) = runs
    events = event_lines(run)
    by_kind = {kind: [e for e in events if e["kind"] == kind] for kind in {e["kind"] for e in events}}

    lines = [line.split() for line in text.splitlines()]
    for name in ("concept", "base"):
        first, last = (e for e in by_kind["validation"] if e["set"] == name)
        assert (first["step"], last["step"]) == (0, 3)
        change = f"{(last['loss'] / first['loss'] - 1) * 100:+.1f}"
        assert [name, "all", f"{first['loss']:.5f}", f"{last['loss']:.5f}", change, "%"] in lines
        for sigma in ("0.05", "0.1", "0.2", "0.35"):
            before, after = first["sigma_losses"][sigma], last["sigma_losses"][sigma]
            assert [sigma, f"{before:.5f}", f"{after:.5f}"] in [words[:3] for words in lines]

    # two block classes, with and without gradients: all shapes of pictures and samples share them
    row = MetricsReader(run).last()
    assert row is not None and row["step"] == 3
    assert "Graphs: 4 planned, 4 compiled; 0 recompiles, 0 graph breaks" in text
    assert (row["graphs"], row["recompiles"], row["breaks"]) == (4, 0, 0)
    assert row["compile_seconds"] > 0
    assert f"Compile time: {row['compile_seconds']:.1f} s" in text

    (done,) = by_kind["done"]
    assert f"LoRA: {done['lora']}" in text and Path(done["lora"]).is_file()
    drawn = [sample.path for sample in run.samples()]
    assert len(drawn) == 2 * len(demo.settings().sampling.prompts)
    assert all(path.is_file() and str(path) in text for path in drawn)
    assert (run.path / demo.SHEET).is_file() and str(run.path / demo.SHEET) in text


def test_without_a_compiler_it_says_so_and_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: None
) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.setenv(name, str(tmp_path / "no-compiler"))
    monkeypatch.setenv("PATH", str(tmp_path))
    short = preset(
        tmp_path,
        sampling__prompts=[],
        sampling__sample_at_start=False,
        sampling__sample_at_end=False,
        validation__validate_at_start=False,
        validation__validate_at_end=False,
    )
    code, text, (run,) = run_demo(tmp_path, short)
    assert code == 0, text
    assert "Compile: no C++ compiler was found" in text and "The LoRA is just as good" in " ".join(text.split())
    assert MetricsReader(run).last()["graphs"] == 0
    assert list(run.checkpoints_dir.glob("*.safetensors"))


def test_a_run_that_fails_is_told_in_its_own_words(tmp_path: Path, in_process: None) -> None:
    (tmp_path / "nothing-here").mkdir()
    code, text, (run,) = run_demo(tmp_path, preset(tmp_path, model__base_model=str(tmp_path / "nothing-here")))
    error = run.status().error
    assert code == 1
    assert error is not None and error.text and error.text in " ".join(text.split())
    assert str(run.log_path) in text


def test_settings_that_cannot_be_used_start_nothing(tmp_path: Path) -> None:
    code, text, runs = run_demo(tmp_path, preset(tmp_path), "--steps", "0")
    assert (code, runs) == (2, [])
    assert "max_train_steps" in text or "Steps" in text


def test_the_preset_is_what_the_demo_runs() -> None:
    cfg = demo.settings()
    assert isinstance(cfg, Config)
    assert (cfg.dataset.batch_size, cfg.compile.compile, cfg.compile.shape_mode) == (1, True, "static")
    assert cfg.compile.compile_backend == "inductor"
    assert cfg.validation.validation_sigmas == [0.05, 0.1, 0.2, 0.35] and cfg.validation.validation_repeats == 3
    assert cfg.validation.validate_at_start and cfg.validation.validate_at_end
    assert cfg.sampling.sample_at_start and cfg.sampling.sample_at_end


def test_the_command_needs_no_torch() -> None:
    code = "import sys, backend.demo.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
