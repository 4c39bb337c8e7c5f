"""Lists rules about the image folders, buckets, captions and control pictures."""

from __future__ import annotations

from backend.config.rules.rule import Rule, folder_keys, longer_than_run, repeated
from backend.config.schema import by_path
from backend.families.table import FAMILIES


def needs_control(path: str, column: str) -> Rule:
    """An error for each row without a control picture, of a family that can't do without one."""
    return Rule(
        (path, "model.family"),
        lambda rows, family: (
            [number for number, row in enumerate(rows) if getattr(row, column) is None]
            if (rule := FAMILIES[family].controls) is not None and rule.needed
            else []
        ),
        f"the family {{family}} edits a picture and reads the caption with it: {column} is missing",
        f"Set {column} to {'the pictures' if column == 'control_path' else 'the picture'} to start from",
        when="start",
        column=column,
    )


DATASET_RULES: tuple[Rule, ...] = (
    Rule(
        ("dataset.folders",),
        lambda folders: not folders,
        "no image folder is given",
        "Add a row to dataset.folders with the folder of your pictures",
        when="start",
    ),
    Rule(
        ("dataset.folders", "validation.validation_folders", "sampling.prompts", "model.family"),
        lambda folders, measured, prompts, family: (
            FAMILIES[family].controls is None
            and (any(f.control_path for f in [*folders, *measured]) or any(p.controls for p in prompts))
        ),
        "the family {family} takes no control pictures",
        "Take control_path and control_image out, or choose a family that edits, such as flux_kontext",
    ),
    Rule(
        ("sampling.prompts", "model.family"),
        lambda prompts, family: (
            [number for number, row in enumerate(prompts) if len(row.controls) > rule.most]
            if (rule := FAMILIES[family].controls) is not None
            else []
        ),
        "the family {family} takes fewer control pictures",
        "Leave control_image_2 and control_image_3 empty, or choose qwen_image_edit_plus",
        column="control_image_2",
    ),
    *(
        needs_control(path, column)
        for path, column in (
            ("dataset.folders", "control_path"),
            ("validation.validation_folders", "control_path"),
            ("sampling.prompts", "control_image"),
        )
    ),
    Rule(
        ("dataset.min_bucket_size", "dataset.max_bucket_size"),
        lambda low, high: low > high,
        "the smallest side ({min_bucket_size} px) is above the longest ({max_bucket_size} px)",
        "Set min_bucket_size below max_bucket_size",
    ),
    Rule(
        ("dataset.resolution", "dataset.min_bucket_size", "dataset.max_bucket_size"),
        lambda side, low, high: side < low <= high,
        "no picture of {resolution} px fits: the smallest side is {min_bucket_size} px",
        "Set dataset.min_bucket_size to {resolution} or less, half of it for wide pictures",
    ),
    Rule(
        ("dataset.resolution", "dataset.max_bucket_size", "dataset.min_bucket_size"),
        lambda side, high, low: side > high >= low,
        "no picture of {resolution} px fits: the longest side is {max_bucket_size} px",
        "Set dataset.max_bucket_size to {resolution} or more, twice of it for wide pictures",
    ),
    Rule(
        ("dataset.folders",),
        lambda rows: repeated(folder_keys(rows)),
        "this folder is in the list already, so its pictures are trained more often",
        "Take the row out, and set num_repeats to train a folder more often",
        "warning",
        column="path",
    ),
    Rule(
        ("dataset.caption_dropout_rate", "dataset.caption_dropout_every_n_epochs"),
        lambda rate, every: rate == 1 or every == 1,
        "every caption is dropped, so that nothing is learnt about words",
        "Set caption_dropout_rate to 0.1 or less, and caption_dropout_every_n_epochs to 2 or more",
        "warning",
    ),
    Rule(
        ("dataset.validation_split_seed", "dataset.validation_split"),
        lambda seed, split: seed != by_path()["dataset.validation_split_seed"].default and not split,
        "validation_split_seed has no effect: no pictures are held out",
        "Set dataset.validation_split above 0, or take validation_split_seed out",
        "warning",
    ),
    longer_than_run(
        "dataset.caption_dropout_every_n_epochs", "the epochs of the run", "epochs", "No epoch is without captions"
    ),
)
