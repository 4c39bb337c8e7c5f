"""Clips: what each kind of file gives, and which frames of it are taken."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from backend.config.schema import Config
from backend.dataset.clips import BadClip, ClipFacts, probe, read_frames
from backend.dataset.windows import ClipRule, cut_clip, frames_within, places, rate_within
from tests.tiny.clips import FAMILY, add_family, number_of, write_animation, write_clip

GEOMETRY = FAMILY.default_geometry


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    add_family(monkeypatch)


def numbers(path: Path, times: list[float], **more: Any) -> list[int]:
    """The numbers of the grey frames that are shown at `times`."""
    return [number_of(float(np.asarray(frame).mean())) for frame in read_frames(path, times, **more)]


KINDS: dict[str, dict[str, Any]] = {
    "h264.mp4": {},
    "b_frames.avi": {},
    "mpeg4.avi": {"codec": "mpeg4"},
    "vp9.webm": {"codec": "libvpx-vp9"},
    "ffv1.mkv": {"codec": "ffv1"},
    "prores.mov": {"codec": "prores_ks", "pix_fmt": "yuv422p10le"},
    "hevc10.mp4": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_gives_each_frame_at_its_time(name: str, tmp_path: Path) -> None:
    path = write_clip(tmp_path / name, **KINDS[name])
    facts, rate = probe(path), KINDS[name].get("rate", 16)
    assert (facts.width, facts.height, facts.frames, facts.variable) == (64, 48, 20, False)
    assert facts.rate == pytest.approx(rate, rel=1e-3) and facts.seconds == pytest.approx(20 / rate, abs=0.005)
    assert numbers(path, [k / rate for k in range(20)]) == list(range(20))
    # between two frames the earlier one is shown, and after the end the last one
    assert numbers(path, [0.4 / rate, 3.7 / rate, 3.7 / rate, 50.0]) == [0, 3, 3, 19]
    assert facts.bits == (10 if "10" in str(KINDS[name]) else 8) and not facts.has_alpha and not facts.hdr


@pytest.mark.parametrize("ending", [".gif", ".webp", ".png"])
def test_animations_are_clips_with_each_frame_for_its_time(ending: str, tmp_path: Path) -> None:
    path = write_animation(tmp_path / f"a{ending}", 6, [100, 300, 100, 100, 100, 100])
    facts = probe(path)
    assert (facts.width, facts.height, facts.frames, facts.variable) == (64, 48, 6, True)
    assert facts.seconds == pytest.approx(0.8)
    assert numbers(path, [0.0, 0.1, 0.2, 0.3, 0.4, 0.7]) == [0, 1, 1, 1, 2, 5]


def test_a_late_frame_is_sought_and_is_the_same_as_from_the_beginning(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "long.mp4", 125, 25, gop=30)
    late = [3 + k / 25 for k in range(40)]
    assert numbers(path, late) == [(75 + k) % 25 for k in range(40)]
    whole = list(read_frames(path, [0.0, *late]))[1:]
    for sought, decoded in zip(read_frames(path, late), whole, strict=True):
        assert np.array_equal(np.asarray(sought), np.asarray(decoded))


def test_a_variable_rate_is_read_by_its_time_stamps(tmp_path: Path) -> None:
    times = [Fraction(n, 10) for n in (0, 1, 2, 5, 6, 7, 12, 13)]
    path = write_clip(tmp_path / "v.mp4", 8, times=times)
    facts = probe(path)
    assert facts.variable and facts.frames == 8
    assert numbers(path, [0.0, 0.15, 0.45, 0.5, 1.1, 1.2]) == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize(("flag", "corner"), [(90, (0, -1)), (180, (-1, -1)), (-90, (-1, 0))])
def test_the_rotation_flag_turns_size_and_pixels(flag: int, corner: tuple[int, int], tmp_path: Path) -> None:
    picture = Image.new("RGB", (64, 48))
    picture.paste((255, 255, 255), (0, 0, 16, 16))
    path = write_clip(tmp_path / "r.mp4", 4, pictures=[picture] * 4, rotation=flag)
    facts = probe(path)
    assert (facts.width, facts.height) == ((64, 48) if flag == 180 else (48, 64))
    (frame,) = read_frames(path, [0.0])
    assert frame.size == (facts.width, facts.height)
    # counter-clockwise, as the flag is written: the white corner of top left comes to `corner`
    x, y = (4 if side == 0 else length - 5 for side, length in zip(corner, frame.size, strict=True))
    assert min(frame.getpixel((x, y))) > 200 and max(frame.getpixel((frame.width // 2, frame.height // 2))) < 60  # type: ignore


def test_a_phones_portrait_clip_is_upright(tmp_path: Path) -> None:
    """The matrix of a phone's file, by which players turn the frames clockwise, is the flag of -90."""
    path = write_clip(tmp_path / "r.mp4", 4, rotation=-90)
    matrix = b"".join(n.to_bytes(4, "big", signed=True) for n in (0, 1 << 16, 0, -(1 << 16), 0))
    data = path.read_bytes()
    assert matrix in data[data.index(b"tkhd") :]


