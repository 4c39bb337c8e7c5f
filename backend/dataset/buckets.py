"""Makes buckets, the sizes that pictures are brought to, and assigns each picture to one.

Three tables: `area_buckets` (classic: sides in steps below an area), `token_buckets` (every size has nearly the same
token count) and `exact_buckets` (token counts that fall on one or two exact values). `table_for` picks by
shape mode.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from backend.config.family_defaults import ShapeMode
from backend.families.spec import Geometry

if TYPE_CHECKING:
    from backend.config.schema import Config


# Exact token counts are looked for this near the resolution's own: 4032 and 4200 for 4096.
EXACT_BAND = 0.03
# The aspect ratios, up to this many to one, that exact counts are chosen to cover.
_COMMON_ASPECT = 4.0
# A second count costs a second graph: it must lower the mean crop by this share of the picture.
_WORTH_A_GRAPH = 0.005
# Longer than every bucket, and losing this share or more: cropped by the limit, not by the step.
_BEYOND = 0.01


@dataclass(frozen=True, order=True)
class Bucket:
    """A size in px, its image tokens, and the frames of a clip of it, whose tokens these then are."""

    width: int
    height: int
    tokens: int
    frames: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in px."""
        return self.width, self.height


@dataclass(frozen=True, slots=True)
class Fit:
    """How one picture comes to its bucket: `box` (left, top, right, bottom in source px) is resampled to the bucket.

    scale: bucket px for each source px, above 1 where the picture is enlarged. crop: share of its area that is lost.
    beyond: the picture is longer than any bucket, so that the limits crop it. flip: mirrored left to right afterwards.
    colour: factors of brightness, contrast and saturation; None leaves them.
    """

    bucket: Bucket
    box: tuple[float, float, float, float]
    scale: float
    crop: float
    beyond: bool = False
    flip: bool = False
    colour: tuple[float, ...] | None = None


