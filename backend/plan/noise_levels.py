"""Computes how much each timestep of a diffusion schedule counts in the loss, in plain numbers: for the page's plot.

The same arithmetic as `backend.objectives.diffusion`, which names the sources; a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.config.sections.loss import LossSection

_MOST_SNR = 1000.0


def scheduler_config(cfg: Config) -> dict[str, Any]:
    """The config of the base model's scheduler; that of its family where there is none or it can't be read."""
    for base in (BaseModelFiles.of(cfg.model), BaseModelFiles(None)):
        try:
            return family(cfg.model.family).scheduler_config(base)
        except (OSError, ValueError):
            continue
    return {}


def signal_shares(config: Mapping[str, Any], zero_snr: bool = False) -> list[float]:
    """a_t, the share of the picture left in the noise, for each timestep from 0."""
    count = int(config.get("num_train_timesteps", 1000))
    low, high = float(config.get("beta_start", 0.0001)), float(config.get("beta_end", 0.02))
    root = config.get("beta_schedule", "linear") == "scaled_linear"
    start, end = (math.sqrt(low), math.sqrt(high)) if root else (low, high)
    line = [start + (end - start) * index / max(1, count - 1) for index in range(count)]
    kept, shares = 1.0, []
    for value in line:
        kept *= 1 - (value * value if root else value)
        shares.append(kept)
    if zero_snr or config.get("rescale_betas_zero_snr"):
        first, last = math.sqrt(shares[0]), math.sqrt(shares[-1])
        shares = [((math.sqrt(share) - last) * first / (first - last)) ** 2 for share in shares]
    return shares


def loss_weights(config: Mapping[str, Any], loss: LossSection) -> list[float]:
    """What the loss of each timestep is multiplied by."""
    own = config.get("prediction_type", "epsilon")
    velocity = (own if loss.prediction_type == "auto" else loss.prediction_type) == "v_prediction"
    return [_weight(share, velocity, loss) for share in signal_shares(config, loss.zero_terminal_snr)]


def _weight(share: float, velocity: bool, loss: LossSection) -> float:
    snr = share / (1 - share)
    weight = 1.0
    gamma = loss.min_snr_gamma
    if gamma is not None:
        weight *= min(snr, gamma) / (snr + 1) if velocity else min(1.0, gamma / snr) if snr else 1.0
    if loss.scale_v_pred_loss_like_noise_pred and velocity:
        weight *= snr / (snr + 1)
    if loss.debiased_estimation:
        snr = min(snr, _MOST_SNR)
        weight *= 1 / (snr + 1) if velocity else 1 / math.sqrt(snr) if snr else 0.0
    return weight


def diffusion_density(cfg: Config, bins: int) -> list[float]:
    """Share of training in each of `bins` equal parts of the timesteps, weights included; sums to 1."""
    weights = loss_weights(scheduler_config(cfg), cfg.loss)
    count = len(weights)
    low = min(count - 1, int(cfg.timesteps.min_timestep * count / 1000))
    high = max(low + 1, round(cfg.timesteps.max_timestep * count / 1000))
    shares = [0.0] * bins
    for step in range(low, min(high, count)):
        # A timestep's part of the line may lie over the edge of two bins.
        begin, end = step * bins / count, (step + 1) * bins / count
        while begin < end - 1e-12:
            place = min(bins - 1, int(begin + 1e-9))
            cut = min(end, place + 1.0)
            shares[place] += weights[step] * (cut - begin) * count / bins
            begin = cut
    total = sum(shares) or 1.0
    return [value / total for value in shares]