def test_wide_pixels_make_a_wide_clip(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "w.mp4", 4, sample_aspect_ratio=Fraction(4, 3))
    assert (probe(path).width, probe(path).height) == (85, 48)


@pytest.mark.parametrize(
    ("name", "codec", "pix_fmt"),
    [("a.mov", "qtrle", "argb"), ("a.mov", "prores_ks", "yuva444p10le"), ("a.webm", "libvpx-vp9", "yuva420p")],
)
def test_transparent_parts_are_laid_on_the_chosen_backing(name: str, codec: str, pix_fmt: str, tmp_path: Path) -> None:
    picture = Image.new("RGBA", (64, 48), (200, 40, 40, 0))
    picture.paste((10, 10, 10, 255), (0, 0, 32, 48))
    path = write_clip(tmp_path / name, 3, codec=codec, pix_fmt=pix_fmt, pictures=[picture] * 3)
    assert probe(path).has_alpha
    for backing, grey in (("white", 255), ("black", 0), ("grey", 128)):
        frame = np.asarray(next(iter(read_frames(path, [0.0], backing))), dtype=int)
        assert abs(frame[10:40, 40:60] - grey).max() < 8 and frame[10:40, 4:28].max() < 24


def test_colours_are_those_of_the_mark_and_of_hd_without_one(tmp_path: Path) -> None:
    picture = Image.new("RGB", (1280, 720), (200, 60, 20))
    frame = av.VideoFrame.from_ndarray(np.asarray(picture), "rgb24").reformat(
        format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
    )
    path = tmp_path / "hd.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=16)
        stream.width, stream.height, stream.pix_fmt = 1280, 720, "yuv420p"
        plain = av.VideoFrame(1280, 720, "yuv420p")
        for source, target in zip(frame.planes, plain.planes, strict=True):
            target.update(bytes(source))
        plain.pts = 0
        container.mux(stream.encode(plain))
        container.mux(stream.encode())
    seen = np.asarray(next(iter(read_frames(path, [0.0]))), dtype=int)
    assert abs(seen.mean(axis=(0, 1)) - (200, 60, 20)).max() < 5


def cut_of(path: Path, share: float, front: bool) -> Path:
    """The first `share` of a clip's bytes; front: its index comes first, so that it still opens."""
    whole = write_clip(path.with_stem("whole"), 100, 25)
    if front:
        moved = path.with_stem("moved")
        with av.open(str(whole)) as source, av.open(str(moved), "w", options={"movflags": "faststart"}) as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    target.mux(packet)
        whole = moved
    path.write_bytes(whole.read_bytes()[: int(whole.stat().st_size * share)])
    return path


def test_files_that_are_no_clips_are_named(tmp_path: Path) -> None:
    sound = tmp_path / "sound.mp4"
    with av.open(str(sound), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    (tmp_path / "text.mp4").write_text("no clip")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "broken.gif").write_bytes(b"GIF89a")
    cut_of(tmp_path / "no_index.mp4", 0.6, front=False)
    cut_of(tmp_path / "cut.mp4", 0.7, front=True)
    cut_of(tmp_path / "cut.mkv", 0.6, front=False)
    cut_of(tmp_path / "cut.avi", 0.6, front=False)
    with av.open(str(tmp_path / "none.avi"), "w", format="avi") as container:
        stream = container.add_stream("mpeg4", rate=16)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.start_encoding()
    messages = {}
    for path in sorted(tmp_path.iterdir()):
        if "whole" not in path.name and "moved" not in path.name:
            with pytest.raises(BadClip) as error:
                probe(path)
            messages[path.name] = str(error.value)
    assert "no video stream" in messages["sound.mp4"] and "empty" in messages["empty.mp4"]
    assert "no frames" in messages["none.avi"] and "known format" in messages["text.mp4"]
    assert all("cut off" in messages[name] for name in ("cut.mp4", "cut.mkv", "cut.avi"))
    assert len(messages) == 9


def test_a_format_without_a_decoder_is_named(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.mp4", 4).read_bytes()
    path = tmp_path / "unknown.mp4"
    path.write_bytes(whole.replace(b"avc1", b"xyz1"))
    with pytest.raises(BadClip, match="a format that can't be decoded here"):
        probe(path)


@pytest.mark.parametrize("name", ["late.mkv", "late.webm"])
def test_a_video_that_begins_late_is_whole(name: str, tmp_path: Path) -> None:
    times = [Fraction(3) + Fraction(number, 16) for number in range(100)]
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    path = write_clip(tmp_path / name, 100, codec=codec, times=times)
    assert probe(path).seconds == pytest.approx(100 / 16, abs=0.01) and numbers(path, [0.0, 0.5]) == [0, 8]
    # and one that is cut off is still seen as that
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.6)])
    with pytest.raises(BadClip, match="cut off"):
        probe(path)


