"""Trains diffusion over a discrete schedule (DDPM): noise or velocity as the target, with the weights people use.

``x_t = sqrt(a_t) x0 + sqrt(1 - a_t) noise`` with a_t the running product of 1 - beta (Ho et al., arXiv 2006.11239). The
target is the noise, or the velocity ``sqrt(a_t) noise - sqrt(1 - a_t) x0`` (Salimans and Ho, arXiv 2202.00512). Betas
and target are those of the model's own scheduler_config.json. All draws are CPU draws, as in `backend.objectives.flow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, EulerDiscreteScheduler
from torch import Tensor

from backend.memory.seeds import generator
from backend.objectives import flow
from backend.objectives.base import Distance, Noise
from backend.objectives.strata import Strata

PREDICTIONS = ("epsilon", "v_prediction")

_TRAINING = ("num_train_timesteps", "beta_start", "beta_end", "beta_schedule", "trained_betas")
_SAMPLING = (*_TRAINING, "steps_offset", "timestep_spacing", "interpolation_type", "use_karras_sigmas", "sigma_min")
_MOST_SNR = 1000.0
"""Debiased estimation divides by the square root of the signal to noise ratio, which has no limit at timestep 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A model's schedule."""

    alphas: Tensor
    """The running products a_t, float32 (T,)."""
    prediction: str
    """One of PREDICTIONS."""
    config: Mapping[str, Any]
    """The model's scheduler_config.json."""
    zero_snr: bool = False
    """Whether the last timestep is pure noise."""

    @classmethod
    def of(cls, config: Mapping[str, Any], prediction: str = "auto", zero_snr: bool = False) -> Schedule:
        """The schedule of a scheduler_config.json. prediction: "auto" takes the config's own.

        zero_snr: betas rescaled so that the last timestep is pure noise (Lin et al., arXiv 2305.08891), whether the
        config says so or not. ValueError, in words, for a target that can't be trained.
        """
        target = config.get("prediction_type", "epsilon") if prediction == "auto" else prediction
        zero = zero_snr or bool(config.get("rescale_betas_zero_snr"))
        if target not in PREDICTIONS:
            raise ValueError(f"the model's scheduler predicts {target!r}; known: {', '.join(PREDICTIONS)}")
        if zero and target == "epsilon":
            raise ValueError("zero_terminal_snr needs v-prediction: predicting the noise of pure noise teaches nothing")
        betas = {name: config[name] for name in _TRAINING if config.get(name) is not None}
        alphas = DDPMScheduler(**betas, rescale_betas_zero_snr=zero).alphas_cumprod
        return cls(alphas=alphas.float(), prediction=target, config=config, zero_snr=zero)

    @property
    def timesteps(self) -> int:
        """How many there are."""
        return len(self.alphas)

    def at(self, level: Tensor) -> Tensor:
        """a_t of timesteps `level`, on their device."""
        return self.alphas.to(level.device)[level.long()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What changes noise and weights; names and defaults are those of the settings."""

    min_snr_gamma: float | None = None
    """Hang et al., arXiv 2303.09556."""
    debiased_estimation: bool = False
    """Yu et al., arXiv 2310.08442."""
    scale_v_pred_loss_like_noise_pred: bool = False
    """The velocity's loss times snr / (snr + 1), which makes it that of the noise."""
    noise_offset: float = 0.0
    """Noise plus this times one number a channel (crosslabs.org, Diffusion with Offset Noise, 2023)."""
    multires_noise_iterations: int = 0
    """Layers of noise added, and the sum brought to variance 1 (wandb.ai, Multi-Resolution Noise for Diffusion Model
    Training, 2023)."""
    multires_noise_discount: float = 0.3
    """Strength of each layer compared with the one before it."""
    ip_noise_gamma: float = 0.0
    """Input perturbation (Ning et al., arXiv 2301.11706)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diffusion:
    """Noise or velocity over a schedule."""

    schedule: Schedule
    options: Options = field(default_factory=Options)
    distance: Distance = field(default_factory=Distance)
    min_timestep: float = 0.0
    """Of 1000: where the part that is trained begins."""
    max_timestep: float = 1000.0
    """Of 1000: where the part that is trained ends."""
    strata: Strata | None = None
    """Spreads the timesteps of rows that follow each other; None draws each by itself."""

    @property
    def name(self) -> str:
        """``epsilon`` or ``v_prediction``."""
        return self.schedule.prediction

    def levels(self, image_tokens: Sequence[int], seed: int, number: int) -> Tensor:
        """Whole timesteps, all alike within the limits."""
        count = self.schedule.timesteps
        low = min(count - 1, int(self.min_timestep * count / 1000))
        high = max(low + 1, round(self.max_timestep * count / 1000))
        if self.strata is not None:
            shares = self.strata.shares(len(image_tokens), seed, number)
            return (low + shares * (high - low)).floor().clamp(max=high - 1).float()
        sources = [generator(seed, "sigma", number, row) for row in range(len(image_tokens))]
        return torch.cat([torch.randint(low, high, (1,), generator=source) for source in sources]).float()

    def noise(self, shape: Sequence[int], seed: int, number: int, row: int) -> Noise:
        """Standard normal noise with what the options add."""
        options = self.options
        drawn = flow.noise(shape, generator(seed, "noise", number, row))
        if options.noise_offset:
            one = flow.noise((shape[0], 1, 1), generator(seed, "noise offset", number, row))
            drawn = drawn + options.noise_offset * one
        if options.multires_noise_iterations:
            drawn = self._pyramid(drawn, generator(seed, "pyramid", number, row))
        if not options.ip_noise_gamma:
            return Noise(drawn, drawn)
        shift = flow.noise(shape, generator(seed, "input perturbation", number, row))
        return Noise(drawn, drawn + options.ip_noise_gamma * shift)

    def _pyramid(self, noise: Tensor, source: torch.Generator) -> Tensor:
        """The first layer is as fine as the noise itself, each further one coarser by a factor of two to four."""
        channels, height, width = noise.shape
        total = noise
        for number in range(self.options.multires_noise_iterations):
            ratio = (float(torch.rand((), generator=source)) * 2 + 2) ** number
            rows, columns = max(1, int(height / ratio)), max(1, int(width / ratio))
            coarse = flow.noise((channels, rows, columns), source)
            grown = F.interpolate(coarse[None], (height, width), mode="bilinear")[0]
            total = total + grown * self.options.multires_noise_discount**number
            if rows == 1 or columns == 1:
                break
        return total / total.std()

    def noisy(self, x0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """x_t."""
        alpha = self.schedule.at(level)
        return alpha.sqrt() * x0 + (1 - alpha).sqrt() * noise

    def target(self, x0: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        """The noise, or the velocity."""
        if self.schedule.prediction == "epsilon":
            return noise
        alpha = self.schedule.at(level)
        return alpha.sqrt() * noise - (1 - alpha).sqrt() * x0

    def weight(self, level: Tensor) -> Tensor:
        """What a row's loss is multiplied by, float32, the shape of `level`."""
        alpha, velocity = self.schedule.at(level), self.schedule.prediction == "v_prediction"
        snr = alpha / (1 - alpha)
        weights = torch.ones_like(alpha)
        if self.options.min_snr_gamma is not None:
            # the least of both, divided by snr: written so that an snr of 0 gives the limit, 1
            ratio = (self.options.min_snr_gamma / snr).clamp(max=1.0)
            weights = weights * (torch.minimum(snr, torch.full_like(snr, self.options.min_snr_gamma)) / (snr + 1)
                             if velocity else ratio)  # fmt: skip
        if self.options.scale_v_pred_loss_like_noise_pred and velocity:
            weights = weights * snr / (snr + 1)
        if self.options.debiased_estimation:
            snr = snr.clamp(max=_MOST_SNR)
            weights = weights * (1 / (snr + 1) if velocity else 1 / snr.sqrt())
        return weights

    def losses(
        self,
        predicted: Sequence[Tensor],
        target: Sequence[Tensor],
        levels: Tensor,
        weights: Sequence[Tensor | None] = (),
    ) -> Tensor:
        """Distance times the weight of the timestep."""
        alpha = self.schedule.at(levels)
        signal = alpha.sqrt() / (alpha.sqrt() + (1 - alpha).sqrt())
        distances = self.distance.rows(predicted, target, levels / self.schedule.timesteps, signal, weights)
        return distances * self.weight(levels)

    def fixed(self, sigmas: Sequence[float]) -> Tensor:
        """The timestep at each share of the schedule: 0.05 is timestep 50 of 1000."""
        count = self.schedule.timesteps
        return torch.tensor([min(count - 1, round(sigma * count)) for sigma in sigmas], dtype=torch.float32)

    def sampler(self, steps: int, image_tokens: int) -> SchedulerSteps:
        """diffusers' Euler sampler over the model's own schedule."""
        config = {name: self.schedule.config[name] for name in _SAMPLING if self.schedule.config.get(name) is not None}
        if self.schedule.zero_snr:
            # the last timestep, pure noise, must be among those that are sampled (arXiv 2305.08891, section 3.3)
            config |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        scheduler = EulerDiscreteScheduler(**config, prediction_type=self.schedule.prediction)
        scheduler.set_timesteps(steps)
        return SchedulerSteps(scheduler)


class SchedulerSteps:
    """One of diffusers' schedulers as a sampler."""

    def __init__(self, scheduler: EulerDiscreteScheduler) -> None:
        self._scheduler = scheduler
        self.levels: list[float] = scheduler.timesteps.tolist()

    def start(self, noise: Tensor) -> Tensor:
        """Noise of the strength that the sampler begins at."""
        return noise * float(self._scheduler.init_noise_sigma)

    def seen(self, x: Tensor, number: int) -> Tensor:
        """x brought to the variance that the denoiser was trained with."""
        return self._scheduler.scale_model_input(x, self._scheduler.timesteps[number])

    def step(self, x: Tensor, output: Tensor, number: int) -> Tensor:
        """One step of Euler's method."""
        return self._scheduler.step(output, self._scheduler.timesteps[number], x).prev_sample
