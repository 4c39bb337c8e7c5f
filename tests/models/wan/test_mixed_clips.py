"""Whole runs of Wan on clips and pictures mixed: planned graphs, stop and resume, the same losses padded or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from backend.config.schema import Config
from backend.runs.folder import Run
from tests.tiny.clips import write_clip
from tests.tiny.training import config, events, lora_of, rows, same, train_here


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips of two sizes and rates, and two pictures, with captions."""
    folder = tmp_path_factory.mktemp("clips")
    write_clip(folder / "a.mp4", 20)
    write_clip(folder / "b.mp4", 40, 32)
    write_clip(folder / "c.webm", 12, size=(48, 64), codec="libvpx-vp9")
    for name, size in (("d", (64, 48)), ("e", (48, 64))):
        Image.effect_noise(size, 80).convert("RGB").save(folder / f"{name}.png")
    for path in list(folder.iterdir()):
        path.with_suffix(".txt").write_text(f"a grey {path.stem}")
    return folder


def settings(base: Path, folder: Path, where: Path, **changes: dict) -> Config:
    sections: dict[str, dict] = {
        "model": {"family": "wan", "text_length": 64},
        "dataset": {"resolution": 48, "min_bucket_size": 16},
        "video": {"target_frames": [5, 9], "frame_extraction": "uniform", "frame_sample": 2},
        "compile": {"compile": False},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, folder, where, **sections)


def test_a_run_on_clips_and_pictures_makes_the_planned_graphs(
    tiny_wan: Path, clip_folder: Path, tmp_path: Path
) -> None:
    compile = {"compile": True, "compile_backend": "eager", "shape_mode": "static", "compile_dynamic": "false"}
    epoch = {"max_train_steps": None, "max_train_epochs": 1}
    cfg = settings(
        tiny_wan, clip_folder, tmp_path,
        compile=compile, training=epoch, network={"targets_include": [r".*attn\d\.to_k"]},
        dataset={"validation_split": 0.25}, validation={"validate_at_start": True},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    plan = events(run, "plan")[0]
    assert len(plan["static_token_counts"]) == 3 and plan["clips"]["windows"] > 6
    assert {row.get("frames", 1) for row in plan["buckets"]} == {1, 5, 9}
    last = rows(run)[-1]
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (plan["graphs"]["planned"], 0, 0)
    assert last["graphs"] >= 3
    kinds = {finding["kind"] for finding in plan["findings"]}
    assert json.dumps(plan) and "no_batches" not in kinds


def test_padding_changes_no_loss_of_clips(tiny_wan: Path, tmp_path: Path) -> None:
    for number in range(3):
        write_clip(tmp_path / "square" / f"{number}.mp4", 9 + number, size=(48, 48))
    losses = {}
    for mode, count in (("off", None), ("static", 14)):
        cfg = settings(
            tiny_wan, tmp_path / "square", tmp_path / mode,
            video={"target_frames": [9], "frame_extraction": "head"},
            compile={"shape_mode": mode, "static_token_count": count},
        )  # fmt: skip
        run, code = train_here(cfg)
        assert code == 0, events(run, "error")
        assert events(run, "plan")[0]["static_token_counts"] == [27 if count is None else 42]
        losses[mode] = [row["loss"] for row in rows(run)]
    assert losses["static"] == pytest.approx(losses["off"], rel=1e-5) and len(losses["off"]) == 4


def test_a_run_on_clips_resumes_exactly_and_is_told_of_other_windows(
    tiny_wan: Path, clip_folder: Path, tmp_path: Path
) -> None:
    straight, code = train_here(settings(tiny_wan, clip_folder, tmp_path))
    assert code == 0, events(straight, "error")
    half, _ = train_here(settings(tiny_wan, clip_folder, tmp_path, training={"max_train_steps": 2}))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    other = Run(Path(shutil.copytree(half.path, half.path.with_name("other"))))
    _, code = train_here(settings(tiny_wan, clip_folder, tmp_path), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))
    other.config_path.write_text(other.config_path.read_text().replace('"uniform"', '"head"'))
    _, code = train_here(settings(tiny_wan, clip_folder, tmp_path), other, resume=True)
    message = " ".join(event["text"] for kind in ("warning", "error") for event in events(other, kind))
    assert code == 0 and "changed since the run stopped" in message, message
