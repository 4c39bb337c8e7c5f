"""Sample clips as files: what a browser plays, the picture of their frames, and how both say how they were made."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from backend.runs.samples import sheet_of
from backend.training.sample_clips import contact_sheet, frames_of, read_comment, write_clip

TEXTS = {"parameters": "a ball\nSteps: 3", "monotile": json.dumps({"prompt": "a ball", "step": 7, "wörter": "ja"})}


def moving(frames: int, height: int, width: int) -> torch.Tensor:
    """A clip (3, F, H, W) in [-1, 1]: a white square that goes from left to right over a red ground."""
    clip = torch.full((3, frames, height, width), -1.0)
    clip[0] = 0.5
    for number in range(frames):
        left = number * (width - 16) // max(1, frames - 1)
        clip[:, number, 8:24, left : left + 16] = 1.0
    return clip


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@pytest.mark.parametrize("size", [(48, 64), (33, 49)], ids=str)
def test_a_clip_is_an_mp4_that_browsers_play_with_its_own_frames_and_rate(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    frames = [*frames_of(moving(17, *size))]
    path = tmp_path / "s.mp4"
    sheet = write_clip(path, frames, 16.0, TEXTS)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt, stream.average_rate) == ("h264", "yuv420p", 16)
        assert float(container.duration / av.time_base) == pytest.approx(17 / 16, abs=0.01)
        assert json.loads(container.metadata["comment"])["wörter"] == "ja"
        assert container.metadata["description"] == TEXTS["parameters"]
    for shown, meant in zip(decoded(path), frames, strict=True):
        shown = shown[: size[0], : size[1]]
        assert np.abs(shown.astype(int) - meant.astype(int)).mean() < 4
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "the index is not at the front"
    assert sheet == sheet_of(path)
    with Image.open(sheet) as picture:
        assert picture.size == (3 * size[1], 3 * size[0])
        assert picture.text == TEXTS
    assert sorted(each.name for each in tmp_path.iterdir()) == ["s.mp4", "s.sheet.png"]


def test_the_sheet_shows_the_first_and_the_last_frame_and_those_between_in_order() -> None:
    frames = [np.full((16, 32, 3), number * 2, np.uint8) for number in range(81)]
    sheet = np.asarray(contact_sheet(frames))
    cells = [int(sheet[row * 16, column * 32, 0]) for row in range(3) for column in range(3)]
    assert cells[0] == 0 and cells[-1] == 160
    assert {after - before for before, after in pairwise(cells)} == {20}
    assert contact_sheet(frames[:5]).size == (64, 32) and contact_sheet(frames[:3]).size == (32, 16)
    wide = contact_sheet([np.zeros((720, 1280, 3), np.uint8)] * 9)
    assert wide.size == (1536, 864)


def test_colours_stay_what_they_are(tmp_path: Path) -> None:
    frames = [np.full((64, 64, 3), (200, 40, 90), np.uint8)] * 5
    write_clip(tmp_path / "s.mp4", frames, 24.0, TEXTS)
    assert np.abs(decoded(tmp_path / "s.mp4")[2].reshape(-1, 3).mean(0) - (200, 40, 90)).max() < 3


def test_what_is_not_finite_is_refused() -> None:
    clip = moving(5, 32, 32)
    clip[0, 3, 0, 0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        list(frames_of(clip))


def test_the_comment_of_what_is_no_whole_clip_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.mp4"
    write_clip(path, [*frames_of(moving(9, 32, 32))], 16.0, TEXTS)
    assert read_comment(path) == TEXTS["monotile"]
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises((OSError, ValueError, KeyError)):
        read_comment(path)


def test_a_damaged_clip_is_read_or_told_in_words(tmp_path: Path) -> None:
    """FFmpeg has errors of its own kinds for some of these; a run that is resumed draws such a sample again."""
    path = tmp_path / "clip.mp4"
    frames = [np.full((32, 32, 3), value, np.uint8) for value in range(9)]
    write_clip(path, frames, 16.0, {"monotile": "{}", "parameters": ""})
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 11):
        path.write_bytes(whole[:place] + b"\xff" * 8 + whole[place + 8 :])
        try:
            read_comment(path)
        except (OSError, ValueError, KeyError):
            refused += 1
    assert refused > 10
    for part in (whole[:40], whole[: len(whole) // 2], b"not a clip at all" * 9, b""):
        path.write_bytes(part)
        with pytest.raises((OSError, ValueError, KeyError)):
            read_comment(path)
