"""Whole runs of FramePack: clips in sections, a sample from a picture, a resumed run; pictures are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from backend.config.schema import Config
from backend.dataset.scan import scan_dataset
from tests.tiny.clips import write_clip
from tests.tiny.training import config, events, lora_of, rows, same, train_here


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three clips that give one, two and two sections at 30 frames a second."""
    folder = tmp_path_factory.mktemp("clips")
    for number, frames in enumerate((40, 75, 80)):
        write_clip(folder / f"{number}.mp4", frames, 30, size=(48, 48))
        (folder / f"{number}.txt").write_text("a grey cat " * (1 + 3 * number))
    return folder


def settings(base: Path, folder: Path, where: Path, **changes: dict) -> Config:
    sections: dict[str, dict] = {
        "model": {"family": "framepack", "text_length": 64},
        "dataset": {"resolution": 48, "min_bucket_size": 16},
        "video": {"target_frames": [37, 73]},
        "compile": {"compile": False, "shape_mode": "static"},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, folder, where, **sections)


def test_a_run_makes_the_planned_graphs_and_a_sample_from_a_picture(
    tiny_framepack: Path, clips: Path, tmp_path: Path
) -> None:
    Image.effect_noise((60, 50), 80).convert("RGB").save(tmp_path / "start.png")
    prompt = {"prompt": "a red circle", "width": 48, "height": 32, "frames": 120, "steps": 2, "guidance_scale": 4.5}
    prompt |= {"control_image": str(tmp_path / "start.png")}
    cfg = settings(
        tiny_framepack, clips, tmp_path,
        compile={"compile": True, "compile_backend": "aot_eager", "compile_dynamic": "false"},
        sampling={"prompts": [prompt]}, network={"targets_include": [r".*blocks\.\d+\.attn\.to_v"]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    plan = events(run, "plan")[0]
    # clips of one section and of two are rows of one size
    assert {row["frames"] for row in plan["buckets"]} == {37, 73} and len(
        {row["tokens"] for row in plan["buckets"]}
    ) == 1
    made = [event for event in events(run, "compile") if event.get("graph")]
    assert len(made) == plan["graphs"]["planned"] > 0 and rows(run)[-1]["recompiles"] == 0
    (sample,) = events(run, "sample")
    assert sample["file"].endswith(".mp4")
    assert any("made with 37 frames" in finding["text"] for finding in plan["findings"])


def test_a_resumed_run_is_the_straight_one_and_trimming_and_swap_change_nothing(
    tiny_framepack: Path, clips: Path, tmp_path: Path
) -> None:
    straight, code = train_here(settings(tiny_framepack, clips, tmp_path))
    assert code == 0, events(straight, "error")
    half, _ = train_here(settings(tiny_framepack, clips, tmp_path, training={"max_train_steps": 2}))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 2", "max_train_steps = 4"))
    _, code = train_here(settings(tiny_framepack, clips, tmp_path), half, resume=True)
    assert code == 0, events(half, "error")
    losses = [row["loss"] for row in rows(straight)]
    assert [row["loss"] for row in rows(half)] == losses and len(losses) == 4
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))
    cfg = settings(
        tiny_framepack, clips, tmp_path, compile={"caption_buckets": [16, 64]},
        training={"gradient_checkpointing": True}, memory={"blocks_to_swap": 3},
    )  # fmt: skip
    trimmed, code = train_here(cfg)
    assert code == 0, events(trimmed, "error")
    assert [row["loss"] for row in rows(trimmed)] == pytest.approx(losses, rel=1e-4)


def test_pictures_and_clips_of_less_than_a_section_are_named(tiny_framepack: Path, tmp_path: Path) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    write_clip(folder / "short.mp4", 20, 30, size=(48, 48))
    write_clip(folder / "long.mp4", 40, 30, size=(48, 48))
    Image.effect_noise((64, 48), 80).convert("RGB").save(folder / "p.png")
    scan = scan_dataset(settings(tiny_framepack, folder, tmp_path), cache_dir=tmp_path / "scan")
    (error,) = [finding for finding in scan.train.findings if finding.severity == "error"]
    assert "fewer than 37 frames at 30 fps" in error.text and "short.mp4" in error.text and "p.png" in error.text
    assert "long.mp4" not in error.text
