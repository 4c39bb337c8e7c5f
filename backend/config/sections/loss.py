"""Declares [loss]: how a prediction is compared with its target, and the noise and weights of diffusion models."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class LossSection(Section):
    """Distance, target, weights and noise. Most of it is for models over a diffusion schedule (SDXL, SD 1.5)."""

    loss_type: Literal["l2", "huber", "smooth_l1"] = setting(
        "l2",
        label="Loss",
        help="How an error counts. l2: squared, what models are trained with; huber and smooth_l1: large errors count "
        "less, so that odd pictures pull less.",
        aliases=("loss", "loss_function", "loss_fn"),
    )
    huber_c: float = setting(
        0.1,
        gt=0,
        le=100,
        label="Huber width",
        help="Errors above this count linearly in huber and smooth_l1, smaller ones squared.",
        aliases=("huber_param", "huber_delta"),
        advanced=True,
    )
    huber_schedule: Literal["constant", "exponential", "snr"] = setting(
        "snr",
        label="Huber schedule",
        help="How the width follows the noise level: the same everywhere, or wide at little noise (nearly l2) and "
        "narrow at much noise, exponentially or by the signal to noise ratio.",
        advanced=True,
    )
    prediction_type: Literal["auto", "epsilon", "v_prediction"] = setting(
        "auto",
        label="Prediction type",
        help="What the base model predicts. auto reads its scheduler_config.json, and of a single file the mark "
        "v_pred. Many files bear none: set v_prediction for checkpoints trained so.",
        aliases=("v_parameterization", "v_prediction", "parameterization"),
    )
    min_snr_gamma: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="Min-SNR gamma",
        help="Limits the weight of timesteps with little noise, for faster and steadier learning. 5 is usual; empty is "
        "off.",
        aliases=("snr_gamma", "min_snr"),
    )
    debiased_estimation: bool = setting(
        False,
        label="Debiased estimation",
        help="Weights each timestep by the noise in it, in place of min-SNR: more for composition.",
        aliases=("debiased_estimation_loss",),
        advanced=True,
    )
    scale_v_pred_loss_like_noise_pred: bool = setting(
        False,
        label="v-prediction weighed as noise",
        help="For v-prediction models: weights each timestep as if the noise were predicted.",
        aliases=("scale_v_pred_loss",),
        advanced=True,
    )
    noise_offset: float = setting(
        0.0,
        ge=0,
        le=1,
        label="Noise offset",
        help="Shifts the noise of each channel as a whole, so that very dark and very bright pictures can be learnt. "
        "0.03 to 0.1; 0 is off.",
        aliases=("offset_noise", "noise_offset_strength"),
    )
    multires_noise_iterations: int = setting(
        0,
        ge=0,
        le=64,
        label="Multires noise layers",
        help="Layers of noise that are added, the first as fine as the noise and each further one coarser: another way "
        "to dark and bright pictures. 6 to 10; 0 is off.",
        aliases=("multires_noise", "pyramid_noise_iterations"),
        advanced=True,
    )
    multires_noise_discount: float = setting(
        0.3,
        gt=0,
        le=1,
        label="Multires noise discount",
        help="How much weaker each coarser layer is than the one before.",
        aliases=("pyramid_noise_discount",),
        advanced=True,
    )
    ip_noise_gamma: float = setting(
        0.0,
        ge=0,
        le=1,
        label="Input perturbation",
        help="Adds a little noise that the model is not asked to find, as its own errors do when it draws. 0.1 is "
        "usual; 0 is off.",
        aliases=("input_perturbation", "ip_noise"),
        advanced=True,
    )
    zero_terminal_snr: bool = setting(
        False,
        label="Zero terminal SNR",
        help="Makes the last timestep pure noise. Only for v-prediction models that were trained so; a model whose "
        "scheduler_config.json says it needs no setting.",
        aliases=("rescale_betas_zero_snr", "zero_snr", "ztsnr"),
        advanced=True,
    )