def whole_step(step: int, geometry: Geometry) -> int:
    """`step` px raised to the next multiple of a token's side."""
    unit = geometry.pixels_per_token
    return max(unit, -(-step // unit) * unit)


def tokens_of(resolution: int, geometry: Geometry) -> int:
    """Image tokens of the area of a square of `resolution` px."""
    return resolution * resolution // geometry.pixels_per_token**2


def area_buckets(resolution: int, smallest: int, longest: int, step: int, geometry: Geometry) -> tuple[Bucket, ...]:
    """Sides in multiples of `step`, from `smallest` to `longest` px, at most `resolution` squared in area.

    The table of sd-scripts (`make_bucket_resolutions`). ValueError when the limits leave no bucket.
    """
    step = whole_step(step, geometry)
    area = resolution * resolution
    square = resolution // step * step
    sizes = {(square, square)} if smallest <= square <= longest and square else set()
    for side in range(-(-max(smallest, step) // step) * step, longest + 1, step):
        other = min(longest, area // side) // step * step
        if other >= max(smallest, step):
            sizes |= {(side, other), (other, side)}
    return _table(sizes, geometry, f"of {resolution} px in steps of {step} px", smallest, longest)


def token_buckets(
    tokens: int, divisor: int, aspect_limit: float, geometry: Geometry, smallest: int = 0, longest: int = 1 << 30
) -> tuple[Bucket, ...]:
    """Sizes of nearly, and never above, `tokens` image tokens: short sides in steps of `divisor` px, long sides fitted.

    4096 tokens of 16 px, a divisor of 64 px and an aspect limit of 4 give 17 buckets. A short side of a
    tokens leaves fewer than a of them over, so padding stays below a / `tokens`. ValueError when the limits leave none.
    """
    unit = geometry.pixels_per_token
    divisor = whole_step(divisor, geometry)
    sizes = set()
    for short in range(divisor, math.isqrt(tokens) * unit + 1, divisor):
        long = tokens // (short // unit) * unit
        if short >= smallest and long <= longest and long <= short * aspect_limit:
            sizes |= {(short, long), (long, short)}
    return _table(sizes, geometry, f"of {tokens} tokens in steps of {divisor} px", smallest, longest)


def exact_buckets(counts: Iterable[int], geometry: Geometry, smallest: int, longest: int) -> tuple[Bucket, ...]:
    """Every size whose token count is one of `counts`, with sides of `smallest` to `longest` px."""
    unit = geometry.pixels_per_token
    counts = tuple(counts)
    sizes = {
        (across * unit, count // across * unit)
        for count in counts
        for across in _divisors(count)
        if smallest <= across * unit <= longest and smallest <= count // across * unit <= longest
    }
    return _table(sizes, geometry, f"of exactly {' or '.join(map(str, counts))} tokens", smallest, longest)


@lru_cache(maxsize=64)
def exact_token_counts(tokens: int, unit: int, smallest: int, longest: int) -> tuple[int, ...]:
    """One or two token counts near `tokens` whose divisors cover the aspect ratios to 4:1 with the least cropping.

    unit: px a token. smallest, longest: px of a side. 4096 tokens give (4032, 4200). Mean
    crop is taken over evenly spread logarithms of the aspect ratio; the second count goes when it hardly helps.
    """
    reach = max(1, int(tokens * EXACT_BAND))
    ratios: dict[int, list[float]] = {}
    for count in range(max(1, tokens - reach), tokens + reach + 1):
        fitting = [
            math.log(across * across / count)
            for across in _divisors(count)
            if smallest <= across * unit <= longest and smallest <= count // across * unit <= longest
        ]
        if fitting:
            ratios[count] = fitting
    if not ratios:
        raise ValueError(
            f"no bucket of about {tokens} tokens has sides of {smallest} to {longest} px. "
            "Lower min_bucket_size or raise max_bucket_size."
        )
    # Near ties go to the count nearest to what was asked for.
    alone = sorted(ratios, key=lambda n: (round(_mean_crop(ratios[n]), 6), abs(n - tokens), n))
    pairs = [(a, b) for i, a in enumerate(alone[:25]) for b in alone[i + 1 : 25]]
    best = min(pairs, key=lambda p: (round(_mean_crop(ratios[p[0]] + ratios[p[1]]), 6), *sorted(p)), default=None)
    if best is None or _mean_crop(ratios[alone[0]]) - _mean_crop(ratios[best[0]] + ratios[best[1]]) < _WORTH_A_GRAPH:
        return (alone[0],)
    return (min(best), max(best))


@dataclass(frozen=True)
class BucketTable:
    """The buckets of one shape mode, and which of them a picture goes to.

    budget: the most image tokens a bucket may have, of one frame. no_upscale: pictures smaller than their bucket keep
    their own size, rounded down to `step` px, as a bucket of its own.
    """

    mode: ShapeMode
    buckets: tuple[Bucket, ...]
    geometry: Geometry
    step: int
    longest: int
    budget: int
    no_upscale: bool = False

    def assign(self, width: int, height: int, frames: int = 1) -> Fit:
        """The bucket nearest in aspect ratio to a picture of `width` x `height` px, and how the picture comes to it.

        frames: of a clip, which comes to the bucket of a picture of its size, with the tokens of all its frames.
        """
        fit = self._assign(width, height)
        if frames == 1:
            return fit
        tokens = self.geometry.image_tokens(*fit.bucket.size, frames)
        return replace(fit, bucket=replace(fit.bucket, tokens=tokens, frames=frames))

    def _assign(self, width: int, height: int) -> Fit:
        ratio = math.log(width / height)
        logs, nearest = self._by_ratio
        at = bisect.bisect_left(logs, ratio)
        around = range(max(0, at - 1), min(len(logs), at + 1))
        best = min(around, key=lambda i: (round(abs(logs[i] - ratio), 9), -nearest[i].tokens))
        fit = fit_to(width, height, nearest[best])
        if fit.scale > 1.0 and self.no_upscale and self.mode != "exact_buckets":
            return fit_to(width, height, self._native(width, height))
        outside = ratio < logs[0] or ratio > logs[-1]
        if outside and fit.crop >= _BEYOND:
            return Fit(fit.bucket, fit.box, fit.scale, fit.crop, beyond=True)
        return fit

    def _native(self, width: int, height: int) -> Bucket:
        """The picture's own size rounded down to the step, within the budget."""
        sides = [max(self.step, min(self.longest, side) // self.step * self.step) for side in (width, height)]
        unit = self.geometry.pixels_per_token
        while sides[0] // unit * (sides[1] // unit) > self.budget and max(sides) > self.step:
            sides[sides.index(max(sides))] -= self.step
        return Bucket(sides[0], sides[1], self.geometry.image_tokens(*sides))

    @cached_property
    def _by_ratio(self) -> tuple[list[float], list[Bucket]]:
        """Logarithms of the aspect ratios in order, and for each the bucket with the most tokens."""
        best: dict[float, Bucket] = {}
        for bucket in self.buckets:
            ratio = math.log(bucket.width / bucket.height)
            if ratio not in best or best[ratio].tokens < bucket.tokens:
                best[ratio] = bucket
        logs = sorted(best)
        return logs, [best[ratio] for ratio in logs]


def fit_to(width: int, height: int, bucket: Bucket) -> Fit:
    """Scale a picture of `width` x `height` px until it covers `bucket`, and cut the middle out."""
    scale = max(bucket.width / width, bucket.height / height)
    # The side that sets the scale is kept whole, to the last pixel.
    across = float(width) if scale == bucket.width / width else bucket.width / scale
    down = float(height) if scale == bucket.height / height else bucket.height / scale
    left, top = (width - across) / 2, (height - down) / 2
    crop = max(0.0, 1.0 - across * down / (width * height))
    return Fit(bucket, (left, top, left + across, top + down), scale, crop)


def bucket_table(
    resolution: int,
    smallest: int,
    longest: int,
    step: int,
    geometry: Geometry,
    no_upscale: bool = False,
    mode: ShapeMode = "off",
    static_token_count: int | None = None,
) -> BucketTable:
    """The table of a shape mode; lengths in px.

    `static` takes token-constant buckets of the resolution's token count, or of `static_token_count` where that is
    less; `exact_buckets` the exact ones; the others the classic ones. ValueError, with the fix, when none is left.
    """
    budget = tokens_of(resolution, geometry)
    step = whole_step(step, geometry)
    if mode == "exact_buckets":
        counts = exact_token_counts(budget, geometry.pixels_per_token, smallest, longest)
        return BucketTable(
            mode, exact_buckets(counts, geometry, smallest, longest), geometry, step, longest, max(counts), no_upscale
        )
    if mode != "static":
        buckets = area_buckets(resolution, smallest, longest, step, geometry)
        return BucketTable(mode, buckets, geometry, step, longest, budget, no_upscale)
    if static_token_count is not None and static_token_count < budget:
        # Fewer tokens than the resolution has: the smallest side shrinks along, or only squares would be left.
        smallest = int(smallest * math.sqrt(static_token_count / budget))
        budget = static_token_count
    buckets = token_buckets(budget, step, longest / max(smallest, 1), geometry, smallest, longest)
    return BucketTable(mode, buckets, geometry, step, longest, budget, no_upscale)


def table_for(cfg: Config, geometry: Geometry, mode: ShapeMode) -> BucketTable:
    """`bucket_table` of a config in the shape mode `mode`."""
    data = cfg.dataset
    return bucket_table(
        data.resolution,
        data.min_bucket_size,
        data.max_bucket_size,
        data.bucket_step,
        geometry,
        data.no_upscale,
        mode,
        cfg.compile.static_token_count,
    )


def _table(
    sizes: set[tuple[int, int]], geometry: Geometry, what: str, smallest: int, longest: int
) -> tuple[Bucket, ...]:
    if not sizes:
        raise ValueError(
            f"there is no bucket {what} with sides of {smallest} to {longest} px. "
            "Lower min_bucket_size or bucket_step, or raise max_bucket_size."
        )
    return tuple(Bucket(width, height, geometry.image_tokens(width, height)) for width, height in sorted(sizes))


def _divisors(count: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    return small + [count // d for d in reversed(small) if d * d != count]


def _mean_crop(ratios: list[float]) -> float:
    """Mean share cropped over log aspect ratios spread evenly to 4:1, each picture going to the nearest of `ratios`.

    At a distance t from its bucket a picture loses 1 - exp(-t); the integral from 0 to h is h - 1 + exp(-h).
    """
    limit = math.log(_COMMON_ASPECT)
    inside = sorted({ratio for ratio in ratios if -limit <= ratio <= limit})
    if not inside:
        return 1.0
    halves = [inside[0] + limit, limit - inside[-1]]
    for left, right in zip(inside, inside[1:], strict=False):
        halves += [(right - left) / 2] * 2
    return sum(half - 1 + math.exp(-half) for half in halves) / (2 * limit)
