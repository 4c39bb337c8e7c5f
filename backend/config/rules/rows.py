"""Rules between settings, as data: which settings, when they contradict each other, and what to do about it.

They run on whatever could be read, beside the type errors: a rule is left out only where one of its own settings could
not be read.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from backend.base.paths import is_broad, resolve
from backend.base.problems import Problem
from backend.config.rules.compile import COMPILE_RULES
from backend.config.rules.rule import Rule, When, longer_than_run, needs_pictures, no_effect
from backend.config.rules.weights import WEIGHT_RULES
from backend.config.rules_packages import PACKAGE_RULES
from backend.config.rules_saving import SAVING_RULES
from backend.config.schema import Config, by_path
from backend.config.sections.training import step_limit
from backend.families.table import FAMILIES


def check(cfg: Config, when: When = "always", without: Collection[str] = ()) -> list[Problem]:
    """Problems between settings.

    when: ``always`` checks what holds for any file, ``start`` what a run needs besides. without: paths of settings
    whose value could not be read; rules about them are left out.
    """
    kept = [rule for rule in RULES if rule.when == when and not set(rule.paths) & set(without)]
    return [problem for rule in kept for problem in rule.problems(cfg)]


def _twice(keys: list[str]) -> list[int]:
    """Indexes of the keys that an earlier one equals."""
    first = {key: index for index, key in reversed(list(enumerate(keys)))}
    return [index for index, key in enumerate(keys) if first[key] != index]


def _folder_keys(rows: list[Any]) -> list[str]:
    return [str(resolve(row.path)) for row in rows]


_OPTIONS = [row.options for row in FAMILIES.values()]
# Settings that some families have and others lack.
_FAMILY_OPTIONS = frozenset().union(*_OPTIONS) - frozenset.intersection(*_OPTIONS)


def family_option(path: str) -> Rule:
    """A warning when a setting that only some families have was changed for one that lacks it."""
    name, default = path.rsplit(".", 1)[1], by_path()[path].default
    having = [row for row in FAMILIES.values() if name in row.options]
    return Rule(
        (path, "model.family"),
        lambda value, family: value != default and FAMILIES[family] not in having,
        f"{name} has no effect: the family {{family}} does not have it",
        f"Take {name} out; it is for {', '.join(facts.title for facts in having)}",
        "warning",
    )


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


RULES: tuple[Rule, ...] = (
    # what a run needs
    Rule(
        ("model.base_model",),
        lambda base: base is None,
        "no base model is chosen",
        "Give the folder of a model in diffusers layout",
        when="start",
    ),
    Rule(
        ("dataset.folders",),
        lambda folders: not folders,
        "no image folder is given",
        "Add a row to dataset.folders with the folder of your pictures",
        when="start",
    ),
    *PACKAGE_RULES,
    # control pictures
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
    # length
    Rule(
        ("training.max_train_steps", "training.max_train_epochs"),
        lambda steps, epochs: steps is not None and epochs is not None,
        "the length of the run is given twice: {max_train_steps} steps and {max_train_epochs} epochs",
        "Leave max_train_steps or max_train_epochs empty",
    ),
    Rule(
        ("optimizer.lr_warmup",),
        lambda warmup: warmup >= 1 and not float(warmup).is_integer(),
        "{lr_warmup} is neither a share below 1 nor a whole number of steps",
        "Write a share such as 0.05, or whole steps such as 100",
    ),
    Rule(
        ("optimizer.lr_warmup", "training.max_train_steps", "training.max_train_epochs"),
        lambda warmup, steps, epochs: (limit := step_limit(steps, epochs)) is not None and 1 <= warmup >= limit,
        "the warm-up of {lr_warmup:g} steps is as long as the run, so that the learning rate is never reached",
        "Set lr_warmup to a share such as 0.05, or to fewer steps",
        "warning",
    ),
    longer_than_run("saving.save_every_n_steps", "the steps of the run", "steps", "Nothing is saved before the end"),
    longer_than_run("saving.save_every_n_epochs", "the epochs of the run", "epochs", "Nothing is saved before the end"),
    longer_than_run("sampling.sample_every_n_steps", "the steps of the run", "steps", "Nothing is drawn on the way"),
    longer_than_run("sampling.sample_every_n_epochs", "the epochs of the run", "epochs", "Nothing is drawn on the way"),
    longer_than_run(
        "validation.validate_every_n_steps", "the steps of the run", "steps", "Nothing is measured on the way"
    ),
    longer_than_run(
        "validation.validate_every_n_epochs", "the epochs of the run", "epochs", "Nothing is measured on the way"
    ),
    longer_than_run(
        "dataset.caption_dropout_every_n_epochs", "the epochs of the run", "epochs", "No epoch is without captions"
    ),
    # data set
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
        lambda rows: _twice(_folder_keys(rows)),
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
    *WEIGHT_RULES,
    # timesteps
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
    no_effect("loss.huber_c", "loss.loss_type", ("huber", "smooth_l1"), "l2 has no width"),
    no_effect("loss.huber_schedule", "loss.loss_type", ("huber", "smooth_l1"), "l2 has no width"),
    Rule(
        ("loss.multires_noise_discount", "loss.multires_noise_iterations"),
        lambda discount, layers: discount != by_path()["loss.multires_noise_discount"].default and not layers,
        "multires_noise_discount has no effect: there are no layers of multires noise",
        "Set multires_noise_iterations to 6, or take multires_noise_discount out",
        "warning",
    ),
    Rule(
        ("loss.debiased_estimation", "loss.min_snr_gamma"),
        lambda debiased, gamma: debiased and gamma is not None,
        "debiased_estimation and min_snr_gamma are both set, and their weights multiply",
        "Keep one of them",
        "warning",
    ),
    Rule(
        ("loss.zero_terminal_snr", "loss.prediction_type"),
        lambda zero, prediction: zero and prediction == "epsilon",
        "zero_terminal_snr needs v-prediction: from pure noise the noise itself tells nothing",
        "Set prediction_type to v_prediction for a model that was trained so, or take zero_terminal_snr out",
    ),
    *(family_option(path) for path in by_path() if path.rsplit(".", 1)[1] in _FAMILY_OPTIONS),
    *COMPILE_RULES,
    # samples
    Rule(
        ("sampling.prompts", "model.family"),
        lambda rows, family: (
            [i for i, row in enumerate(rows) if row.true_cfg_scale == 1]
            if FAMILIES[family].objective == "diffusion"
            else []
        ),
        "without true guidance a sample of {family} is blurred and hardly follows its prompt",
        "Set true_cfg_scale to about 7",
        "warning",
        column="true_cfg_scale",
    ),
    Rule(
        ("sampling.prompts",),
        lambda rows: [i for i, row in enumerate(rows) if row.negative_prompt.strip() and row.true_cfg_scale == 1],
        "the negative prompt has no effect at a true guidance of 1",
        "Set true_cfg_scale above 1, such as 3, or take the negative prompt out",
        "warning",
        column="negative_prompt",
    ),
    *(
        Rule(
            (f"sampling.{name}", "sampling.prompts"),
            lambda value, prompts: bool(value) and not prompts,
            f"{name} has no effect: there are no sample prompts",
            f"Add a row to sampling.prompts, or take {name} out",
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
            "validation_sigmas",
            "validation_seed",
            "validation_repeats",
        )
    ),
    Rule(
        ("validation.validation_folders",),
        lambda rows: _twice([row.name.lower() for row in rows]),
        "another validation folder has this name",
        "Give each validation folder a name of its own",
        column="name",
    ),
    Rule(
        ("validation.validation_folders", "dataset.folders"),
        lambda rows, trained: [i for i, key in enumerate(_folder_keys(rows)) if key in _folder_keys(trained)],
        "this folder is trained on too, so its loss says nothing about new pictures",
        "Use pictures that are not trained, or dataset.validation_split",
        "warning",
        column="path",
    ),
    *SAVING_RULES,
    Rule(
        ("saving.output_dir",),
        is_broad,
        "{output_dir} holds other things than runs",
        "Choose a folder that is for runs alone, such as {output_dir}/runs",
        "warning",
    ),
)
