"""Reads how noise levels are drawn: what a name means depends on the program, the family and other names.

``sigma`` draws u, evenly or as ``weighting_scheme`` says, and takes the u-th of the scheduler's levels, which begin at
pure noise; sd-scripts shifts these by discrete_flow_shift (``library/flux_train_utils.py``), musubi-tuner doesn't
(``modules/scheduling_flow_match_discrete.py``). SD3 has u as the level itself, and shifts by training_shift
(``library/sd3_train_utils.py``). A shift by k adds log k to the logit of a level, so that a logit-normal stays one.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from backend.config.schema import by_path
from backend.families.files.base_model import BaseModelFiles
from backend.families.shift import ShiftLine
from backend.families.table import FAMILIES
from backend.importers.values import is_off, number
from backend.importers.work import Work

_SAMPLING, _SHIFT = "timesteps.timestep_sampling", "timesteps.discrete_flow_shift"
_MEAN, _STD, _SCALE = "timesteps.logit_mean", "timesteps.logit_std", "timesteps.sigmoid_scale"
_MODE_SCALE = "timesteps.mode_scale"
_LIMITS = ("timesteps.min_timestep", "timesteps.max_timestep")
_EVEN = 1.7
"""A sigmoid of this scale is nearly even: the normal distribution that lies nearest to the logistic one."""
_QWEN = ("Qwen", ShiftLine(max_shift=0.9, max_image_seq_len=8192))
_LINES = {"flux_shift": ("FLUX", ShiftLine()), "qwen_shift": _QWEN, "qinglong_qwen": _QWEN}
"""musubi-tuner's names of a shift by size -> whose line it is, and the line (``training/trainer_base.py``)."""
_NORMAL = NormalDist()
_SHARES = [(place + 0.5) / 50 for place in range(50)]


def read_timesteps(work: Work) -> None:
    """Bring what was taken over name by name to what the other program draws."""
    scripts = work.kind in ("sd-scripts", "kohya_ss")
    sd3 = scripts and work.family == "sd3"
    if sd3:
        work.take(_SAMPLING, "sigma", work.origin.get(_SAMPLING, "weighting_scheme"))
    drawn = work.ours.get(_SAMPLING)
    if drawn == "sigma":
        _sigma(work, sd3, scripts)
    elif drawn == "logsnr":
        # sigmoid(-n / 2) of a normal n
        _logit_normal(work, -_number(work, _MEAN) / 2, _number(work, _STD) / 2, "the same levels under another name")
    elif drawn in _LINES:
        _by_size(work, drawn)
    if _MODE_SCALE in work.ours and work.ours.get(_SAMPLING) != "mode":
        work.drop(_MODE_SCALE, "not needed", "it is used only with mode and without a shift")
    if scripts and not sd3:
        for path in _LIMITS:
            if work.ours.get(path, by_path()[path].default) != by_path()[path].default:
                work.drop(path, "not needed", "it has no effect in the other program on this family")


def _sigma(work: Work, sd3: bool, scripts: bool) -> None:
    # kohya_ss hands a weighting on for SD3 only
    scheme = "uniform" if work.kind == "kohya_ss" and not sd3 else work.values.get("weighting_scheme")
    shift = _number(work, _SHIFT) if scripts else 1.0
    if sd3 and work.origin.get(_SHIFT) != "training_shift":
        shift = 1.0
    if not scripts:
        _mirrored(work)
    if str(scheme) == "logit_normal" and shift > 0:
        mean, std = _number(work, _MEAN), _number(work, _STD)
        _logit_normal(
            work, math.log(shift) + (mean if sd3 else -mean), std, "its mean contains the shift and the direction"
        )
    elif shift == 1 and str(scheme) == "mode":
        # its levels lie alike on both sides of the middle, so that the direction is all one
        work.change(_SAMPLING, "mode", "timestep_sampling", "weighting_scheme decides how levels are drawn", "taken")
    elif shift == 1:
        work.change(_SAMPLING, "uniform", "timestep_sampling", "it draws all levels equally", "taken")
        if _SHIFT in work.ours:
            work.drop(_SHIFT, "not needed", "a shift by 1 changes nothing")
    else:
        scale = _EVEN
        why = f"it draws evenly before the shift; shift with sigmoid_scale {scale} is close to it"
        if str(scheme) == "mode":
            scale = _spread(_number(work, _MODE_SCALE))
            why = f"it draws by mode before the shift; shift with sigmoid_scale {scale} is close to it"
        work.change(_SAMPLING, "shift", "timestep_sampling", why)
        work.take(_SHIFT, shift, work.origin.get(_SHIFT, "discrete_flow_shift"))
        work.take(_SCALE, scale, work.origin.get(_SCALE, "sigmoid_scale"))


