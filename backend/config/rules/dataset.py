"""Lists rules about the image folders, buckets, captions and control pictures."""

from __future__ import annotations

from backend.config.rules.rule import Rule, folder_keys, longer_than_run, repeated
from backend.config.schema import by_path
from backend.families.table import FAMILIES


def needs_control(path: str, column: str) -> Rule:
    """An error for each row without a control picture, of a family that can't do without one.

    A family that makes clips from a picture takes it from the clip in training, and can't do without it in samples.
    """
    return Rule(
        (path, "model.family"),
        lambda rows, family: (
            [number for number, row in enumerate(rows) if getattr(row, column) is None]
            if FAMILIES[family].needs_control(sample=column == "control_image")
            else []
        ),
        f"the family {{family}} starts from a control image: {column} is missing",
        f"Set {column} to {'the folder with the images' if column == 'control_path' else 'the image'} to start from",
        when="start",
        column=column,
    )


DATASET_RULES: tuple[Rule, ...] = (
    Rule(
        ("dataset.folders",),
        lambda folders: not folders,
        "no image folder is given",
        "Add a row to dataset.folders with the folder of your images",
        when="start",
    ),
    Rule(
        ("dataset.folders",),
        lambda folders: bool(folders) and all(folder.is_reg for folder in folders),
        "every image folder is one of regularization images (is_reg), so that there is nothing to learn",
        "Add the folder of your subject, or remove is_reg",
    ),
    Rule(
        ("dataset.folders",),
        lambda folders: [
            number
            for number, folder in enumerate(folders)
            if folder.class_images and not (folder.is_reg and folder.class_tokens)
        ],
        "class_images are drawn into a regularization folder, from its caption",
        "Set is_reg and class_tokens of the folder, or remove class_images",
        column="class_images",
    ),
    Rule(
        ("dataset.folders", "validation.validation_folders", "sampling.prompts", "model.family"),
        lambda folders, measured, prompts, family: (
            FAMILIES[family].controls is None
            and (
                any(f.control_path for f in [*folders, *measured])
                or (not FAMILIES[family].sample_controls and any(p.controls for p in prompts))
            )
        ),
        "the family {family} takes no control images",
        "Remove control_path and control_image, or choose a family that edits images, such as flux_kontext",
    ),
    Rule(
        ("sampling.prompts", "model.family"),
        lambda prompts, family: (
            [number for number, row in enumerate(prompts) if len(row.controls) > most]
            if (most := FAMILIES[family].sample_controls)
            else []
        ),
        "the family {family} takes fewer control images",
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
        "min_bucket_size ({min_bucket_size} px) is above max_bucket_size ({max_bucket_size} px)",
        "Set min_bucket_size below max_bucket_size",
    ),
    Rule(
        ("dataset.resolution", "dataset.min_bucket_size", "dataset.max_bucket_size"),
        lambda side, low, high: side < low <= high,
        "no image of {resolution} px fits: min_bucket_size is {min_bucket_size} px",
        "Set dataset.min_bucket_size to {resolution} or less; for wide images to half of it",
    ),
    Rule(
        ("dataset.resolution", "dataset.max_bucket_size", "dataset.min_bucket_size"),
        lambda side, high, low: side > high >= low,
        "no image of {resolution} px fits: max_bucket_size is {max_bucket_size} px",
        "Set dataset.max_bucket_size to {resolution} or more; for wide images to twice as much",
    ),
    Rule(
        ("dataset.folders",),
        lambda rows: repeated(folder_keys(rows)),
        "this folder is already in the list, so its images are trained more often",
        "Remove the row, and set num_repeats to train a folder more often",
        "warning",
        column="path",
    ),
    Rule(
        ("dataset.caption_dropout_rate", "dataset.caption_dropout_every_n_epochs"),
        lambda rate, every: rate == 1 or every == 1,
        "every caption is dropped, so that the LoRA learns no words",
        "Set caption_dropout_rate to 0.1 or less, and caption_dropout_every_n_epochs to 2 or more",
        "warning",
    ),
    Rule(
        ("dataset.validation_split_seed", "dataset.validation_split"),
        lambda seed, split: seed != by_path()["dataset.validation_split_seed"].default and not split,
        "validation_split_seed has no effect: validation_split is 0",
        "Set dataset.validation_split above 0, or remove validation_split_seed",
        "warning",
    ),
    longer_than_run(
        "dataset.caption_dropout_every_n_epochs", "the epochs of the run", "epochs", "No epoch is without captions"
    ),
)
