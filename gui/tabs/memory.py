"""The Memory tab: precision and checkpointing, beside what this machine has and what the model weighs."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings that trade memory for time."""
    draw_group("memory", widgets)
    panel("What there is", "memory-root")
