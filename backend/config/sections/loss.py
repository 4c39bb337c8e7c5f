"""Declares [loss]: how a prediction is compared with its target, and the noise and weights of diffusion models."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class LossSection(Section):
    """Distance, target, weights and noise. Most of it is for models over a diffusion schedule (SDXL, SD 1.5)."""

    loss_type: Literal["l2", "huber", "smooth_l1"] = setting(
        "l2",
        label="Loss type",
        help="How an error counts. l2: squared, as the base models were trained. huber and smooth_l1: large errors "
        "count less, so that unusual images have less influence.",
        aliases=("loss", "loss_function", "loss_fn"),
    )
    huber_c: float = setting(
        0.1,
        gt=0,
        le=100,
        label="Huber C",
        help="With huber and smooth_l1, errors above this count linearly and smaller errors squared.",
        aliases=("huber_param", "huber_delta"),
        advanced=True,
    )
    huber_schedule: Literal["constant", "exponential", "snr"] = setting(
        "snr",
        label="Huber schedule",
        help="How the Huber C follows the noise level. constant: the same for all levels. exponential and snr: "
        "large at little noise (nearly l2) and small at much noise, exponentially or by the signal-to-noise "
        "ratio.",
        advanced=True,
    )
    prior_loss_weight: float = setting(
        1.0,
        ge=0,
        le=100,
        label="Prior loss weight",
        help="How much the loss of regularization images counts. 1: as much as that of the others.",
        aliases=("prior_preservation_weight",),
    )
    prediction_type: Literal["auto", "epsilon", "v_prediction"] = setting(
        "auto",
        label="Prediction type",
        help="What the base model predicts. auto: read from scheduler_config.json, or from the marker v_pred in a "
        "single file. Many files don't have this marker: choose v_prediction for checkpoints that were trained "
        "with it.",
        aliases=("v_parameterization", "v_prediction", "parameterization"),
    )
    min_snr_gamma: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="Min SNR gamma",
        help="Limits the weight of timesteps with little noise, for faster and steadier learning. 5 is usual; empty "
        "is off.",
        aliases=("snr_gamma", "min_snr"),
    )
    debiased_estimation: bool = setting(
        False,
        label="Debiased estimation",
        help="Weights each timestep by its noise, instead of Min SNR: more weight for composition.",
        aliases=("debiased_estimation_loss",),
        advanced=True,
    )
    scale_v_pred_loss_like_noise_pred: bool = setting(
        False,
        label="Scale v-prediction loss",
        help="For v-prediction models: weights each timestep as if the model predicted the noise.",
        aliases=("scale_v_pred_loss",),
        advanced=True,
    )
    noise_offset: float = setting(
        0.0,
        ge=0,
        le=1,
        label="Noise offset",
        help="Shifts the noise of each channel as a whole, so that very dark and very bright images can be learned. "
        "0.03 to 0.1 is usual; 0 is off.",
        aliases=("offset_noise", "noise_offset_strength"),
    )
    multires_noise_iterations: int = setting(
        0,
        ge=0,
        le=64,
        label="Multires noise iterations",
        help="Layers of noise that are added; the first is as fine as the normal noise, each next one is coarser. "
        "Another way to learn dark and bright images. 6 to 10 is usual; 0 is off.",
        aliases=("multires_noise", "pyramid_noise_iterations"),
        advanced=True,
    )
    multires_noise_discount: float = setting(
        0.3,
        gt=0,
        le=1,
        label="Multires noise discount",
        help="How much weaker each coarser layer is than the layer before it.",
        aliases=("pyramid_noise_discount",),
        advanced=True,
    )
    ip_noise_gamma: float = setting(
        0.0,
        ge=0,
        le=1,
        label="IP noise gamma",
        help="Input perturbation: adds a little noise that the model is not trained to predict, similar to the "
        "model's own errors when it samples. 0.1 is usual; 0 is off.",
        aliases=("input_perturbation", "ip_noise"),
        advanced=True,
    )
    zero_terminal_snr: bool = setting(
        False,
        label="Zero terminal SNR",
        help="Makes the last timestep pure noise. Only for v-prediction models that were trained like this. A model "
        "whose scheduler_config.json has it does not need this setting.",
        aliases=("rescale_betas_zero_snr", "zero_snr", "ztsnr"),
        advanced=True,
    )
