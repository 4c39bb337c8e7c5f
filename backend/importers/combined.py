"""Reads what takes more than one name of another program: the family, the length of a run, what is trained."""

from __future__ import annotations

from typing import Any

from backend.base.problems import Problem
from backend.config.schema import by_path
from backend.families.table import lacking
from backend.importers import tables
from backend.importers.common_reasons import DENOISER_TRAINED, TEXT_ENCODERS_FROZEN
from backend.importers.family import FamilyGuess, family_of
from backend.importers.network import WHOLE, read_network
from backend.importers.notes import Note
from backend.importers.values import is_off, number
from backend.importers.work import Work

_TELLING = (
    "sdxl", "sdxl_checkbox", "flux1_checkbox", "sd3_checkbox", "anima_checkbox", "lumina_checkbox",
    "hunyuan_image_checkbox", "v2", "edit", "edit_plus", "f1", "model_version", "task", "LoRA_type", "network_module",
    "base_model_version",
)  # fmt: skip
"""Names that tell the family."""
_FAMILY_NAMES = ("network_module", "LoRA_type", "base_model_version", "sdxl", "pretrained_model_name_or_path")
"""Those that the family is said of, the first that is there."""
_STEPS, _EPOCHS = "training.max_train_steps", "training.max_train_epochs"
_ENCODERS, _RATE = "network.train_text_encoder", "optimizer.learning_rate"


