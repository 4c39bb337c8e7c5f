"""Draws the Training tab: length, optimizer, timesteps and saving, with plots of learning rate and timesteps."""

from __future__ import annotations

from gui.fields import Widgets, draw_group, panel


def draw(widgets: Widgets) -> None:
    """Draw the tab. Adds to ``widgets``: the settings of training, optimizer, timesteps, loss, saving and logging."""
    draw_group("training", widgets)
    panel(
        "Finish time",
        "finish-root",
        "Trains these settings for about 20 seconds and tells when the run will end. Caches that it fills are kept.",
    )
    panel(
        "Tune",
        "tune-root",
        "Tries other settings for speed and memory in short trainings, one at a time, and tells with which this run "
        "ends soonest. What is learnt stays the same. Stop keeps the best so far.",
        opened=False,
    )
    draw_group("optimizer", widgets, slots=("lr-plot",))
    draw_group("timesteps", widgets, slots=("timesteps-plot",))
    draw_group("loss", widgets)
    draw_group("saving", widgets)
    draw_group("metadata", widgets)
    draw_group("logging", widgets)
