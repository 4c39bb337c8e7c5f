"""Compares what others publish about compiled training with what was measured here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from backend.bench.clip_table import sizes_of
from backend.bench.record import default_of
from backend.bench.sizes import SIZES
from backend.bench.variants import VARIANTS

if TYPE_CHECKING:
    from backend.bench.groups import Group, Row

# Milliseconds a step of musubi-tuner's compiled FLUX on this work (4 + 8 blocks at FLUX's widths, rank 32, batch 1,
# 4096 image and 512 text tokens, one H100), with and without checkpointing; and how much faster we aim to be.
MUSUBI = {True: 137.0, False: 102.0}
AIM = 1.25

# The same of musubi-tuner's compiled Wan on one H200 (4 blocks at 14B's widths, rank 32, batch 1, checkpointing, SDPA):
# as fast as eager, since the length that each block reads back leaves no graph.
MUSUBI_CLIPS = {"832x480x81": 1881.0, "832x480x49": 914.0}

# What users of musubi-tuner report (Kontext, Qwen-Image, HunyuanVideo, FramePack) and is expected of sd-scripts (SDXL),
# by size of ours.
REPORTED = {
    "kontext": "25-40 % faster, with max-autotune",
    "qwen": "15-30 % faster",
    "sdxl": "10-40 % faster (expected)",
    "hunyuan": "20-35 % faster, with reduce-overhead",
    "framepack": "30-45 % faster",
}


def others(groups: Sequence[Group]) -> str:
    """Lines of text, each a paragraph; empty where nothing of this work is known of others."""
    return "".join(f"\n{line}\n" for line in (*_musubi(groups), *_musubi_clips(groups), *_reported(groups)))


def _musubi(groups: Sequence[Group]) -> Iterator[str]:
    """Our best exact variant and musubi-tuner's compiled FLUX, a line for checkpointing on and off."""
    for checkpointing, theirs in MUSUBI.items():
        ours = [group for group in groups if group.checkpointing is checkpointing and _on_their_work(group)]
        measured = _fastest(ours)
        if measured:
            seconds, best = measured
            yield (
                f"vs musubi, checkpointing {_on(checkpointing)}: {best.name()} takes {1000 * seconds:.1f} ms "
                f"a step, musubi-tuner's compiled FLUX {theirs:.0f} ms: {theirs / 1000 / seconds:.2f} x "
                f"(the aim is {AIM} x)."
            )


def _on_their_work(group: Group) -> bool:
    row = group.rows[0]
    names = ("layers", "rank", "batch", "captions", "memory_budget", "base_quantization", "base_compute")
    plain = all((row[name] or default_of(name)) == default_of(name) for name in names)
    # Selective checkpointing keeps more than the blocks' inputs: not the same trade.
    plain = plain and row["checkpointing_kind"] in ("", "block", "auto")
    return row["size"] == "flux" and plain and _offered(group) and "H100" in row["device"]


def _musubi_clips(groups: Sequence[Group]) -> Iterator[str]:
    """Our best exact variant at each clip size that musubi-tuner's compiled Wan was measured at."""
    ours = [group for group in groups if group.checkpointing and _on_their_clips(group)]
    for name, theirs in MUSUBI_CLIPS.items():
        measured = [(sizes_of(group, "bucket_ms").get(name), group) for group in ours]
        times = [(milliseconds, group) for milliseconds, group in measured if milliseconds]
        if times:
            milliseconds, best = min(times, key=lambda pair: pair[0])
            yield (
                f"vs musubi at {name}: {best.name()} takes {milliseconds:.0f} ms a step, musubi-tuner's compiled Wan "
                f"{theirs:.0f} ms: {theirs / milliseconds:.2f} x."
            )


def _on_their_clips(group: Group) -> bool:
    row = group.rows[0]
    plain = all((row[name] or default_of(name)) == default_of(name) for name in _THEIRS)
    plain = plain and row["checkpointing_kind"] in ("", "block", "auto") and _blocks(row) == "4"
    return row["size"].startswith("wan") and plain and _offered(group) and "H200" in row["device"]


_THEIRS = ("rank", "batch", "captions", "memory_budget", "base_quantization", "base_compute")


def _blocks(row: Row) -> str:
    return row["layers"] or " ".join(map(str, SIZES[row["size"]].layers))


def _reported(groups: Sequence[Group]) -> Iterator[str]:
    """What our best exact variant gains over eager on the same work, and what is reported for the family elsewhere."""
    for (size, checkpointing), gain in {(s, c): gain for s, gain in REPORTED.items() for c in (True, False)}.items():
        here = [g for g in groups if g.checkpointing is checkpointing and g.rows[0]["size"] == size]
        measured = _fastest([group for group in here if _offered(group)])
        base = measured and _fastest([g for g in here if g.plain and _work(g) == _work(measured[1])])
        if measured and base:
            seconds, best = measured
            yield (
                f"Compared with others, checkpointing {_on(checkpointing)}: {best.name()} is "
                f"{100 * (base[0] / seconds - 1):.0f} % faster than eager ({1000 * seconds:.1f} and "
                f"{1000 * base[0]:.1f} ms a step); reported elsewhere, on other GPUs and programs: {gain}."
            )


def _work(group: Group) -> list[str]:
    return [group.rows[0][name] or default_of(name) for name in _WORK]


_WORK = ("layers", "rank", "batch", "captions", "clips", "base_quantization", "swap")


def _fastest(groups: Sequence[Group]) -> tuple[float, Group] | None:
    measured = [(seconds, group) for group in groups if (seconds := group.median("s_per_step"))]
    return min(measured, key=lambda pair: pair[0], default=None)


def _offered(group: Group) -> bool:
    """Compiled and exact: what a person would train with."""
    row = VARIANTS.get(group.variant)
    exact = row is not None and row.exact and group.rows[0]["base_compute"] in ("", "bf16")
    return exact and row.compile is not None and not row.plain_forward


def _on(checkpointing: bool) -> str:
    return "on" if checkpointing else "off"
