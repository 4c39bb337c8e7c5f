"""Puts into words what a scan makes of clips: what is cut, repeated, too short, or timed in another way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from backend.dataset.items import ClipReport, Finding, Item, count_of, name_files
from backend.dataset.windows import ClipRule

_LENGTHS = "video.target_frames"


def findings(clips: Sequence[ClipReport], rule: ClipRule) -> Iterator[Finding]:
    """All there is to say about the clips of a scan; `files` of each finding are the clips that it is about."""
    if clips:
        yield from _lengths(rule)
        yield from _short(clips, rule)
        yield from _left_out(clips, rule)
        yield from _rates(clips, rule)
        yield from _colours(clips)


def too_few(items: Sequence[Item], rule: ClipRule) -> Iterator[Finding]:
    """Pictures, and clips that are shorter than the family's shortest: it can't be trained on them."""
    few = [item for item in items if item.frames < rule.least]
    if few:
        names = tuple(str(item.path) for item in few)
        text = (
            f"This model can't be trained on pictures and clips of fewer than {rule.least} frames "
            f"at {rule.rate:g} fps: {name_files(names)}"
        )
        yield Finding("clip_too_few", "error", text, "Remove them, or use longer clips.", names, "dataset.folders")


def _lengths(rule: ClipRule) -> Iterator[Finding]:
    rounded = [length for length in rule.asked if rule.geometry.whole_frames(length) != length]
    if rounded:
        pairs = ", ".join(f"{length} becomes {rule.geometry.whole_frames(length)}" for length in rounded)
        setting = "video.max_frames" if rule.extraction == "full" else _LENGTHS
        text = f"The model takes clips of {rule.geometry.clip_step} n + 1 frames: {pairs}"
        yield Finding("clip_length", "note", text, "", (), setting)


def _short(clips: Sequence[ClipReport], rule: ClipRule) -> Iterator[Finding]:
    short = [clip for clip in clips if clip.too_short]
    if short:
        words = _named(short, lambda clip: f"{clip.frames} frames, {clip.windows[0].frames} taken")
        fewest = rule.lengths[0]
        text = f"{count_of(len(short), 'clip')} shorter than {count_of(fewest, 'frame')} at {rule.rate:g} fps: {words}"
        remedy = "Each is trained at the longest length that fits it; remove those that are too short to use."
        yield Finding("clip_short", "warning", text, remedy, _paths(short), _LENGTHS)
    some = [clip for clip in clips if clip.too_long]
    if some:
        words = _named(some, lambda clip: f"not {', '.join(map(str, clip.too_long))} of {clip.frames} frames")
        text = f"{count_of(len(some), 'clip')} too short for some of the lengths: {words}"
        yield Finding("clip_lengths_left", "note", text, "", _paths(some), _LENGTHS)


def _left_out(clips: Sequence[ClipReport], rule: ClipRule) -> Iterator[Finding]:
    used, whole = sum(clip.used for clip in clips), sum(clip.seconds for clip in clips)
    # less than a frame is no loss that a setting could end
    cut = [clip for clip in clips if clip.dropped > 1 / min(clip.windows[0].rate, clip.rate)]
    text = f"{used:.1f} of {whole:.1f} seconds of video are used, in {count_of(_windows(clips), 'window')}"
    remedy = ""
    if cut:
        text += f"; left out: {_named(cut, lambda clip: f'{clip.dropped:.1f} of {clip.seconds:.1f} s')}"
        remedy = _remedy(cut, rule)
    yield Finding("clip_seconds", "note", text, remedy, _paths(cut), "video.frame_extraction")


def _remedy(cut: Sequence[ClipReport], rule: ClipRule) -> str:
    if rule.extraction == "full":
        beyond = any(rule.geometry.whole_frames(clip.frames) > rule.lengths[-1] for clip in cut)
        return "Raise max_frames to use more of the longest." if beyond else ""
    return {
        "head": "Set frame_extraction to chunk, uniform or full to use more than the beginnings.",
        "chunk": "Add a shorter length to target_frames to use more of the ends.",
        "uniform": "Raise frame_sample to use more of them.",
    }.get(rule.extraction, "")


def _windows(clips: Sequence[ClipReport]) -> int:
    return sum(len(clip.windows) for clip in clips)


def _rates(clips: Sequence[ClipReport], rule: ClipRule) -> Iterator[Finding]:
    repeated = [clip for clip in clips if clip.repeated]
    if repeated:
        text = f"{count_of(len(repeated), 'clip')} of fewer frames a second than are taken ({rule.rate:g}): "
        text += _named(repeated, lambda clip: f"{clip.rate:.4g} fps")
        remedy = "Frames are shown more than once, and motion stutters; use videos of a higher rate if you have them."
        yield Finding("clip_repeats", "warning", text, remedy, _paths(repeated), "video.target_fps")
    retimed = [clip for clip in clips if clip.retimed and not clip.repeated]
    if retimed:
        text = f"{count_of(len(retimed), 'clip')} brought to {rule.rate:g} fps by leaving out frames: "
        text += _named(retimed, lambda clip: f"{clip.rate:.4g} fps")
        yield Finding("clip_retimed", "note", text, "", _paths(retimed), "video.target_fps")
    variable = [clip for clip in clips if clip.variable]
    if variable:
        text = f"{count_of(len(variable), 'clip')} with a variable frame rate, whose frames are taken by their times: "
        text += _named(variable, lambda clip: f"{clip.rate:.4g} fps on average")
        remedy = "source_fps changes their average rate." if rule.source_rate else ""
        yield Finding("clip_variable", "note", text, remedy, _paths(variable), "video.source_fps")


def _colours(clips: Sequence[ClipReport]) -> Iterator[Finding]:
    bright = [clip for clip in clips if clip.hdr]
    if bright:
        text = f"{count_of(len(bright), 'clip')} with HDR colours: {_named(bright)}"
        remedy = "They look pale as they are; convert them to SDR (BT.709) first."
        yield Finding("clip_hdr", "warning", text, remedy, _paths(bright))
    deep = [clip for clip in clips if clip.bits > 8 and not clip.hdr]
    if deep:
        text = f"{count_of(len(deep), 'clip')} with more than 8 bits a colour, rounded to 8: "
        text += _named(deep, lambda clip: f"{clip.bits} bits")
        yield Finding("clip_deep", "note", text, "", _paths(deep))


def _named(clips: Sequence[ClipReport], words: Callable[[ClipReport], str] | None = None) -> str:
    names = [Path(clip.path).name for clip in clips]
    return name_files([f"{name} ({words(clip)})" if words else name for name, clip in zip(names, clips, strict=True)])


def _paths(clips: Sequence[ClipReport]) -> tuple[str, ...]:
    return tuple(clip.path for clip in clips)
