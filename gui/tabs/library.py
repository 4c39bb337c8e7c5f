"""Draws the Library tab: a place for ``assets/js/library_tab.js``, which lists finished runs and their LoRA files."""

from __future__ import annotations

from gui.fields import Widgets, slot


def draw(widgets: Widgets) -> None:
    """Draw the tab. It has no settings."""
    slot("library-root")
