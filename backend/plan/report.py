"""The plan for people and for the page: lines, a rich table, and plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from backend.dataset.items import count_of

if TYPE_CHECKING:
    from backend.plan.plan import Plan

# What is listed in the page's document and the terminal; the counts are always whole.
_MOST_BUCKETS = 200
_MOST_FILES = 20
_SHOWN_BUCKETS = 40


def plan_lines(plan: Plan) -> list[str]:
    """The plan as plain lines, for a log."""
    chosen = plan.chosen
    lines = [plan.steps.sentence()]
    if chosen.impossible is not None:
        lines.append(f"shape mode {plan.mode}: {chosen.impossible}")
    else:
        padded = f", {chosen.padding:.1%} padding to {chosen.static_token_count}" if chosen.static_token_count else ""
        lines.append(f"shape mode {mode_words(plan)}: {chosen.crop:.1%} mean cropping{padded}")
        lines.append(graph_words(plan))
    lines += [
        f"  {row['width']}x{row['height']}: {row['entries']} ({row['tokens']} tokens)" for row in bucket_rows(plan)
    ]
    lines.append(f"recommended: {plan.recommended}. {plan.reason}")
    return lines + [f"{finding.severity}: {finding.sentence()}" for finding in plan.findings]


def mode_words(plan: Plan) -> str:
    """The shape mode, and that auto took it."""
    return f"{plan.mode} (auto)" if plan.mode_by_family else plan.mode


def graph_words(plan: Plan) -> str:
    """The graphs of the chosen mode, the text tokens in them, and the recompile limit they need."""
    if not plan.compile:
        return "compile is off: no graphs"
    texts = sorted({s.text_tokens for s in (*plan.graphs.training, *plan.graphs.validation, *plan.graphs.sampling)})
    text = f"text tokens {', '.join(map(str, texts))}; " if texts else ""
    pieces = "each in pieces, since linear layers are left out; " if plan.linear_out else ""
    needed = "" if plan.set_limit is None else f" as set (the plan needs {plan.needed_limit})"
    return f"{plan.graphs.words()}; {pieces}{text}recompile limit {plan.recompile_limit}{needed}"


def bucket_rows(plan: Plan, most: int = _MOST_BUCKETS) -> list[dict[str, int]]:
    """Buckets in use, the fullest first: size in px, image tokens, pictures, entries (with repeats), padding tokens."""
    pictures: Counter[Any] = Counter()
    entries: Counter[Any] = Counter()
    for item, fit in zip(plan.items, plan.fits, strict=False):
        pictures[fit.bucket] += 1
        entries[fit.bucket] += item.repeats
    static = plan.chosen.static_token_count
    ordered = sorted(pictures, key=lambda bucket: (-entries[bucket], bucket))
    return [
        {
            "width": bucket.width,
            "height": bucket.height,
            "tokens": bucket.tokens,
            "images": pictures[bucket],
            "entries": entries[bucket],
            "padding": max(0, static - bucket.tokens) if static else 0,
        }
        for bucket in ordered[:most]
    ]


def plan_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, a few dozen KB at most: lists of files and buckets are cut, with their counts."""
    graphs = plan.graphs
    return {
        "mode": plan.mode,
        "mode_by_family": plan.mode_by_family,
        "compile": plan.compile,
        "static_token_count": plan.static_token_count,
        "text_length": plan.text_length,
        "caption_buckets": list(plan.caption_buckets) if plan.caption_buckets else None,
        "batch_size": plan.batch_size,
        "validation_batch": plan.validation_batch,
        "images": len(plan.items),
        "validation": {name: len(items) for name, items in plan.validation.items()},
        "steps": plan.steps.to_dict(),
        "buckets": bucket_rows(plan),
        "groups": [
            {"name": g.name, "entries": g.entries, "used": g.used, "batches": g.batches, "left": g.left}
            for g in plan.steps.groups[:_MOST_BUCKETS]
        ],
        "graphs": {
            "planned": plan.planned_graphs,
            "per_class": graphs.per_class,
            "training": graphs.training_graphs,
            "no_grad": graphs.no_grad_graphs,
            "classes": graphs.classes,
            "recompile_limit": plan.recompile_limit,
            "words": graphs.words(),
            "unpadded": graphs.unpadded,
            "shapes": {
                kind: [vars(shape).copy() for shape in shapes[:_MOST_BUCKETS]]
                for kind, shapes in (
                    ("training", graphs.training),
                    ("validation", graphs.validation),
                    ("sampling", graphs.sampling),
                )
            },
        },
        "modes": [mode.to_dict() for mode in plan.modes.values()],
        "recommended": plan.recommended,
        "reason": plan.reason,
        "findings": [finding.to_dict(_MOST_FILES) for finding in plan.findings],
    }


def render(plan: Plan) -> RenderableType:
    """The plan for a terminal."""
    parts: list[RenderableType] = [Text(plan.steps.sentence(), style="bold"), _buckets(plan), _modes(plan)]
    if plan.chosen.impossible is None:
        parts.append(Text(graph_words(plan)))
    parts.append(Text(f"Recommended: {plan.recommended}. {plan.reason}"))
    styles = {"error": "red", "warning": "yellow", "note": "dim"}
    parts += [Text(f"{f.severity}: {f.sentence()}", style=styles[f.severity]) for f in plan.findings]
    return Stack(*parts)


def _buckets(plan: Plan) -> Table:
    rows = bucket_rows(plan, _SHOWN_BUCKETS)
    more = plan.steps.buckets - len(rows)
    table = Table(title="Buckets", caption=f"and {count_of(more, 'bucket')} more" if more > 0 else None)
    for column in ("size", "tokens", "pictures", "per epoch", "padding"):
        table.add_column(column, justify="right")
    for row in rows:
        padding = f"{row['padding'] / (row['tokens'] + row['padding']):.1%}" if row["padding"] else "-"
        size = f"{row['width']}x{row['height']}"
        table.add_row(size, str(row["tokens"]), f"{row['images']:,}", f"{row['entries']:,}", padding)
    return table


def _modes(plan: Plan) -> Table:
    table = Table(title="Shape modes", caption=None if plan.compile else "compile is off: no graphs are made")
    for column in ("mode", "graphs", "training", "no gradient", "batches", "left out", "never", "padding", "cropping"):
        table.add_column(column, justify="left" if column == "mode" else "right")
    for mode in plan.modes.values():
        name = f"> {mode.mode}" if mode.mode == plan.mode else f"  {mode.mode}"
        if mode.impossible is not None:
            table.add_row(name, "-", "-", "-", "-", "-", "-", "-", "-")
            continue
        table.add_row(
            name,
            str(mode.graphs.total),
            str(mode.graphs.training_graphs),
            str(mode.graphs.no_grad_graphs),
            f"{mode.steps.batches_per_epoch:,}",
            f"{mode.steps.left_per_epoch:,}",
            f"{len(mode.never):,}",
            f"{mode.padding:.1%}",
            f"{mode.crop:.1%}",
            style="bold" if mode.mode == plan.mode else None,
        )
    return table
