"""Counts what a section of FramePack is made of: its own latent frames, the start, and what is behind. Torch-free.

Names and sizes: lllyasviel/FramePack, and diffusers `HunyuanVideoFramepackPipeline` (0.42) with its sampling type
``inverted_anti_drifting``: a clip is made from its end to its start, a section at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from backend.families.spec import Geometry

SECTION = 9
"""Latent frames that are made at a time."""

BEHIND = (1, 2, 16)
"""Latent frames behind a section that the model is shown: as they are, in patches twice and four times as large."""

FRAMES = 4 * SECTION
"""Frames that a section stands for."""


@dataclass(frozen=True)
class SectionGeometry(Geometry):
    """That of a model of sections: a clip of 36 n + 1 frames is trained by one of its n sections.

    A row is the latent of the picture that the clip starts from, and that of the section.
    """

    @property
    def clip_step(self) -> int:
        """As the class's."""
        return FRAMES

    def latent_frames(self, frames: int) -> int:
        """As the class's: of the start and one section, however long the clip is."""
        if frames != 1 and (frames - 1) % FRAMES:
            raise ValueError(f"{frames} frames are not {FRAMES} n + 1")
        return 1 + SECTION

    def whole_frames(self, frames: int) -> int:
        """As the class's; 1 for a clip that is shorter than a section."""
        return max(1, (frames - 1) // FRAMES * FRAMES + 1)

    def image_tokens(self, width: int, height: int, frames: int = 1) -> int:
        """As the class's, with those of the start and of what is behind the section."""
        self.latent_frames(frames)
        one = super().image_tokens(width, height, 1) // (1 + SECTION)
        rows, columns = height // self.pixels_per_token, width // self.pixels_per_token
        shrunk = sum(
            count // scale * math.ceil(rows / scale) * math.ceil(columns / scale)
            for count, scale in zip(BEHIND[1:], (2, 4), strict=True)
        )
        return (SECTION + 1 + BEHIND[0]) * one + shrunk


def sections_between(section: int, count: int) -> int:
    """Sections that the model receives between the start and the one numbered `section` of a clip of `count`.

    As FramePack makes clips: from the fifth section on it receives fewer than there are.
    """
    if count <= 4 or section < 2:
        return section
    return 3 if section == count - 1 else 2
