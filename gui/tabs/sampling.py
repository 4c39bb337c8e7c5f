"""Draws the Sampling tab: sample prompts, and validation loss."""

from __future__ import annotations

from gui.fields import Widgets, draw_group


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of sampling and validation."""
    draw_group("sampling", widgets)
    draw_group("validation", widgets)
