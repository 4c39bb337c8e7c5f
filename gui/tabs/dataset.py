"""Draws the Dataset tab: folders, captions, and the dataset scan."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of the dataset, of captions, masks and clips."""
    draw_group("dataset", widgets)
    for key in ("captions", "masks", "augmentation"):
        draw_group(key, widgets)
    draw_group("video", widgets)
    panel("Dataset scan", "scan-root")
    panel("Captions by a model", "captioning-root", opened=False)
