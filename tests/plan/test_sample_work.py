"""What sample clips cost in memory: the tokens of all their frames, and the frames that wait for the last one."""

from __future__ import annotations

from pathlib import Path

from backend.config.load import parse
from backend.families.spec import Geometry
from backend.families.wan.facts import FACTS
from backend.plan.memory.plan import memory_plan
from backend.plan.memory.work import RunWork, work_of_settings

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo" / "video" / "base"


def work(**prompt: int) -> RunWork:
    geometry: Geometry = FACTS.default_geometry
    return work_of_settings(settings(**prompt), geometry, 512)


def settings(**prompt: int):
    loaded = parse(
        {
            "model": {"family": "wan", "base_model": str(DEMO)},
            "sampling": {"prompts": [{"prompt": "a", "width": 832, "height": 480, **prompt}]},
        }
    )
    assert loaded.config is not None
    return loaded.config


def test_a_clip_counts_all_its_frames_and_decodes_some_at_a_time() -> None:
    usual, short, picture = work(), work(frames=18), work(frames=1)
    tokens = (832 // 16) * (480 // 16)
    assert [each.sampling and each.sampling.image for each in (usual, short, picture)] == [
        tokens * 21,
        tokens * 5,
        tokens,
    ]
    assert [each.sample_result for each in (usual, short, picture)] == [832 * 480 * frames for frames in (81, 17, 1)]
    assert usual.sample_pixels == short.sample_pixels < 5 * picture.sample_pixels
    assert picture.sample_pixels == 832 * 480


def test_frames_that_are_done_are_kept_till_the_last_one_is() -> None:
    def decoding(frames: int) -> int:
        planned = memory_plan(settings(frames=frames), work(frames=frames), 24)
        assert planned is not None
        (stage,) = (stage for stage in planned[0].stages if stage.name == "decode_samples")
        return stage.parts["pictures"]

    assert decoding(81) - decoding(17) == 832 * 480 * (81 - 17) * 3 * 4
