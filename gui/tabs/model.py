"""Draws the Model tab: the base model, its check, and the LoRA network."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of the model and of the network."""
    draw_group("model", widgets)
    panel("Model check", "model-root")
    draw_group("parts", widgets)
    for key in ("network", "layers", "restraint", "earlier"):
        draw_group(key, widgets)