FACTS = ClipFacts(width=64, height=48, frames=100, seconds=4.0, rate=25.0)


def rule(**changes: Any) -> ClipRule:
    return ClipRule(**{"lengths": (9,), "rate": 16.0, "geometry": GEOMETRY, **changes})


def test_each_way_of_extraction() -> None:
    assert places(64, rule(lengths=(9, 33, 81))) == [(0, 9), (0, 33)]
    assert places(30, rule(extraction="chunk")) == [(0, 9), (9, 9), (18, 9)]
    assert places(20, rule(extraction="slide", stride=5)) == [(0, 9), (5, 9), (10, 9)]
    assert places(29, rule(extraction="uniform", sample=3)) == [(0, 9), (10, 9), (20, 9)]
    assert places(29, rule(extraction="uniform")) == [(0, 9)]
    assert places(9, rule(extraction="uniform", sample=4)) == [(0, 9)]
    assert places(8, rule()) == [(0, 5)] and places(1, rule(extraction="chunk")) == [(0, 1)]
    full = rule(lengths=(81,), extraction="full")
    longer = replace(FACTS, seconds=9.0, frames=225)
    assert [cut_clip(Path("a"), each, full).windows[0].frames for each in (FACTS, longer)] == [61, 81]


@given(
    frames=st.integers(1, 400),
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    extraction=st.sampled_from(["head", "chunk", "slide", "uniform", "full"]),
    stride=st.integers(1, 50),
    sample=st.integers(1, 9),
    rate=st.floats(1, 60),
    taken=st.floats(1, 60),
)
def test_windows_lie_within_their_clip_and_have_lengths_of_the_family(
    frames: int, lengths: list[int], extraction: Any, stride: int, sample: int, rate: float, taken: float
) -> None:
    whole = tuple(sorted({GEOMETRY.whole_frames(length) for length in lengths}))
    clip_rule = rule(lengths=whole, extraction=extraction, stride=stride, sample=sample, rate=taken)
    seen = replace(FACTS, frames=frames, rate=rate, seconds=frames / rate)
    clip = cut_clip(Path("a.mp4"), seen, clip_rule)
    assert clip.windows and len(set(clip.windows)) == len(clip.windows)
    for window in clip.windows:
        assert window.start >= 0 and (window.frames - 1) % 4 == 0 and window.frames <= max(whole)
        # the last frame begins before the clip ends
        assert window.start + (window.frames - 1) / window.rate < seen.seconds + 1e-6 or window.frames == 1
    assert 0 < clip.used <= clip.seconds + 1e-6 and clip.used + clip.dropped == pytest.approx(clip.seconds)
    assert clip.too_short == (all(length > clip.frames for length in whole) and extraction != "full")


def test_rates_near_the_one_asked_for_are_taken_frame_by_frame_and_others_by_time(tmp_path: Path) -> None:
    film = replace(FACTS, rate=23.976, frames=100, seconds=100 / 23.976)
    assert rate_within(film, rule(rate=24.0)) == 23.976 and frames_within(film, 23.976) == 100
    assert rate_within(FACTS, rule()) == 16.0 and frames_within(FACTS, 16.0) == 64
    path = write_clip(tmp_path / "fast.mp4", 24, 24)
    clip = cut_clip(path, probe(path), rule(rate=8.0))
    (window,) = clip.windows
    assert clip.frames == 8 and window.frames == 5 and clip.too_short
    assert numbers(path, [window.start + k / window.rate for k in range(window.frames)]) == [0, 3, 6, 9, 12]


def test_a_stated_source_rate_takes_the_place_of_the_files_own(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "slow.mp4", 20, 8)
    seen = probe(path)
    (window,) = cut_clip(path, seen, rule(source_rate=32.0)).windows
    # said to be 32 a second and taken at 16: every second frame
    assert numbers(path, [window.start + k / window.rate for k in range(window.frames)]) == list(range(0, 18, 2))
    assert cut_clip(path, seen, rule(source_rate=16.0)).windows[0].rate == seen.rate


def test_the_rule_of_a_run_comes_from_its_settings(family: None) -> None:
    def of(**video: Any) -> ClipRule:
        clip_rule = ClipRule.of(Config.model_validate({"model": {"family": "clips"}, "video": video}))
        assert clip_rule is not None
        return clip_rule

    assert (of().lengths, of().rate, of().extraction) == ((9,), 16.0, "head")
    assert of(target_frames=[80, 33, 78]).lengths == (33, 77) and of(target_fps=24.0).rate == 24.0
    assert of(frame_extraction="full", max_frames=50).lengths == (49,)
    run_rule = of(frame_stride=3, frame_sample=2, source_fps=30.0, frame_extraction="slide")
    assert (run_rule.stride, run_rule.sample, run_rule.source_rate) == (3, 2, 30.0)
    assert ClipRule.of(Config()) is None