class NotOffered(Exception):
    """The file is for a model that is not offered here, so that nothing of it can be taken."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem


def take_family(work: Work, family: str | None, key: str, guessed: str = "") -> None:
    """Have the settings be for `family`, as `key` says; where nothing tells it, it is left open, and said.

    NotOffered for one that is not here: settings of another model would be taken for the one that is the default.
    """
    known = by_path()["model.family"].choices or ()
    line = work.source.lines.get(key)
    if family and family not in known:
        text = f"the file is for the model family {family}, which Monotile does not train; it trains {', '.join(known)}"
        raise NotOffered(Problem(None, line, text, "Choose a file for one of these; nothing was imported"))
    if family:
        work.take("model.family", family, key)
        work.note(
            key,
            "near" if guessed else "taken",
            f"read as the family {family} {guessed}" if guessed else "",
            "model.family",
        )
        return
    why = f"the file does not say for which model it is; it stays {work.family_here}, or name one with --family"
    work.notes.append(Note("model family", "near", why))


def read_family(work: Work) -> None:
    """The model family and the kind of network, and a word for each name that tells of them."""
    model: FamilyGuess = family_of(work.kind, work.values)
    key = next((k for k in _FAMILY_NAMES if work.values.get(k)), "model family")
    if work.wanted and (model.family is None or model.guessed):
        take_family(work, work.wanted, "--family")
    else:
        take_family(work, model.family, key, model.guessed)
    if work.values.get("model_version") == "edit-2511":
        work.take("model.zero_cond_t", "on", "model_version")
        work.note("model_version", "taken", "", "model.zero_cond_t")
    if work.kind == "kohya_ss" and "LoRA_type" not in work.values and "token_string" in work.values:
        work.note("kind of training", "not offered", "this preset trains an embedding; these settings train a LoRA")
    if model.network:
        work.note("network kind", "not offered", f"{model.network} networks are not supported; a LoRA is trained")
    elif model.kind != "lora":
        work.take("network.network_type", model.kind, "network kind")
        work.note("network kind", "taken", "", "network.network_type")
    for key in _TELLING:
        called = work.source.names.get(key, key)
        if key in work.values and all(note.key != called for note in work.notes):
            work.note(key, "off" if is_off(work.values[key]) else "taken", "", "model.family")


def read_length(work: Work) -> None:
    """Steps or epochs: there one of them rules, here only one may be given."""
    steps, epochs = work.ours.get(_STEPS), work.ours.get(_EPOCHS)
    if work.kind == "kohya_ss" and not is_off(work.values.get("dataset_config")):
        # with a data set file the window's own epochs are not handed on
        if epochs is not None and work.origin[_EPOCHS] == "epoch":
            work.drop(_EPOCHS, "not needed", "with dataset_config, kohya_ss does not pass it to the trainer")
            epochs = None
        if steps is None and epochs is None:
            default = tables.DEFAULTS["sd-scripts"]["max_train_steps"]
            why = f"not in the file: {default} is what sd-scripts uses with dataset_config"
            work.change(_STEPS, default, "max_train_steps", why)
        return
    if steps is None or epochs is None:
        return
    epochs_rule = work.origin[_EPOCHS] == "max_train_epochs"
    gone = _STEPS if epochs_rule else _EPOCHS
    work.drop(
        gone,
        "not needed",
        "the epochs have priority in the other program"
        if epochs_rule
        else "the steps have priority in the other program",
    )


def _trained(work: Work) -> tuple[bool, bool]:
    """(whether the denoiser is trained, whether text encoders are), by all names that have a say in it."""
    values = work.values
    rates = [number(_largest(values.get(name))) for name in ("unet_lr", "text_encoder_lr")]
    written = [name in values and values[name] is not None for name in ("unet_lr", "text_encoder_lr")]
    zero = [is_off(rate) for rate in rates]
    if work.kind == "kohya_ss":
        # a rate of 0 is that of a part that is not trained, and two of them are those of two that have the common one
        denoiser, encoders = (True, True) if all(zero) else (not zero[0], not zero[1])
    else:
        denoiser, encoders = (not (rate and none) for rate, none in zip(written, zero, strict=True))
    if not is_off(values.get("network_train_unet_only")):
        denoiser, encoders = True, False
    elif not is_off(values.get("network_train_text_encoder_only")):
        denoiser, encoders = False, True
    switches = {start + "cache_text_encoder_outputs": on for start, on in tables.SWITCHES.items()}
    cached = not is_off(values.get("cache_text_encoder_outputs")) or any(
        not is_off(values.get(name)) and not is_off(values.get(on)) for name, on in switches.items()
    )
    if (
        cached
        or work.kind == "musubi-tuner"
        or ("train_text_encoder" in values and is_off(values["train_text_encoder"]))
    ):
        encoders = False
    return denoiser, encoders


def _largest(rate: Any) -> Any:
    return max(rate, key=_as_number, default=None) if isinstance(rate, list) else rate


def _as_number(value: Any) -> float:
    parsed = number(value)
    return float(parsed) if isinstance(parsed, int | float) else 0.0


def read_text_encoders(work: Work) -> None:
    """Whether text encoders are trained, or they alone, as in sd-scripts; and how fast."""
    denoiser, trained = _trained(work)
    key, rate = "network_train_unet_only", "optimizer.text_encoder_lr"
    written = key in work.values
    alone = "network_train_text_encoder_only"
    if "train_text_encoder" in lacking(work.family_here):
        why = "text encoders of this family are not trained; in the other program they are"
        if trained or written:
            work.note(key, "not offered" if trained else "taken", why if trained else "")
        if alone in work.values:
            off = is_off(work.values[alone])
            work.note(alone, "off" if off else "not offered", "" if off else DENOISER_TRAINED)
        elif not denoiser:
            work.note("unet_lr", "not offered", "of 0: Monotile always trains the denoiser, at learning_rate")
        return
    work.take(_ENCODERS, trained, key)
    common = number(work.values.get("learning_rate", tables.DEFAULTS["sd-scripts"]["learning_rate"]))
    if trained and rate not in work.ours and (not denoiser or work.origin.get(_RATE) == "unet_lr"):
        work.take(rate, common, "learning_rate")
    if alone in work.values:
        work.note(alone, "off" if is_off(work.values[alone]) else "taken", "", None if denoiser else _RATE)
    if not trained and rate in work.ours:
        work.drop(rate, "not needed", TEXT_ENCODERS_FROZEN)
    if not denoiser and trained:
        work.change(
            _RATE, 0.0, "unet_lr", "the other program does not train the denoiser: with a rate of 0 it does not change"
        )
    if written or trained:
        why = "" if written else "not in the file: the other program trains the text encoders too"
        work.note(key, "taken" if written else "default", why, _ENCODERS)


def read_lora(work: Work) -> None:
    """The arguments of the network, once its kind is known."""
    work.notes += read_network(work.source, work.ours, work.origin)
    path, rank = "network.network_dim", work.ours.get("network.network_dim")
    if work.ours.get("network.network_type") == "lokr" and isinstance(rank, int) and rank > WHOLE:
        work.change(
            path, WHOLE, work.origin[path], "the largest rank: the large factor is not split, as in the other program"
        )


def read_swap(work: Work) -> None:
    """FLUX's blocks are counted there in pairs: half of them double ones, and two single ones for each other."""
    path, count = "memory.blocks_to_swap", work.ours.get("memory.blocks_to_swap")
    if work.family in ("flux", "flux_kontext") and isinstance(count, int) and count > 0:
        double = count // 2
        single = (count - double) * 2 + (work.kind == "musubi-tuner")
        work.change(
            path,
            double + single,
            work.origin[path],
            f"the other program swaps {double} double and {single} single blocks",
        )


_TRACKERS = {"tensorboard": "logging.tensorboard", "wandb": "logging.wandb"}
_TRACKER_NAMES = {"log_tracker_name": "logging.wandb_project", "wandb_run_name": "logging.wandb_run_name"}


def read_trackers(work: Work) -> None:
    """Where else the other program writes its numbers, and what the run is called there."""
    trackers = str(work.values.get("log_with") or "")
    for goal in [goal for name, goal in _TRACKERS.items() if trackers in (name, "all")]:
        work.take(goal, True, "log_with")
        work.note("log_with", "taken", "", goal)
    if "log_with" in work.values and trackers not in (*_TRACKERS, "all"):
        why = "only TensorBoard and Weights & Biases are supported"
        work.note("log_with", "off" if is_off(trackers) else "not offered", "" if is_off(trackers) else why)
    for key, goal in _TRACKER_NAMES.items():
        if key not in work.values:
            continue
        name = str(work.values[key]).strip()
        if name and "logging.wandb" in work.ours:
            work.take(goal, name, key)
            work.note(key, "taken", "", goal)
        else:
            work.note(key, "off", "it is used only if log_with is wandb" if name else "empty")
