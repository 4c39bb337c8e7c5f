"""The Dataset tab: folders and captions, and a look at the pictures with the shape plan that follows from them."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of the data set."""
    draw_group("dataset", widgets)
    panel("The images", "look-root")
