"""What takes more than one name of another program to tell: the family, the length of a run, what is trained."""

from __future__ import annotations

from backend.config.schema import by_path
from backend.importers import tables
from backend.importers.family import Found, family_of
from backend.importers.network import read_network
from backend.importers.values import is_off, number
from backend.importers.work import Work
from backend.models.table import lacking

_TELLING = (
    "sdxl", "flux1_checkbox", "sd3_checkbox", "anima_checkbox", "lumina_checkbox", "hunyuan_image_checkbox", "v2",
    "edit", "edit_plus", "model_version", "LoRA_type", "network_module",
)  # fmt: skip
"""Names that tell the family."""
_WHOLE = 4096
"""The largest rank. From half of a LoKr's large factor on LyCORIS leaves it whole, and people write 100000 for that."""


def read_family(work: Work) -> None:
    """The model family and the kind of network, and a word for each name that tells of them."""
    found: Found = family_of(work.kind, work.values)
    key = next((k for k in ("network_module", "LoRA_type", "sdxl") if work.values.get(k)), "network_module")
    known = by_path()["model.family"].choices or ()
    if found.family in known:
        why = f"taken for {found.family} {found.guessed}" if found.guessed else ""
        work.take("model.family", found.family, key)
        work.note(key, "near" if why else "taken", why, "model.family")
        if work.values.get("model_version") == "edit-2511":
            work.take("model.zero_cond_t", "on", "model_version")
            work.note("model_version", "taken", "", "model.zero_cond_t")
    else:
        name = found.family or "this model"
        work.note(key, "not offered", f"{name} is not among the model families here: {', '.join(known)}")
    if work.kind == "kohya_ss" and "LoRA_type" not in work.values:
        other = "an embedding" if "token_string" in work.values else "the whole model"
        work.note("kind of training", "not offered", f"this preset trains {other}; a LoRA is trained here")
    if found.network:
        work.note("network kind", "not offered", f"{found.network} are not offered; a LoRA is trained")
    elif found.kind != "lora":
        work.take("network.network_type", found.kind, "network kind")
        work.note("network kind", "taken", "", "network.network_type")
    for key in _TELLING:
        if key in work.values and all(note.key != key for note in work.notes):
            work.note(key, "off" if is_off(work.values[key]) else "taken", "", "model.family")


def read_length(work: Work) -> None:
    """Steps or epochs: there one of them rules, here only one may be given."""
    steps, epochs = work.ours.get("training.max_train_steps"), work.ours.get("training.max_train_epochs")
    if steps is None or epochs is None:
        return
    epochs_rule = work.origin["training.max_train_epochs"] == "max_train_epochs"
    gone = "training.max_train_steps" if epochs_rule else "training.max_train_epochs"
    work.drop(gone, "not needed", "there the epochs rule" if epochs_rule else "there the steps rule")


def read_text_encoders(work: Work) -> None:
    """Whether text encoders are trained, as in sd-scripts unless one of several names says otherwise; and how fast."""
    unet_only = work.values.get("network_train_unet_only")
    if "network_train_text_encoder_only" in work.values:
        off = is_off(work.values["network_train_text_encoder_only"])
        work.note("network_train_text_encoder_only", "off" if off else "not offered", "the denoiser is always trained")
    switches = {start + "cache_text_encoder_outputs": on for start, on in tables.SWITCHES.items()}
    cached = not is_off(work.values.get("cache_text_encoder_outputs")) or any(
        not is_off(work.values.get(name)) and not is_off(work.values.get(on)) for name, on in switches.items()
    )
    no_rate = "text_encoder_lr" in work.values and is_off(work.values["text_encoder_lr"])
    trained = work.kind != "musubi-tuner" and is_off(unet_only) and not cached and not no_rate
    key, path, rate = "network_train_unet_only", "network.train_text_encoder", "optimizer.text_encoder_lr"
    said = key in work.values
    if "train_text_encoder" in lacking(work.family):
        why = "text encoders of this family are used as they are; there they are trained"
        if trained or said:
            work.note(key, "not offered" if trained else "taken", why if trained else "")
        return
    work.take(path, trained, key)
    if trained and rate not in work.ours and work.origin.get("optimizer.learning_rate") == "unet_lr":
        work.take(rate, number(work.values.get("learning_rate", 2e-6)), "learning_rate")
    if said or trained:
        why = "" if said else "not in the file: text encoders are trained too"
        work.note(key, "taken" if said else "default", why, path)


def read_lora(work: Work) -> None:
    """The arguments of the network, once its kind is known."""
    work.notes += read_network(work.source, work.ours, work.origin)
    path, rank = "network.network_dim", work.ours.get("network.network_dim")
    if work.ours.get("network.network_type") == "lokr" and isinstance(rank, int) and rank > _WHOLE:
        work.change(path, _WHOLE, work.origin[path], "as large a rank as there is: the large factor is whole, as there")


def read_swap(work: Work) -> None:
    """FLUX's blocks are counted there in pairs: half of them double ones, and two single ones for each other."""
    path, count = "memory.blocks_to_swap", work.ours.get("memory.blocks_to_swap")
    if work.family in ("flux", "flux_kontext") and isinstance(count, int) and count > 0:
        double = count // 2
        single = (count - double) * 2 + (work.kind == "musubi-tuner")
        work.change(path, double + single, work.origin[path], f"there it is {double} double and {single} single blocks")
