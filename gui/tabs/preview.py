"""Draws the Preview tab: a place for ``assets/js/preview_tab.js``, which asks `gui.preview_routes` for pictures."""

from __future__ import annotations

from gui.fields import Widgets, slot


def draw(widgets: Widgets) -> None:
    """Draw the tab. It has no settings: what is drawn is no part of a run."""
    slot("preview-root")
