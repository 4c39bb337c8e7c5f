"""Draws the Memory tab: whether the run fits, the settings that trade memory for time, and what this machine has."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings that trade memory for time."""
    panel("Memory estimate", "estimate-root")
    draw_group("memory", widgets)
    panel("This machine", "memory-root")
