"""Judges by its losses whether a picture was learnt, not learnt or perhaps memorised: a stated rule, and a hint only.

The fall of a picture is the share by which its loss is lower at the newest measurement than at the start. All
measurements have the same noise, so a fall is the model's doing and not chance.

- ``rose``: the loss is higher than at the start by `CLEAR` or more.
- ``not_learnt``: it fell by less than `CLEAR`, or by less than `LEAST_OF_USUAL` of the median fall of all pictures that
  are trained.
- ``memorised``: it fell by `MUCH` or more, and much further than others: at least `TIMES_HELD_OUT` times as far as the
  validation picture that fell most, where there are `FEWEST_HELD_OUT`; or more than `SPREADS` robust standard
  deviations further than the median, where `FEWEST_TRAINED` pictures are trained.
- ``learnt``: anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

from backend.runs.picture_table import MOMENTS, TRAINED, PictureId, PictureTable

Verdict = Literal["rose", "not_learnt", "memorised", "learnt"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Those that a person should look at first come first."""

CLEAR = 0.005
LEAST_OF_USUAL = 1 / 3
MUCH = 0.1
TIMES_HELD_OUT = 2.0
FEWEST_HELD_OUT = 3
SPREADS = 3.5
FEWEST_TRAINED = 5
# Median absolute deviation -> standard deviation of a normal distribution.
_ROBUST = 1.4826


@dataclass(frozen=True, slots=True)
class PictureResult:
    """A picture with its losses by moment. fall: share of the first loss; None, as the verdict, before the second."""

    picture: PictureId
    losses: Mapping[str, float | None]
    fall: float | None
    verdict: Verdict | None
    """None too for pictures that are not trained."""

    @property
    def newest(self) -> float | None:
        """The newest loss that was measured."""
        return next((loss for name in reversed(MOMENTS) if (loss := self.losses.get(name)) is not None), None)


def results_of(table: PictureTable) -> list[PictureResult]:
    """Every picture of a table with its verdict, in the order of the table."""
    falls = {picture: fall_of(losses) for picture, losses in table.losses.items()}
    trained = [fall for picture, fall in falls.items() if fall is not None and picture.set == TRAINED]
    held_out = [fall for picture, fall in falls.items() if fall is not None and picture.set != TRAINED]
    return [
        PictureResult(
            picture,
            losses,
            falls[picture],
            verdict_of(fall, trained, held_out) if (fall := falls[picture]) is not None and not picture.set else None,
        )
        for picture, losses in table.losses.items()
    ]


def fall_of(losses: Mapping[str, float | None]) -> float | None:
    """The share of the first loss that the newest is below it; negative where it rose. None without two losses."""
    first, *later = [losses.get(name) for name in MOMENTS]
    newest = next((loss for loss in reversed(later) if loss is not None), None)
    if not first or newest is None:
        return None
    return (first - newest) / first


def verdict_of(fall: float, trained: Sequence[float], held_out: Sequence[float]) -> Verdict:
    """The verdict on a fall. trained: the falls of all pictures that are trained, this one among them."""
    usual = median(trained)
    if fall <= -CLEAR:
        return "rose"
    if fall < max(CLEAR, LEAST_OF_USUAL * usual):
        return "not_learnt"
    if fall >= MUCH and (_beyond_held_out(fall, held_out) or _beyond_trained(fall, trained, usual)):
        return "memorised"
    return "learnt"


def _beyond_held_out(fall: float, held_out: Sequence[float]) -> bool:
    return len(held_out) >= FEWEST_HELD_OUT and fall >= TIMES_HELD_OUT * max(held_out)


def _beyond_trained(fall: float, trained: Sequence[float], usual: float) -> bool:
    if len(trained) < FEWEST_TRAINED:
        return False
    spread = max(CLEAR, _ROBUST * median(abs(each - usual) for each in trained))
    return fall > usual + SPREADS * spread
