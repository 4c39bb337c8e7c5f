"""Lists rules about timesteps, the loss and the noise."""

from __future__ import annotations

from backend.config.rules.rule import Rule, no_effect
from backend.config.schema import by_path

LOSS_RULES: tuple[Rule, ...] = (
    Rule(
        ("timesteps.min_timestep", "timesteps.max_timestep"),
        lambda low, high: low >= high,
        "there is no timestep between {min_timestep:g} and {max_timestep:g}",
        "Set min_timestep below max_timestep",
    ),
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
