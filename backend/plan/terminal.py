"""Shows the plan in a terminal: tables of buckets and shape modes, with the findings below."""

from __future__ import annotations

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from backend.dataset.items import count_of
from backend.plan.plan import Plan, size_of

_SHOWN_BUCKETS = 40


def render(plan: Plan) -> RenderableType:
    """The plan for a terminal."""
    parts: list[RenderableType] = [Text(plan.steps.sentence(), style="bold"), _buckets(plan), _modes(plan)]
    if plan.footage is not None:
        parts.insert(1, Text(plan.footage.words()))
    if plan.chosen.impossible is None:
        parts.append(Text(plan.graph_words()))
    parts.append(Text(f"Recommended: {plan.recommended}. {plan.reason}"))
    styles = {"error": "red", "warning": "yellow", "note": "dim"}
    parts += [Text(f"{f.severity}: {f.sentence()}", style=styles[f.severity]) for f in plan.findings]
    return Stack(*parts)


def _buckets(plan: Plan) -> Table:
    rows = plan.bucket_rows(_SHOWN_BUCKETS)
    more = plan.steps.buckets - len(rows)
    table = Table(title="Buckets", caption=f"and {count_of(more, 'bucket')} more" if more > 0 else None)
    video = ("video",) if plan.footage is not None else ()
    for column in ("size", "tokens", "clips" if video else "pictures", "per epoch", "padding", *video):
        table.add_column(column, justify="right")
    for row in rows:
        padding = f"{row['padding'] / (row['tokens'] + row['padding']):.1%}" if row["padding"] else "-"
        seconds = [f"{row['seconds']:,.1f} s" if "seconds" in row else "-"] if video else []
        table.add_row(size_of(row), str(row["tokens"]), f"{row['images']:,}", f"{row['entries']:,}", padding, *seconds)
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
