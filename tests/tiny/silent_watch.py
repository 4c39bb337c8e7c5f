"""A preview's watch for tests, which need no progress."""

from __future__ import annotations


class Silent:
    """Reports to nobody."""

    def phase(self, name: str, total: int | None = None) -> None:
        """As `Watch`."""

    def advance(self) -> None:
        """As `Watch`."""

    def note(self, text: str) -> None:
        """As `Watch`."""
