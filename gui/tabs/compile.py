"""Draws the Compile tab: Torch Compile Settings, the shape plan, and whether this machine can compile at all."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of compile."""
    draw_group("compile", widgets, slots=("profile-note", "payback-note"))
    panel("Shape plan", "plan-root")
    panel("This machine", "doctor-root")
    panel("Compile cache", "cache-root", "Compiled kernels are kept, so that the next start takes seconds.")
