"""Writes the table of 8-bit products: each compared with bf16 of the same variant in the same record."""

from __future__ import annotations

from collections.abc import Sequence

from backend.bench.groups import Group
from backend.bench.markdown import markdown, shown

_HEADER = ("variant", "checkpointing", "ms a step", "times bf16", "weights GB", "peak GB", "loss", "loss apart")


def products_table(measured: Sequence[Group], same: Sequence[str]) -> str:
    """A line for each group with 8-bit products and for the bf16 beside it; empty without products.

    Times bf16 is how many times as fast; apart is the mean loss's difference, in percent of bf16's. same: settings that
    all rows share.
    """
    plain = {_work(group): group for group in measured if not _is_8_bit(group) and group.good}
    works = {_work(group) for group in measured if _is_8_bit(group) and group.good}
    if not works:
        return ""
    lines = []
    for group in measured:
        base = plain.get(_work(group))
        if not group.good or _work(group) not in works:
            continue
        seconds, loss = group.median("s_per_step"), group.median("loss")
        ours, theirs = (base.median("s_per_step"), base.median("loss")) if base else (None, None)
        lines.append(
            [
                group.name(same),
                "on" if group.checkpointing else "off",
                shown(None if seconds is None else 1000 * seconds, 1),
                shown(None if not seconds or not ours else ours / seconds, 2),
                shown(group.median("weights_gb"), 2),
                shown(group.median("peak_gb"), 2),
                shown(loss, 5),
                shown(None if loss is None or not theirs else 100 * (loss / theirs - 1), 3, " %"),
            ]
        )
    return "\n" + markdown(_HEADER, lines)


def _is_8_bit(group: Group) -> bool:
    return group.rows[0]["base_compute"] not in ("", "bf16")


def _work(group: Group) -> tuple[str, ...]:
    """What a group shares with the bf16 that it is compared with."""
    names = ("variant", "checkpointing", "checkpointing_kind", "size", "layers", "rank", "batch", "captions", "clips",
             "backend", "compile_mode", "memory_budget", "autocast", "lora_dtype", "fused_lora", "swap",
             "disable_linear", "cuda_graphs", "steps")  # fmt: skip
    return tuple(group.rows[0][name] for name in names)
