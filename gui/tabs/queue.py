"""Draws the Queue tab: a place for ``assets/js/queue_tab.js``, which asks `gui.queue_routes` for the list."""

from __future__ import annotations

from gui.fields import Widgets, slot


def draw(widgets: Widgets) -> None:
    """Draw the tab. It has no settings: a queued run keeps its own."""
    slot("queue-root")
