"""Lists rules about sample pictures and validation."""

from __future__ import annotations

from backend.config.rules.rule import (
    Rule,
    folder_keys,
    longer_than_run,
    needs_pictures,
    refused_without_validation,
    repeated,
)
from backend.families.table import FAMILIES

SAMPLING_RULES: tuple[Rule, ...] = (
    longer_than_run(
        "sampling.sample_every_n_steps", "the steps of the run", "steps", "No sample is made before the end"
    ),
    longer_than_run(
        "sampling.sample_every_n_epochs", "the epochs of the run", "epochs", "No sample is made before the end"
    ),
    longer_than_run(
        "validation.validate_every_n_steps", "the steps of the run", "steps", "Nothing is measured before the end"
    ),
    longer_than_run(
        "validation.validate_every_n_epochs", "the epochs of the run", "epochs", "Nothing is measured before the end"
    ),
    Rule(
        ("sampling.prompts", "model.family"),
        lambda rows, family: (
            [i for i, row in enumerate(rows) if row.true_cfg_scale == 1]
            if FAMILIES[family].objective == "diffusion"
            else []
        ),
        "with a true_cfg_scale of 1 a sample of {family} is blurred and hardly follows its prompt",
        "Set true_cfg_scale to about 7",
        "warning",
        column="true_cfg_scale",
    ),
    Rule(
        ("sampling.prompts", "model.family"),
        lambda rows, family: (
            [i for i, row in enumerate(rows) if row.frames is not None] if FAMILIES[family].video is None else []
        ),
        "frames has no effect: the family {family} makes images",
        "Leave frames empty, or choose a family that makes videos",
        "warning",
        column="frames",
    ),
    Rule(
        ("sampling.prompts",),
        lambda rows: [i for i, row in enumerate(rows) if row.negative_prompt.strip() and row.true_cfg_scale == 1],
        "the negative prompt has no effect with a true_cfg_scale of 1",
        "Set true_cfg_scale above 1, such as 3, or remove the negative prompt",
        "warning",
        column="negative_prompt",
    ),
    *(
        Rule(
            (f"sampling.{name}", "sampling.prompts"),
            lambda value, prompts: bool(value) and not prompts,
            f"{name} has no effect: there are no sample prompts",
            f"Add a row to sampling.prompts, or remove {name}",
            "warning",
        )
        for name in ("sample_every_n_steps", "sample_every_n_epochs", "sample_at_start")
    ),
    # validation
    *(
        needs_pictures(f"validation.{name}")
        for name in (
            "validate_every_n_steps",
            "validate_every_n_epochs",
            "validate_at_start",
            "validate_training_images",
        )
    ),
    *(
        needs_pictures(f"validation.{name}", or_trained=True)
        for name in ("validation_sigmas", "validation_seed", "validation_repeats")
    ),
    *refused_without_validation("validation.early_stop_patience"),
    Rule(
        ("validation.early_stop_min_gain", "validation.early_stop_patience"),
        lambda gain, patience: bool(gain) and patience is None,
        "early_stop_min_gain has no effect: early_stop_patience is empty",
        "Set validation.early_stop_patience, or remove early_stop_min_gain",
        "warning",
    ),
    Rule(
        ("validation.validation_folders",),
        lambda rows: repeated([row.name.lower() for row in rows]),
        "another validation folder has this name",
        "Give each validation folder another name",
        column="name",
    ),
    Rule(
        ("validation.validation_folders", "dataset.folders"),
        lambda rows, trained: [i for i, key in enumerate(folder_keys(rows)) if key in folder_keys(trained)],
        "this folder is trained too, so its loss says nothing about new images",
        "Use images that are not trained, or set dataset.validation_split",
        "warning",
        column="path",
    ),
)
