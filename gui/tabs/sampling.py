"""The Sampling tab: prompts to draw during training, and what is measured beside it."""

from __future__ import annotations

from gui.fields import Widgets, draw_group


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of sampling and validation."""
    draw_group("sampling", widgets)
    draw_group("validation", widgets)
