"""Declares [video]: which frames of a clip are trained on, of families that make clips."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from backend.config.declare import Section, setting

FrameExtraction = Literal["head", "chunk", "slide", "uniform", "full"]

_Frames = Annotated[int, Field(ge=1, le=10_000)]


class VideoSection(Section):
    """Which frames of each clip are trained on. Pictures are clips of one frame, and need none of this."""

    target_frames: list[_Frames] = setting(
        list,
        unit="frames",
        label="Clip lengths",
        help="How many frames a training clip has. With several lengths each video gives clips of every length that "
        "fits into it. Wan and HunyuanVideo take lengths of 4n+1 (1, 5, 9, ... 49, 81), FramePack of 36n+1 (37, 73); "
        "other lengths are rounded down. Empty: the model's own length: 81 for Wan, 121 for Wan 2.2 5B, 129 for "
        "HunyuanVideo, 37 for FramePack. Memory and time grow with the length. 33 is often enough to learn a "
        "character or a style.",
        aliases=("num_frames", "video_length", "clip_length", "frame_buckets"),
        basic=True,
    )
    frame_extraction: FrameExtraction = setting(
        "head",
        label="Frame extraction",
        help="Which part of a video is used. head: its beginning. chunk: one piece after the other, to the end. slide: "
        "pieces that overlap, one every frame stride. uniform: some pieces spread evenly. full: all of it as one "
        "clip, up to the maximum. The scan lists how many seconds of each video are used and left out.",
        aliases=("frame_extraction_method", "clip_mode"),
        basic=True,
    )
    frame_stride: int = setting(
        1,
        ge=1,
        le=10_000,
        unit="frames",
        label="Frame stride",
        help="For slide: frames from the start of one piece to the start of the next one. A small stride gives many "
        "nearly equal clips.",
        aliases=("window_stride",),
    )
    frame_sample: int = setting(
        1,
        ge=1,
        le=1000,
        unit="clips",
        label="Clips per video",
        help="For uniform: how many pieces are taken from each video, for each length.",
        aliases=("clips_per_video", "num_samples_per_video"),
    )
    max_frames: int = setting(
        129,
        ge=1,
        le=10_000,
        unit="frames",
        label="Maximum frames",
        help="For full: the longest clip. What a video has beyond it is left out, and listed.",
        aliases=("max_num_frames", "max_clip_frames"),
    )
    target_fps: float | None = setting(
        None,
        gt=0,
        le=240,
        unit="fps",
        label="Target frame rate",
        help="Frames per second taken from each video, by their time stamps, so that motion keeps its speed. "
        "Empty: the rate that the model was trained at: 16 for Wan, 24 for Wan 2.2 5B and "
        "HunyuanVideo, 30 for FramePack.",
        aliases=("framerate", "video_fps"),
        advanced=True,
    )
    source_fps: float | None = setting(
        None,
        gt=0,
        le=1000,
        unit="fps",
        label="Source frame rate",
        help="Only for files that state a wrong rate: each file is then read as having this many frames a second. "
        "Empty: the rate of each file is read from it, and files of different rates can be mixed.",
        aliases=("input_fps", "original_fps"),
        advanced=True,
    )
