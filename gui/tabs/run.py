"""Draws the Run tab: a place for ``assets/js/run_tab.js``, which reads runs by the routes of ``gui.run_routes``."""

from __future__ import annotations

from gui.fields import Widgets, slot


def draw(widgets: Widgets) -> None:
    """Draw the tab. It has no settings: a run is read from its folder, whoever started it."""
    slot("run-root")
