"""`python -m backend.plan`: words, JSON, overrides, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.plan.__main__ import main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings_file(image_folder: Path, tmp_path: Path) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(
        "[dataset]\nresolution = 64\nmin_bucket_size = 16\nbatch_size = 2\n"
        f"cache_dir = '{tmp_path / 'cache'}'\n[[dataset.folders]]\npath = '{image_folder}'\n"
        "[training]\nmax_train_epochs = 3\n",
        encoding="utf-8",
    )
    return path


def run(*arguments: str) -> tuple[int, str]:
    written: list[str] = []
    code = main(list(arguments), written.append)
    return code, "".join(written)


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_person_at_a_terminal_sees_how_far_it_is(settings_file: Path) -> None:
    import pty

    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "backend.plan", str(settings_file)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=terminal, env=environment, check=False)
    os.close(terminal)
    shown = os.read(master, 65536).decode()
    assert done.returncode == 0 and b"Recommended: " in done.stdout
    assert "Looking at the pictures" in shown and "8/8" in shown
    # A pipe gets the words alone.
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert piped.stdout == done.stdout and b"Looking" not in piped.stderr


def test_words(settings_file: Path) -> None:
    code, text = run(str(settings_file))
    assert code == 0
    assert "8 images x 1 repeat" in text and "4 batches of 2 x 3 epochs = 12 batches" in text
    assert "Recommended: " in text and "Shape modes" in text


def test_json_with_progress_and_overrides(settings_file: Path) -> None:
    code, text = run(str(settings_file), "--json", "--progress", "--max_train_steps", "7", "--max_train_epochs=4")
    assert code == 1 and json.loads(text)["kind"] == "problems"
    code, text = run(str(settings_file), "--json", "--progress", "--max_train_epochs=4", "--shape_mode", "off")
    *progress, document = [json.loads(line) for line in text.splitlines()]
    assert progress[-1]["total"] == 8 and document["kind"] == "plan"
    assert document["plan"]["mode"] == "off" and document["plan"]["steps"]["images"] == 8
    assert document["scan"]["train"]["images"] == 8
    assert code == 0


def test_what_can_not_start_exits_with_1_and_says_why(settings_file: Path, tmp_path: Path, tiny_flux: Path) -> None:
    code, text = run(str(settings_file), "--batch_size", "100")
    assert code == 1 and "No batch can be made" in text
    code, text = run(str(tmp_path / "gone.toml"))
    assert code == 1 and "gone.toml" in text
    code, text = run(str(settings_file), "--btach_size", "1")
    assert code == 1 and "batch_size" in text
    code, text = run(str(settings_file), "--base_model", str(tiny_flux), "--blocks_to_swap", "999")
    assert code == 1 and "999 blocks are to be swapped, but this model has 4" in text


def test_a_base_model_that_is_another_is_told_beside_the_plan(
    settings_file: Path, tmp_path: Path, tiny_sd15: Path
) -> None:
    page = tmp_path / "flux1-dev.safetensors"
    page.write_bytes(b"<!DOCTYPE html><html>")
    code, text = run(str(settings_file), "--base_model", str(page))
    assert code == 1 and "8 images" in text and "flux1-dev.safetensors is a web page" in text.replace("\n", " ")
    code, text = run(str(settings_file), "--base_model", str(tiny_sd15), "--json")
    problems = [json.loads(line) for line in text.splitlines()][-1]["problems"]
    assert code == 1 and [p["path"] for p in problems if p["severity"] == "error"] == ["model.family"]


@pytest.mark.parametrize("arguments", [["--batch_size"], ["stray"], ["--vram", "0"], ["--vram", "-8"]])
def test_wrong_arguments_exit_with_2(settings_file: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(str(settings_file), *arguments)
    assert left.value.code == 2


def test_as_a_process_it_stays_free_of_torch(settings_file: Path) -> None:
    arguments = ["-X", "importtime", "-m", "backend.plan", str(settings_file), "--json"]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["plan"]["images"] == 8
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "backend.plan.make_plan" in imported
    assert not imported & {"torch", "diffusers", "transformers", "accelerate", "numpy", "gradio"}
