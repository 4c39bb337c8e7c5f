"""What is being computed right now, so that telemetry can say why a graph was made, in the person's words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scene:
    """Sizes of the forward that is running: rows, padded image and text tokens a row, and whether a mask is used."""

    batch: int
    image_tokens: int
    text_tokens: int
    masked: bool = False


_current: Scene | None = None


def set_scene(scene: Scene) -> None:
    """Called by the shape runtime at each forward. Global on purpose: a recompute runs in an autograd thread."""
    global _current  # noqa: PLW0603 - one process computes one thing
    _current = scene


def scene() -> Scene | None:
    """The scene of the latest forward; None before the first."""
    return _current
