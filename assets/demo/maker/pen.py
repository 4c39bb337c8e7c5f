"""A pen that draws outlined shapes in picture units, so that a thing looks the same at every picture size.

One unit is 1/256 of the side of the square with the picture's area. Shapes are drawn at twice the size and reduced,
which is what smooths their edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

OVERSAMPLING = 2
INK = (38, 34, 48)
INK_WIDTH = 3.2
Colour = tuple[int, int, int]
Point = tuple[float, float]

COLOURS: dict[str, Colour] = {
    "red": (220, 40, 48),
    "orange": (248, 136, 28),
    "yellow": (252, 216, 48),
    "green": (40, 150, 70),
    "blue": (44, 92, 216),
    "purple": (138, 62, 190),
    "pink": (250, 132, 184),
}


def shade(colour: Colour, factor: float) -> Colour:
    """Darken (factor below 1) or lighten (above 1, towards white) a colour."""
    if factor <= 1:
        return tuple(int(c * factor) for c in colour)  # type: ignore[return-value]
    return tuple(int(c + (255 - c) * (factor - 1)) for c in colour)  # type: ignore[return-value]


@dataclass(frozen=True)
class Box:
    """A thing's place: centre of its foot and its height, in units."""

    x: float
    y: float
    h: float


class Pen:
    """Draws on an RGB picture of `width` x `height` px; coordinates and sizes are in units."""

    def __init__(self, width: int, height: int) -> None:
        self.size = (width, height)
        self.ink = INK_WIDTH
        self.scale = OVERSAMPLING * math.sqrt(width * height) / 256
        self.image = Image.new("RGB", (width * OVERSAMPLING, height * OVERSAMPLING))
        self._draw = ImageDraw.Draw(self.image)
        self.width = self.image.width / self.scale
        self.height = self.image.height / self.scale

    def _px(self, points: list[Point]) -> list[Point]:
        return [(x * self.scale, y * self.scale) for x, y in points]

    def _line_px(self, width: float) -> int:
        return max(1, round(width * self.scale))

    def gradient(self, top: Colour, bottom: Colour, y0: float, y1: float) -> None:
        """Fill the rows from y0 to y1 with a vertical gradient."""
        a, b = round(y0 * self.scale), round(y1 * self.scale)
        t = np.linspace(0, 1, max(2, b - a))[:, None]
        rows = np.asarray(top) * (1 - t) + np.asarray(bottom) * t
        strip = np.repeat(rows[:, None].round().astype(np.uint8), self.image.width, axis=1)
        self.image.paste(Image.fromarray(strip), (0, a))

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: Colour, outlined: bool = True) -> None:
        box = self._px([(x - rx, y - ry), (x + rx, y + ry)])
        if outlined:
            self._draw.ellipse(box, fill=fill, outline=INK, width=self._line_px(self.ink))
        else:
            self._draw.ellipse(box, fill=fill)

    def polygon(self, points: list[Point], fill: Colour, outlined: bool = True) -> None:
        px = self._px(points)
        self._draw.polygon(px, fill=fill)
        if outlined:
            self._draw.line([*px, px[0], px[1]], fill=INK, width=self._line_px(self.ink), joint="curve")

    def rectangle(self, x0: float, y0: float, x1: float, y1: float, fill: Colour) -> None:
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], fill)

    def line(self, points: list[Point], width: float, fill: Colour = INK) -> None:
        self._draw.line(self._px(points), fill=fill, width=self._line_px(width), joint="curve")

    def tube(self, points: list[Point], width: float, fill: Colour) -> None:
        """A thick, round-ended, outlined line."""
        for extra, colour in ((2 * self.ink, INK), (0.0, fill)):
            self.line(points, width + extra, colour)
            for x, y in (points[0], points[-1]):
                self.ellipse(x, y, (width + extra) / 2, (width + extra) / 2, colour, outlined=False)

    def paste_pattern(self, pattern: np.ndarray, mask_points: list[Point], origin: Point) -> None:
        """Paste a (h, w, 3) uint8 pattern, its corner at `origin`, within the polygon `mask_points`."""
        mask = Image.new("L", self.image.size)
        ImageDraw.Draw(mask).polygon(self._px(mask_points), fill=255)
        layer = Image.new("RGB", self.image.size)
        layer.paste(Image.fromarray(pattern), tuple(round(v * self.scale) for v in origin))
        self.image.paste(layer, mask=mask)

    def finish(self) -> Image.Image:
        return self.image.resize(self.size, Image.Resampling.BOX)
