"""Groups a record's rows by variant and settings, with medians over the repetitions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from backend.bench.record import default_of, words
from backend.bench.variants import SETTINGS

Row = dict[str, str]

_KEY = ("variant", "checkpointing", *SETTINGS)


@dataclass(frozen=True)
class Group:
    """All repetitions of one variant and setting."""

    variant: str
    checkpointing: bool
    rows: tuple[Row, ...]

    @property
    def good(self) -> list[Row]:
        return [row for row in self.rows if row["ok"] == "1"]

    @property
    def like(self) -> tuple[str, ...]:
        """What an eager run must share to be comparable: the work, not how it is compiled."""
        of_the_way = ("backend", "compile_mode", "memory_budget", "fused_lora", "cuda_graphs", "base_products")
        names = [name for name in SETTINGS if name not in of_the_way]
        return tuple(self.rows[0][name] or default_of(name) for name in names)

    @property
    def plain(self) -> bool:
        """Whether this is what the others are compared with: eager, kernel by kernel."""
        return self.variant == "eager" and self.rows[0]["cuda_graphs"] in ("", "0")

    @property
    def unswapped(self) -> tuple[str, ...]:
        """What the same run without swapped blocks shares with this one."""
        names = [name for name in _KEY if name not in ("swap", "swap_ring", "disable_linear")]
        return tuple(self.rows[0][name] or default_of(name) for name in names)

    def median(self, column: str, keep: Callable[[Row], bool] = lambda row: True) -> float | None:
        """Median of a column over the repetitions that measured it."""
        values = [float(row[column]) for row in self.good if row[column] and keep(row)]
        return statistics.median(values) if values else None

    def settings(self, leave_out: Sequence[str] = ()) -> str:
        """What differs from the bench's defaults, for the variant's name."""
        return words(self.rows[0], leave_out)

    def name(self, leave_out: Sequence[str] = ()) -> str:
        """The variant with its settings, those in `leave_out` left out."""
        settings = self.settings(leave_out)
        return f"{self.variant} ({settings})" if settings else self.variant


def groups(rows: Iterable[Row]) -> list[Group]:
    """Rows by variant and settings, in the order of their first row."""
    members_of: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        members_of.setdefault(tuple(row[name] or default_of(name) for name in _KEY), []).append(row)
    return [Group(key[0], key[1] == "1", tuple(members)) for key, members in members_of.items()]
