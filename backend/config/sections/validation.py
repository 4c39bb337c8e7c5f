"""Declares [validation]: the loss on pictures that are not trained."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from backend.config.declare import Section, setting
from backend.config.sections.dataset import control_path
from backend.config.sections.values import clean_path, file_name

_Sigma = Annotated[float, Field(gt=0, le=1)]


class ValidationFolder(Section):
    """One row of [[validation.validation_folders]]."""

    path: Annotated[str, AfterValidator(clean_path)] = setting(
        kind="path",
        min_length=1,
        label="Folder",
        help="Folder with captioned pictures that are measured and never trained.",
    )
    name: Annotated[str, AfterValidator(file_name)] = setting(
        min_length=1,
        label="Name",
        help="What its line is called in the panels.",
    )
    control_path: Annotated[str, AfterValidator(clean_path)] | None = control_path()


class ValidationSection(Section):
    """Loss on pictures that are not trained, with the same noise every time."""

    validation_folders: list[ValidationFolder] = setting(
        list,
        label="Validation folders",
        help="Folders of pictures that are measured and never trained; each gets its own line. A share of the training "
        "pictures can be held out on the Dataset tab instead.",
        aliases=("val_data_dir", "eval_data_dir", "validation_data_dir"),
    )
    validate_every_n_steps: int | None = setting(
        None,
        ge=1,
        unit="steps",
        label="Every so many steps",
        help="Measures each time this many steps are done. Empty: not by steps.",
        aliases=("validation_every_n_steps", "eval_steps", "validate_every"),
    )
    validate_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Every so many epochs",
        help="Measures each time this many epochs are done. Empty: not by epochs.",
        aliases=("validation_every_n_epochs", "eval_epochs"),
    )
    validate_at_start: bool = setting(
        False,
        label="Before the first step",
        help="Measures the base model before training: the line to beat.",
    )
    validate_at_end: bool = setting(
        True,
        label="At the end",
        help="Measures the finished LoRA. Without validation pictures nothing is measured.",
    )
    validation_sigmas: list[_Sigma] = setting(
        lambda: [0.05, 0.1, 0.2, 0.35],
        min_length=1,
        label="Noise levels",
        help="Noise levels (sigma, 0 clean to 1 noise) at which the loss is measured. Low ones show learning best; "
        "high ones hardly move.",
        aliases=("validation_timesteps", "eval_timesteps"),
        advanced=True,
    )
    validation_seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Noise seed",
        help="Noise of the measurement, the same every time, so that the line shows the model and not the dice.",
        aliases=("eval_seed",),
        advanced=True,
    )
    validation_repeats: int = setting(
        1,
        ge=1,
        le=1000,
        label="Noise draws",
        help="How often each picture is measured at each noise level, with different noise. More is steadier and "
        "slower.",
        aliases=("validation_draws",),
        advanced=True,
    )
