"""Whole runs of Qwen-Image from single files; tests/families/test_runs.py has the others."""

from __future__ import annotations

from pathlib import Path

from tests.tiny.qwen_runs import PROMPT, settings, single_files
from tests.tiny.training import events, lora_of, rows, train_here


def test_from_three_files_trains_samples_and_saves(tiny_qwen_image: Path, image_folder: Path, tmp_path: Path) -> None:
    """As ComfyUI's users have it: transformer, text encoder and VAE in a file each, and the tokenizer's folder."""
    files = single_files(tiny_qwen_image / "tokenizer", tmp_path / "files")
    cfg = settings(
        tiny_qwen_image, image_folder, tmp_path, model=files,
        sampling={"prompts": [PROMPT]}, training={"max_train_steps": 2},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    assert len(rows(run)) == 2 and events(run, "sample")
    assert len(lora_of(run)) == 3 * 3 * 12