def _spread(scale: float) -> float:
    """The sigmoid_scale whose levels are never far from those of mode at `scale`; at 0, which is even, `_EVEN`."""

    def farthest(spread: float) -> float:
        return max(abs(_mode(share, scale) - 1 / (1 + math.exp(-spread * _NORMAL.inv_cdf(share)))) for share in _SHARES)

    return min((number / 20 for number in range(4, 61)), key=farthest)


def _mode(share: float, scale: float) -> float:
    return share - scale * (math.sin(math.pi / 2 * share) ** 2 - share)


def _logit_normal(work: Work, mean: float, std: float, why: str) -> None:
    work.change(_SAMPLING, "logit_normal", "timestep_sampling", why, "taken")
    for path, value in ((_MEAN, mean), (_STD, std)):
        work.take(path, round(value, 6) + 0.0, work.origin.get(path, path.rpartition(".")[2]))
    if _SHIFT in work.ours:
        work.drop(_SHIFT, "not needed", "it is in logit_mean, or has no effect in the other program")


def _by_size(work: Work, drawn: str) -> None:
    """A shift by each picture's size, along the line of one family: flux_shift has that of the family that is trained.

    Along another's line all buckets have about the tokens of the resolution, and so nearly one shift.
    """
    title, line = _LINES[drawn]
    mixed = drawn == "qinglong_qwen"
    family = FAMILIES[work.family_here]
    if family.objective == "flow" and ShiftLine.of(family.scheduler_config(BaseModelFiles(None))) == line:
        if drawn != "flux_shift":
            why = f"it follows the model's own line, which is {title}'s"
            if mixed:
                why = f"it follows the model's own line, which is {title}'s; a twentieth of other levels is left out"
            work.change(_SAMPLING, "flux_shift", "timestep_sampling", why, "near" if mixed else "taken")
        return
    side = work.ours.get("dataset.resolution", by_path()["dataset.resolution"].default)
    tokens = int(side / 16) ** 2 if isinstance(side, int | float) else 4096
    shift = round(line.shift(tokens), 4)
    why = f"{shift} is {title}'s shift for images of {side} px"
    if mixed:
        why = f"{shift} is {title}'s shift for images of {side} px; a twentieth of other levels is left out"
    work.change(_SAMPLING, "shift", "timestep_sampling", why)
    work.take(_SHIFT, shift, work.origin.get(_SHIFT, "discrete_flow_shift"))


def _mirrored(work: Work) -> None:
    """musubi-tuner counts the limits of sigma from pure noise on."""
    low, high = (work.ours.get(path, by_path()[path].default) for path in _LIMITS)
    if (low, high) == (0, 1000) or not all(isinstance(each, int | float) for each in (low, high)):
        return
    for path, value in zip(_LIMITS, (1000 - high, 1000 - low), strict=True):
        why = "the other program counts from pure noise"
        if path in work.ours:
            work.change(path, value, path.rpartition(".")[2], why)
        else:
            work.take(path, value, path.rpartition(".")[2])


def _number(work: Work, path: str) -> float:
    """What is taken over so far, or the other program's default, which is ours."""
    default: Any = {_MEAN: 0.0, _STD: 1.0, _MODE_SCALE: 1.29}.get(path, 1.0)
    value = number(work.ours.get(path, default))
    return float(value) if isinstance(value, int | float) and not is_off(value) else default
