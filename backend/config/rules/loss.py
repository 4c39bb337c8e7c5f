"""Lists rules about timesteps, the loss and the noise."""

from __future__ import annotations

from typing import Any

from backend.config.rules.rule import Rule, no_effect
from backend.config.schema import by_path
from backend.families.spec import Side
from backend.families.table import FAMILIES

_EVERY = by_path()["timesteps.switch_boundary_every"].default


def _has_experts(family: str) -> bool:
    return FAMILIES[family].experts is not None


def _edge(boundary: float | None, family: str) -> float | None:
    """The timestep between the experts; None of a family without."""
    experts = FAMILIES[family].experts
    return None if experts is None else 1000 * (experts.boundary if boundary is None else boundary)


def _unmeasured(side: Side, near: str) -> Rule:
    """A warning where an expert is trained, and no picture is measured at its noise levels."""

    def broken(
        sigmas: list[float],
        experts: str,
        boundary: float | None,
        family: str,
        split: float,
        folders: list[Any],
        pictures: bool,
    ) -> bool:
        edge = _edge(boundary, family)
        if edge is None or experts not in (side, "both") or not (split or folders or pictures):
            return False
        return not any((1000 * sigma >= edge) == (side == "high") for sigma in sigmas)

    return Rule(
        (
            "validation.validation_sigmas",
            "timesteps.train_experts",
            "timesteps.timestep_boundary",
            "model.family",
            "dataset.validation_split",
            "validation.validation_folders",
            "validation.picture_losses",
        ),
        broken,
        f"what is measured says nothing of the expert for {side} noise: all validation_sigmas are the other's",
        f"Add a noise level of its own to validation_sigmas, such as {near}",
        "warning",
    )


LOSS_RULES: tuple[Rule, ...] = (
    Rule(
        ("timesteps.min_timestep", "timesteps.max_timestep"),
        lambda low, high: low >= high,
        "there is no timestep between {min_timestep:g} and {max_timestep:g}",
        "Set min_timestep below max_timestep",
    ),
    Rule(
        ("timesteps.min_timestep", "timesteps.train_experts", "timesteps.timestep_boundary", "model.family"),
        lambda low, experts, boundary, family: (
            experts in ("low", "both") and (edge := _edge(boundary, family)) is not None and low >= edge
        ),
        "the expert for low noise has no timesteps: min_timestep {min_timestep:g} is above the boundary",
        "Set min_timestep below timestep_boundary times 1000, or train_experts to high",
    ),
    Rule(
        ("timesteps.max_timestep", "timesteps.train_experts", "timesteps.timestep_boundary", "model.family"),
        lambda high, experts, boundary, family: (
            experts in ("high", "both") and (edge := _edge(boundary, family)) is not None and high <= edge
        ),
        "the expert for high noise has no timesteps: max_timestep {max_timestep:g} is not above the boundary",
        "Set max_timestep above timestep_boundary times 1000, or train_experts to low",
    ),
    Rule(
        ("timesteps.timestep_boundary", "timesteps.train_experts", "model.family"),
        lambda boundary, experts, family: boundary is not None and experts == "auto" and _has_experts(family),
        "timestep_boundary has no effect: train_experts is auto, which trains at all noise levels",
        "Set timesteps.train_experts to high, low or both, or remove timestep_boundary",
        "warning",
    ),
    Rule(
        ("timesteps.switch_boundary_every", "timesteps.train_experts", "model.family"),
        lambda every, experts, family: every != _EVERY and experts != "both" and _has_experts(family),
        "switch_boundary_every has no effect: only both experts take turns",
        "Set timesteps.train_experts to both, or remove switch_boundary_every",
        "warning",
    ),
    _unmeasured("high", "0.95"),
    _unmeasured("low", "0.2"),
    no_effect("timesteps.discrete_flow_shift", "timesteps.timestep_sampling", ("shift",), "only shift uses it"),
    no_effect(
        "timesteps.sigmoid_scale",
        "timesteps.timestep_sampling",
        ("sigmoid", "shift", "flux_shift"),
        "the timesteps are not drawn through a sigmoid",
    ),
    no_effect("timesteps.logit_mean", "timesteps.timestep_sampling", ("logit_normal",), "only logit_normal uses it"),
    no_effect("timesteps.logit_std", "timesteps.timestep_sampling", ("logit_normal",), "only logit_normal uses it"),
    no_effect("timesteps.mode_scale", "timesteps.timestep_sampling", ("mode",), "only mode uses it"),
    # loss
    Rule(
        ("loss.prior_loss_weight", "dataset.folders"),
        lambda weight, folders: (
            weight != by_path()["loss.prior_loss_weight"].default and not any(folder.is_reg for folder in folders)
        ),
        "prior_loss_weight has no effect: no folder has regularization images",
        "Set is_reg on the folder of regularization images, or remove prior_loss_weight",
        "warning",
    ),
    no_effect("loss.huber_c", "loss.loss_type", ("huber", "smooth_l1"), "loss_type l2 does not use it"),
    no_effect("loss.huber_schedule", "loss.loss_type", ("huber", "smooth_l1"), "loss_type l2 does not use it"),
    Rule(
        ("loss.multires_noise_discount", "loss.multires_noise_iterations"),
        lambda discount, layers: discount != by_path()["loss.multires_noise_discount"].default and not layers,
        "multires_noise_discount has no effect: multires_noise_iterations is 0",
        "Set multires_noise_iterations to 6, or remove multires_noise_discount",
        "warning",
    ),
    Rule(
        ("loss.debiased_estimation", "loss.min_snr_gamma"),
        lambda debiased, gamma: debiased and gamma is not None,
        "debiased_estimation and min_snr_gamma are both set, and both change the weights",
        "Keep one of them",
        "warning",
    ),
    Rule(
        ("loss.zero_terminal_snr", "loss.prediction_type"),
        lambda zero, prediction: zero and prediction == "epsilon",
        "zero_terminal_snr needs v-prediction: at pure noise, predicting the noise teaches nothing",
        "Set prediction_type to v_prediction for a model that was trained with it, or remove zero_terminal_snr",
    ),
)
