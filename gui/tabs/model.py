"""The Model tab: what the LoRA is trained on, what is in that folder, and how large the LoRA is."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of the model and of the network."""
    draw_group("model", widgets)
    panel("What is in the folder", "model-root")
    draw_group("network", widgets)
