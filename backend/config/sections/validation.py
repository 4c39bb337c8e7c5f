"""Declares [validation]: the loss on pictures that are not trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from backend.config.declare import Section, setting
from backend.config.sections.dataset import control_path, mask_path
from backend.config.sections.values import clean_path, file_name

_Sigma = Annotated[float, Field(gt=0, le=1)]


class ValidationFolder(Section):
    """One row of [[validation.validation_folders]]."""

    path: Annotated[str, AfterValidator(clean_path)] = setting(
        kind="path",
        min_length=1,
        label="Validation folder",
        help="Folder with images and captions that are measured and never trained.",
    )
    name: Annotated[str, AfterValidator(file_name)] = setting(
        min_length=1,
        label="Name",
        help="Name of this folder's line in the charts.",
    )
    control_path: Annotated[str, AfterValidator(clean_path)] | None = control_path()
    mask_path: Annotated[str, AfterValidator(clean_path)] | None = mask_path()


class ValidationSection(Section):
    """Loss on images that are not trained, with the same noise every time."""

    validation_folders: list[ValidationFolder] = setting(
        list,
        label="Validation folders",
        help="Folders with images that are measured and never trained; each gets its own line in the chart. To keep "
        "a share of the training images for validation instead, set the validation split on the Dataset tab.",
        aliases=("val_data_dir", "eval_data_dir", "validation_data_dir"),
    )
    validate_every_n_steps: int | None = setting(
        None,
        ge=1,
        unit="steps",
        label="Validate every N steps",
        help="Measures the validation loss every N steps. Empty: not by steps.",
        aliases=("validation_every_n_steps", "eval_steps", "validate_every"),
    )
    validate_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Validate every N epochs",
        help="Measures the validation loss every N epochs. Empty: not by epochs.",
        aliases=("validation_every_n_epochs", "eval_epochs"),
    )
    validate_at_start: bool = setting(
        False,
        label="Validate before training",
        help="Measures the base model before the first step, for comparison.",
    )
    validate_at_end: bool = setting(
        True,
        label="Validate at the end",
        help="Measures the finished LoRA. Without validation images nothing is measured.",
    )
    early_stop_patience: int | None = setting(
        None,
        ge=1,
        unit="validations",
        label="Early stop patience",
        help="Ends the run, as a finished one, when the validation loss did not reach a new low in this many "
        "validations in a row. Empty: the run has its whole length. When a finished run is resumed, the count begins "
        "again.",
        aliases=("early_stopping_patience",),
    )
    early_stop_min_gain: float = setting(
        0.0,
        ge=0,
        le=100,
        label="Early stop minimum gain",
        help="How much lower than the lowest validation loss so far a loss must be to count as a new low for the early "
        "stop.",
        aliases=("early_stopping_threshold", "early_stopping_min_delta"),
        advanced=True,
    )
    validate_training_images: int = setting(
        0,
        ge=0,
        unit="images",
        label="Training images to measure too",
        help="Also measures this many training images at each validation, always the same ones, with the same noise "
        "as the validation images. When their loss falls while that of the validation images rises, the Run tab says "
        "that the LoRA overfits, and since which step. 0: none.",
    )
    validation_sigmas: list[_Sigma] = setting(
        lambda: [0.05, 0.1, 0.2, 0.35],
        min_length=1,
        label="Validation noise levels",
        help="Noise levels (sigma, from 0 clean to 1 noise) at which the loss is measured. Low levels show learning "
        "best; high levels change very little.",
        aliases=("validation_timesteps", "eval_timesteps"),
        advanced=True,
    )
    picture_losses: bool = setting(
        False,
        label="Measure each training image",
        help="Measures the loss of each training image or video at the start, in the middle and at the end of the run, "
        "with the noise levels, repeats and seed of the validation loss. The Dataset tab then shows which images were "
        "learnt. Regularization images are left out. The scan shows what it costs.",
    )
    validation_seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Validation seed",
        help="Seed of the noise in each measurement. It stays the same, so that the line shows the model and not "
        "chance.",
        aliases=("eval_seed",),
        advanced=True,
    )
    validation_repeats: int = setting(
        1,
        ge=1,
        le=1000,
        label="Validation repeats",
        help="How often each image is measured at each noise level, with different noise. More repeats are steadier "
        "and slower.",
        aliases=("validation_draws",),
        advanced=True,
    )
