"""The trainer's command line: new runs, replaced settings, resumed runs, and what is said about wrong ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from backend.config.load import load
from backend.config.toml_io import dump
from backend.runs.folder import Run, list_runs
from backend.train import main
from tests.tiny.training import config, events


@pytest.fixture
def toml(tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A settings file; the command's logging stays with pytest."""
    monkeypatch.setattr("backend.train.configure_logging", lambda run, level: None)
    path = tmp_path / "my settings.toml"
    dump(config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 2}), path)
    return path


def test_a_file_is_trained_in_the_foreground_and_resumed_with_a_later_end(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--network_dim=8", str(toml), "--learning_rate", "1e-3"]) == 0
    (run,) = list_runs(tmp_path / "runs")
    held = load(run.config_path).config
    assert held is not None and (held.network.network_dim, held.optimizer.learning_rate) == (8, 1e-3)
    shown = capsys.readouterr().err
    assert "checkpoints/tiny.safetensors" in shown and "done: 2 steps" in shown.replace("\n", " ")
    assert main(["--resume", str(run.path), "--max_train_steps", "4"]) == 0
    assert run.status().step == 4 and events(run, "resumed")[0]["step"] == 2
    # a person's own file is never written
    original = load(toml).config
    assert original is not None and original.training.max_train_steps == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--network_dimm", "8"], "network_dim"),
        (["--network_dim", "many"], "network_dim"),
        (["--network_dim"], "--network_dim VALUE"),
        (["--max_train_steps", "3", "--max_train_epochs", "2"], "max_train_epochs"),
        (["--resume", "other"], "its own settings"),
        (["--run", "somewhere"], "config.toml"),
    ],
)
def test_wrong_words_are_answered_and_make_no_run(
    words: list[str], expected: str, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(toml), *words]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_start_that_is_refused_for_another_run_leaves_no_folder(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Run.create_empty(tmp_path / "runs", "other")
    other.prepare_start(["x"])
    assert main([str(toml)]) == 2
    assert f"The run {other.name} is still running" in capsys.readouterr().err
    assert list_runs(tmp_path / "runs") == [other] and [*(tmp_path / "runs").iterdir()] == [other.path]
    other.discard()
    assert other.path.is_dir(), "it was started"


def test_a_run_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--resume", "no-such-run"]) == 2
    assert "no-such-run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])


def test_a_refused_resume_leaves_the_settings_as_they_were(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever refuses: the settings alone, or the state that was saved with others."""
    assert main([str(toml)]) == 0
    (run,) = list_runs(tmp_path / "runs")
    held = run.config_path.read_bytes()
    for words in (["--optimizer", "lion"], ["--network_dim", "many"], ["--base_model", ""]):
        assert main(["--resume", str(run.path), *words]) == 2
        assert run.config_path.read_bytes() == held, words
    assert "optimizer.optimizer" in events(run, "error")[0]["text"]
    assert main(["--resume", str(run.path), "--max_train_steps", "3"]) == 0 and run.status().step == 3
    changed = load(run.config_path).config
    assert changed is not None and changed.training.max_train_steps == 3
    capsys.readouterr()
    assert main(["--resume", str(run.path)]) == 0
    assert "Nothing was trained: the run has done 3 steps" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="tells files by /proc")
def test_a_disk_without_room_for_the_record_has_its_sentence(
    toml: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.fsync

    def full(descriptor: int) -> None:
        if "run.json" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert main([str(toml)]) == 2
    message = capsys.readouterr().err
    assert "run.json: needs" in message and "Free some space there" in message and "Traceback" not in message
