"""Draws what settings mean as SVG, in plain Python; colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from backend.config.experts import sides_of, timestep_range
from backend.config.schema import Config
from backend.config.sections.optimizer import OptimizerSection
from backend.config.sections.timesteps import TimestepsSection
from backend.families.shift import ShiftLine
from backend.plan.further import Further
from backend.plan.learning_rate import rate_factors
from backend.plan.noise_levels import diffusion_density, scheduler_config

_WIDTH, _HEIGHT = 720, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 34
_PLOT_W, _PLOT_H = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_SAMPLES_A_BIN = 137


def curve(
    values: Sequence[float],
    title: str,
    ticks_x: Sequence[tuple[float, str]],
    ticks_y: Sequence[tuple[float, str]],
    x_title: str,
    mark: tuple[float, str] | None = None,
) -> str:
    """A filled line. values: heights between 0 and 1, evenly over the width; ticks as (place between 0 and 1, text).

    mark: an upright line with its text, by its place between 0 and 1.
    """
    count = max(1, len(values) - 1)
    points = [
        (_LEFT + _PLOT_W * index / count, _TOP + _PLOT_H * (1 - min(1.0, max(0.0, value))))
        for index, value in enumerate(values)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base = _TOP + _PLOT_H
    area = f"{_LEFT},{base} {line} {_LEFT + _PLOT_W},{base}"
    body = [f'<polygon class="area" points="{area}"/>', f'<polyline class="line" points="{line}"/>']
    if mark is not None:
        place, text = mark
        x, side = _LEFT + _PLOT_W * place, "end" if place > 0.5 else "start"
        body.append(f'<line class="axis" stroke-dasharray="4 3" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{base}"/>')
        shift = -6 if side == "end" else 6
        body.append(f'<text x="{x + shift:.1f}" y="{_TOP + 12}" text-anchor="{side}">{escape(text)}</text>')
    return frame(title, [*_axes(ticks_x, ticks_y, x_title), *body], _HEIGHT)


def histogram(bars: Sequence[tuple[str, int, bool]], title: str, most: int = 40) -> str:
    """Upright bars with their count above and their name below. bars: (name, count, marked as small)."""
    shown = list(bars[:most])
    if not shown:
        return ""
    slant = len(shown) > 9
    bottom = 74 if slant else _BOTTOM
    height = 170 + bottom
    plot = height - _TOP - bottom - 14
    highest = max(count for _, count, _ in shown)
    step = _PLOT_W / len(shown)
    width = min(46.0, step * 0.72)
    body = []
    for index, (name, count, low) in enumerate(shown):
        middle = _LEFT + step * (index + 0.5)
        tall = max(2.0, plot * count / highest)
        top = _TOP + 14 + plot - tall
        body.append(
            f'<rect class="column{" low" if low else ""}" x="{middle - width / 2:.1f}" y="{top:.1f}" '
            f'width="{width:.1f}" height="{tall:.1f}" rx="2"><title>{escape(name)}: {count}</title></rect>'
        )
        if step > 20:
            body.append(f'<text class="value" x="{middle:.1f}" y="{top - 4:.1f}" text-anchor="middle">{count}</text>')
        under = height - bottom + 15
        place = (
            f'x="{middle + 4:.1f}" y="{under}" text-anchor="end" transform="rotate(-50 {middle + 4:.1f} {under})"'
            if slant
            else f'x="{middle:.1f}" y="{under}" text-anchor="middle"'
        )
        body.append(f"<text {place}>{escape(name)}</text>")
    base = height - bottom
    axis = f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{base}" y2="{base}"/>'
    return frame(title, [*body, axis], height)


def _axes(ticks_x: Sequence[tuple[float, str]], ticks_y: Sequence[tuple[float, str]], x_title: str) -> list[str]:
    base = _TOP + _PLOT_H
    parts = []
    for place, text in ticks_y:
        y = _TOP + _PLOT_H * (1 - place)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for place, text in ticks_x:
        x = _LEFT + _PLOT_W * place
        anchor = "start" if place < 0.02 else "end" if place > 0.98 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{base + 15}" text-anchor="{anchor}">{escape(text)}</text>')
    parts.append(f'<text x="{_LEFT + _PLOT_W / 2}" y="{base + 30}" text-anchor="middle">{escape(x_title)}</text>')
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + _PLOT_W}" y1="{base}" y2="{base}"/>')
    return parts


def frame(title: str, parts: Sequence[str], height: int) -> str:
    """A drawing with a name for screen readers. parts: elements, placed on 720 by `height` pixels."""
    name = escape(title)
    box = f'viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}><title>{name}</title>{"".join(parts)}</svg>'


def timesteps(cfg: Config, image_tokens: int, bins: int = 60) -> str:
    """How often each noise level is trained, weighting included, as ``backend.objectives.flow`` draws them.

    Of two experts by turns: of the steps of both.
    """
    shift = ShiftLine.of(scheduler_config(cfg)).shift(image_tokens)
    ranges = [timestep_range(cfg, side) for side in sides_of(cfg) or (None,)]
    densities = [timestep_density(cfg.timesteps, shift, bins, *each) for each in ranges]
    return _density_curve([sum(shares) / len(densities) for shares in zip(*densities, strict=True)])


def diffusion_timesteps(cfg: Config, bins: int = 50) -> str:
    """The same for a diffusion model: even draws, and the weights of the loss."""
    return _density_curve(diffusion_density(cfg, bins))


def _density_curve(density: Sequence[float]) -> str:
    highest = max(density) or 1.0
    ticks_x = [(share, f"{1000 * share:.0f}") for share in (0, 0.25, 0.5, 0.75, 1)]
    return curve(
        [value / highest * 0.96 for value in density],
        "How often each timestep is trained",
        ticks_x,
        [(0, "0"), (0.48, ""), (0.96, "most")],
        "timestep (0: clean image, 1000: noise)",
    )


def timestep_density(
    cfg: TimestepsSection, own_shift: float, bins: int, least: float | None = None, highest: float | None = None
) -> list[float]:
    """Share of training that falls in each of ``bins`` equal parts of the timesteps, weighting included; sums to 1.

    own_shift: the model's for images of this size, which flux_shift uses. least, highest: timesteps of 1000 between
    which the levels lie; left out, those of the settings.
    """
    draw = _sigma_of(cfg, own_shift)
    low = (cfg.min_timestep if least is None else least) / 1000
    high = (cfg.max_timestep if highest is None else highest) / 1000
    shares = [0.0] * bins
    # A whole number for each bin, so that an even distribution is drawn as an even line.
    samples = bins * _SAMPLES_A_BIN
    for index in range(samples):
        sigma = low + draw((index + 0.5) / samples) * (high - low)
        shares[min(bins - 1, int(sigma * bins))] += _weight(cfg.weighting_scheme, sigma)
    total = sum(shares) or 1.0
    return [value / total for value in shares]


def _sigma_of(cfg: TimestepsSection, own_shift: float) -> Callable[[float], float]:
    """The noise level at a quantile between 0 and 1."""
    kind = cfg.timestep_sampling

    def sigma(share: float) -> float:
        if kind == "uniform":
            return share
        if kind == "mode":
            return 1 - share - cfg.mode_scale * (math.cos(math.pi / 2 * share) ** 2 - 1 + share)
        normal = _normal_quantile(share)
        if kind == "logit_normal":
            return _sigmoid(cfg.logit_mean + cfg.logit_std * normal)
        value = _sigmoid(cfg.sigmoid_scale * normal)
        if kind == "shift":
            return _shifted(value, cfg.discrete_flow_shift)
        if kind == "flux_shift":
            return _shifted(value, own_shift)
        return value

    return sigma


def _shifted(value: float, shift: float) -> float:
    return shift * value / (1 + (shift - 1) * value)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def _weight(scheme: str, sigma: float) -> float:
    # diffusers' compute_loss_weighting_for_sd3.
    if scheme == "sigma_sqrt":
        return max(sigma, 1e-3) ** -2.0
    if scheme == "cosmap":
        return 2 / (math.pi * (1 - 2 * sigma + 2 * sigma**2))
    return 1.0


def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


def learning_rate(cfg: OptimizerSection, steps: int) -> str:
    """The learning rate over a run of ``steps`` optimizer steps; a note instead for a custom scheduler class."""
    factors = rate_factors(cfg, steps)
    if factors is None:
        note = f"{cfg.lr_scheduler} is a custom scheduler: no curve."
        return frame("Learning rate", [f'<text x="{_LEFT}" y="24">{escape(note)}</text>'], 40)
    ticks_x = [(share, f"{round(steps * share):,}") for share in (0, 0.25, 0.5, 0.75, 1)]
    rate = f"{cfg.learning_rate:.2g}"
    return curve([f * 0.94 for f in factors], "Learning rate over the run", ticks_x, [(0, "0"), (0.94, rate)], "step")


def learning_rate_further(further: Further) -> str:
    """The learning rate over a run that is trained further: as it was, and what follows; "" where it can't be told."""
    rates = further.rates()
    values = [rate for _, rate in rates if rate is not None]
    if not values or len(values) != len(rates) or further.total is None:
        return ""
    highest = max(values) or 1.0
    ticks_x = [(share, f"{round(further.total * share):,}") for share in (0, 0.25, 0.5, 0.75, 1)]
    mark = (further.standing.done / further.total, f"continues after step {further.standing.done:,}")
    heights = [0.94 * value / highest for value in values]
    ticks_y = [(0.0, "0"), (0.94, f"{highest:.2g}")]
    return curve(heights, "Learning rate, past and to come", ticks_x, ticks_y, "step", mark)
