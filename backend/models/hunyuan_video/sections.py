"""Draws a clip of FramePack section by section: from its end to its start, or onward from the start (F1).

As diffusers' pipeline does, sampling ``inverted_anti_drifting`` and ``vanilla``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from backend.families.hunyuan_video.sections import BEHIND, FRAMES, sections_between


def shown_behind(start: Tensor, rest: Tensor) -> Tensor:
    """What the model is shown besides a section (C, 20, h, w): the start, and `rest` behind it, filled with zeros."""
    behind = torch.zeros(len(start), sum(BEHIND), *start.shape[2:], dtype=start.dtype, device=start.device)
    known = min(rest.shape[1], sum(BEHIND))
    behind[:, :known] = rest[:, :known]
    return torch.cat([start, behind], dim=1)


def shown_before(start: Tensor, before: Tensor) -> Tensor:
    """The same of F1, of the frames `before` a section, the start among them: the last one as it is, the two before it
    in patches twice as large, and sixteen before these in the largest."""
    count = sum(BEHIND)
    whole = torch.cat([torch.zeros_like(start).expand(-1, count, -1, -1), before], dim=1)[:, -count:]
    once, twice, four = whole[:, -1:], whole[:, -3:-1], whole[:, :-3]
    return torch.cat([start, once, twice, four], dim=1)


class Sections:
    """The sections of one sample of `frames`, in the order in which they are drawn. onward: from the start on (F1)."""

    def __init__(self, frames: int, onward: bool) -> None:
        self.count, self._onward = max(1, (frames - 1) // FRAMES), onward
        self._drawn: list[Tensor] = []

    def told(self, text: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The conditioning of the next section, from that of the clip."""
        start, number = text["behind"][:, :1], len(self._drawn)
        done = [latent[:, 1:].to(start) for latent in self._drawn]
        if self._onward:
            return {**text, "behind": shown_before(start, torch.cat([start, *done], dim=1))}
        between = sections_between(self.count - 1 - number, self.count)
        behind = shown_behind(start, torch.cat([start[:, :0], *reversed(done)], dim=1))
        return {**text, "behind": behind, "between": torch.full_like(text["between"], between)}

    def add(self, latent: Tensor) -> None:
        """Note a section that is drawn: (C, 1 + 9, h, w), the start first."""
        self._drawn.append(latent)

    def whole(self) -> Tensor:
        """The latent of the clip (C, 1 + 9 n, h, w)."""
        parts = self._drawn if self._onward else self._drawn[::-1]
        return torch.cat([parts[0][:, :1], *(latent[:, 1:] for latent in parts)], dim=1)
