"""Lists rules about the frames of clips."""

from __future__ import annotations

from backend.config.rules.rule import Rule, no_effect, repeated

_KIND = "video.frame_extraction"

VIDEO_RULES: tuple[Rule, ...] = (
    no_effect("video.frame_stride", _KIND, ("slide",), "only slide takes pieces that overlap"),
    no_effect("video.frame_sample", _KIND, ("uniform",), "only uniform takes a set number of pieces from each video"),
    no_effect("video.max_frames", _KIND, ("full",), "only full takes whole videos"),
    Rule(
        ("video.target_frames", _KIND),
        lambda lengths, kind: bool(lengths) and kind == "full",
        "target_frames has no effect: full takes whole videos",
        "Set video.max_frames in its place, or choose another frame_extraction",
        "warning",
    ),
    Rule(
        ("video.target_frames",),
        lambda lengths: bool(repeated(list(map(str, lengths)))),
        "target_frames names the same length twice; it is used once",
        "Remove one of them",
        "warning",
    ),
)
