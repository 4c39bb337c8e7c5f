"""Whole runs of FramePack: clips in sections, a sample from a picture; pictures are refused by name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import av
import pytest
from PIL import Image

from backend.dataset.scan import scan_dataset
from tests.tiny.clips import write_clip
from tests.tiny.framepack import SECTIONS, write_sections
from tests.tiny.training import events, family_config, rows, train_here


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sections(tmp_path_factory.mktemp("clips"))


settings = partial(family_config, "framepack", **SECTIONS)


def test_a_run_makes_the_planned_graphs_and_a_sample_from_a_picture(
    tiny_framepack: Path, clips: Path, tmp_path: Path
) -> None:
    Image.effect_noise((60, 50), 80).convert("RGB").save(tmp_path / "start.png")
    prompt = {"prompt": "a red circle", "width": 48, "height": 32, "frames": 80, "steps": 1, "guidance_scale": 4.5}
    prompt |= {"control_image": str(tmp_path / "start.png")}
    cfg = settings(
        tiny_framepack, clips, tmp_path,
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "static",
                 "compile_dynamic": "false"},
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
    assert any("made with 73 frames" in finding["text"] for finding in plan["findings"])
    with av.open(run.path / sample["file"]) as video:
        assert sum(1 for _ in video.decode(video=0)) == 73


def test_a_run_of_framepack_f1_draws_a_sample_of_two_sections(
    tiny_framepack: Path, clips: Path, tmp_path: Path
) -> None:
    Image.effect_noise((60, 50), 80).convert("RGB").save(tmp_path / "start.png")
    prompt = {"prompt": "a red circle", "width": 48, "height": 32, "frames": 73, "steps": 1}
    prompt |= {"control_image": str(tmp_path / "start.png")}
    cfg = family_config(
        "framepack_f1", tiny_framepack, clips, tmp_path, **SECTIONS,
        training={"max_train_steps": 1}, sampling={"prompts": [prompt]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    with av.open(run.path / events(run, "sample")[0]["file"]) as video:
        assert sum(1 for _ in video.decode(video=0)) == 73


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
