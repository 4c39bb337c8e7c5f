"""Reads settings of SimpleTuner: config.json (names with or without --), and its data sets, a list of backends.

Names and defaults are those of ``documentation/OPTIONS.md`` and ``DATALOADER.md`` of bghira/SimpleTuner. Its flow
models draw a sigmoid of a normal distribution and shift it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.importers.arguments import arguments
from backend.importers.combined import take_family
from backend.importers.common_reasons import ADAM_8BIT, IMAGE_SHAPES, PLAIN_ADAMW, TEXT_ENCODERS_FROZEN, WHOLE_MODEL
from backend.importers.families import named_family
from backend.importers.notes import Note
from backend.importers.program import Fields, Program, take_known, take_optimizer
from backend.importers.program_values import PROGRAM_READERS
from backend.importers.simpletuner_names import KEYS, NEUTRAL, NOT_NEEDED, NOT_OFFERED
from backend.importers.values import Left, is_off, number
from backend.importers.work import Work

_EVEN = 1.7
_PLAIN = PLAIN_ADAMW
_OPTIMIZERS = {
    "adamw_bf16": ("adamw", ""), "optimi-adamw": ("adamw", ""), "optimi-stableadamw": ("adamw", _PLAIN),
    "bnb-adamw": ("adamw", ""), "bnb-adamw8bit": ("adamw8bit", ""), "ao-adamw8bit": ("adamw8bit", ""),
    "ao-adamw4bit": ("adamw8bit", "a 4-bit state is not supported; 8 bits are used"),
    "ao-adamfp8": ("adamw8bit", "an fp8 state is not supported; 8 bits are used"),
    "ao-adamwfp8": ("adamw8bit", "an fp8 state is not supported; 8 bits are used"),
    "bnb-adamw-paged": ("paged_adamw", ""), "bnb-adamw8bit-paged": ("paged_adamw8bit", ""),
    "bnb-lion": ("lion", ""), "optimi-lion": ("lion", ""), "bnb-lion8bit": ("lion8bit", ""),
    "bnb-lion8bit-paged": ("paged_lion8bit", ""), "bnb-lion-paged": ("paged_lion8bit", "its state has 8 bits here"),
    "adamw_schedulefree+aggressive": ("adamw_schedulefree", ""),
    "adamw_schedulefree+no_kahan": ("adamw_schedulefree", ""),
    "optimi-sgd": ("sgd", ""), "optimi-adam": ("adam", ""), "bnb-adam": ("adam", ""),
    "bnb-adam8bit": ("adamw8bit", ADAM_8BIT),
}  # fmt: skip


def _combined(fields: Fields) -> None:
    work = fields.work
    model_family = fields.get("model_family")
    family = named_family(model_family) if model_family else work.wanted
    flavour = named_family(fields.get("model_flavour") or "")
    if family == "flux" and "kontext" in flavour.lower():
        family = "flux_kontext"
    elif family == "qwen_image" and "edit" in flavour.lower():
        family = "qwen_image_edit" if flavour.lower().startswith("edit-v1") else "qwen_image_edit_plus"
    take_family(work, family, "model_family")
    fields.read.add("model_family")
    fields.note("model_flavour", "near", "it names a model on the internet; set the base model's file or folder")
    lora = str(fields.get("model_type") or "lora").lower() == "lora"
    fields.note("model_type", "taken" if lora else "not offered", "" if lora else WHOLE_MODEL)
    _network(fields)
    _optimizer(fields)
    take_known(work, "network.train_text_encoder", fields.on("train_text_encoder"), "train_text_encoder")
    trains = "network.train_text_encoder" in work.ours
    fields.note("train_text_encoder", "taken" if trains else "not offered", "text encoders are not trained")
    if not fields.on("train_text_encoder"):
        fields.note("text_encoder_lr", "off", TEXT_ENCODERS_FROZEN)
    if fields.on("max_train_steps") and fields.on("num_train_epochs"):
        fields.note("num_train_epochs", "not needed", "max_train_steps rules")
    _noise(fields)
    _samples(fields)
    report = str(fields.get("report_to") or "").lower()
    for name in ("tensorboard", "wandb"):
        if name in report or report == "all":
            fields.take("report_to", f"logging.{name}", True)
    why = "only TensorBoard and Weights & Biases are supported"
    fields.note("report_to", "off" if report in ("", "none") else "not offered", why)
    if work.dataset is not None and work.dataset.kind == "simpletuner-dataset":
        fields.note("data_backend_config", "taken")
        read_backends(work, work.dataset.values[""], work.dataset.lines)
        if "dataset.resolution" in work.ours:
            fields.note("resolution", "not needed", "the data set has its own")
    elif fields.on("data_backend_config"):
        why = "import that file together with this one: add it with --dataset"
        fields.note("data_backend_config", "not offered", why)


def _network(fields: Fields) -> None:
    work = fields.work
    lycoris = str(fields.get("lora_type") or "standard").lower() == "lycoris"
    fields.note(
        "lora_type",
        "near" if lycoris else "taken",
        "a LoRA is trained if no other type is set" if lycoris else "",
    )
    if fields.on("use_dora"):
        work.take("network.network_type", "dora", "use_dora")
    fields.note("use_dora", "taken", "", "network.network_type")
    layout = str(fields.get("lora_format") or "diffusers").lower()
    work.take("saving.save_layout", "kohya" if layout == "comfyui" else "diffusers", "lora_format")
    fields.note(
        "lora_format", "near" if layout == "comfyui" else "taken", "Monotile calls the layout that ComfyUI reads kohya"
    )
    rank = number(fields.get("lora_rank", 16))
    alpha = number(fields.get("lora_alpha"))
    # empty or 0 means as large as the rank there
    work.take("network.network_alpha", rank if is_off(alpha) else alpha, "lora_alpha")
    fields.note("lora_alpha", "taken", "empty or 0 means the rank" if is_off(alpha) else "", "network.network_alpha")


def _optimizer(fields: Fields) -> None:
    work = fields.work
    name = take_optimizer(fields, "optimizer", _OPTIMIZERS)
    betas = [number(fields.get(first, fields.get(second))) for first, second in
             (("optimizer_beta1", "adam_beta1"), ("optimizer_beta2", "adam_beta2"))]  # fmt: skip
    if all(isinstance(beta, int | float) and not isinstance(beta, bool) for beta in betas):
        work.take("optimizer.betas", betas, "optimizer_beta1")
    for key in ("optimizer_beta1", "optimizer_beta2", "adam_beta1", "adam_beta2"):
        fields.note(key, "taken", "", "optimizer.betas")
    if not fields.on("optimizer_config"):
        fields.note("optimizer_config", "off")
        return
    try:
        options = arguments(fields.get("optimizer_config"))
    except Left as left:
        fields.note("optimizer_config", "not offered", str(left))
        return
    if "weight_decay" in options:
        work.take("optimizer.weight_decay", options.pop("weight_decay"), "optimizer_config")
    kept = {
        key: value for key, value in options.items() if name == "prodigy" and key in ("d_coef", "d0", "growth_rate")
    }
    left_out = ", ".join(key for key in options if key not in kept)
    if kept:
        work.take("optimizer.optimizer_args", kept, "optimizer_config")
    fields.note(
        "optimizer_config", "near" if left_out else "taken", f"not imported from it: {left_out}" if left_out else ""
    )


def _noise(fields: Fields) -> None:
    work = fields.work
    names = ("flow_schedule_shift", "flow_schedule_auto_shift", "flow_sigmoid_scale", "flow_use_uniform_schedule",
             "flow_use_beta_schedule")  # fmt: skip
    if work.family in ("sdxl", "sd15"):
        for name in names:
            fields.note(name, "not needed", "it has no effect for this family")
        return
    shift, scale = (number(fields.get(name, usual)) for name, usual in zip(names[::2], (3.0, 1.0), strict=False))
    even = fields.on("flow_use_uniform_schedule")
    near = "a shifted uniform distribution is close to a sigmoid with sigmoid_scale 1.7" if even else ""
    if fields.on("flow_use_beta_schedule"):
        near = "a beta distribution is not supported; a sigmoid is used"
    goal = "timesteps.timestep_sampling"
    if fields.on("flow_schedule_auto_shift"):
        work.take(goal, "flux_shift", "flow_schedule_auto_shift")
    elif is_off(shift) or shift == 1:
        # a shift of 0 is none
        work.take(goal, "uniform" if even else "sigmoid", "flow_schedule_shift")
        near = "" if even else near
    else:
        work.take(goal, "shift", "flow_schedule_shift")
        work.take("timesteps.discrete_flow_shift", shift, "flow_schedule_shift")
    if work.ours[goal] != "uniform":
        work.take("timesteps.sigmoid_scale", _EVEN if even else scale, "flow_sigmoid_scale")
    for name in names:
        fields.note(name, "near" if near else "taken", near, goal if name == names[0] else None)


def _samples(fields: Fields) -> None:
    work = fields.work
    flux = work.family.startswith("flux")
    columns = {
        "validation_prompt": "prompt", "validation_negative_prompt": "negative_prompt", "validation_seed": "seed",
        "validation_num_inference_steps": "steps", "validation_guidance_real": "true_cfg_scale",
        "validation_guidance": "guidance_scale" if flux else "true_cfg_scale",
    }  # fmt: skip
    row: dict[str, Any] = {}
    for name, column in columns.items():
        value = fields.get(name)
        if value not in (None, ""):
            row[column] = value if column in ("prompt", "negative_prompt") else number(value)
    sizes = [number(side) for side in str(fields.get("validation_resolution") or "").lower().split(",")[0].split("x")]
    if all(isinstance(side, int) for side in sizes):
        row["width"], row["height"] = sizes[0], sizes[-1]
    shown = bool(row.get("prompt")) and not fields.on("validation_disable")
    if shown:
        if flux and fields.on("validation_disable_unconditional") and "true_cfg_scale" not in row:
            row.pop("negative_prompt", None)
        work.take("sampling.prompts", [row], "validation_prompt")
    why = "" if shown else "the file has no sample prompts"
    for name in (*columns, "validation_resolution", "validation_disable", "validation_disable_unconditional",
                 "validation_randomize"):  # fmt: skip
        fields.note(name, "taken" if shown else "off", why, "sampling.prompts" if name == "validation_prompt" else None)


_BACKEND_WHY = {
    "crop": "images are cropped to their bucket",
    "crop_style": "images are cropped to their bucket",
    "crop_aspect": "images are cropped to their bucket", "resolution_type": IMAGE_SHAPES,
    "cache_dir_vae": "all images are cached in one folder (dataset.cache_dir)",
    "id": "folders have no name in Monotile",
    "metadata_backend": "Monotile reads images from folders", "type": "Monotile reads image folders",
    "dataset_type": "Monotile reads image folders",
    "caption_strategy": "captions are read from files next to the images",
    "vae_cache_clear_each_epoch": "caches stay", "preserve_data_backend_cache": "caches stay",
    "cache_dir": "caches stay",
    "minimum_image_size": "small images are reported before the start",
    "maximum_image_size": "sizes depend on the image",
    "target_downsample_size": "sizes depend on the image", "write_batch_size": "caches are written one by one",
    "text_embeds": "captions are always cached", "image_embeds": "images are always cached",
    "default": "captions are always cached",
}  # fmt: skip


def read_backends(work: Work, rows: Any, lines: Mapping[str, int]) -> None:
    """Image folders from a list of backends."""
    folders: list[dict[str, Any]] = []
    sizes: list[int] = []
    for place, row in enumerate(rows if isinstance(rows, list) else []):
        at = f"[{place}]"
        if not isinstance(row, Mapping):
            work.notes.append(Note(at, "not offered", "it is not a table", lines.get(at)))
            continue
        kind, form = str(row.get("dataset_type", "image")), str(row.get("type", "local"))
        line = lines.get(f"{at}.id")
        if kind in ("text_embeds", "image_embeds"):
            work.notes.append(Note(at, "not needed", "captions and images are always cached on disk", line))
        elif kind != "image" or form != "local" or not row.get("instance_data_dir"):
            why = f"images of {form} are not read; only image folders are"
            if kind != "image":
                why = f"{kind} of {form} are not read; only image folders are"
            work.notes.append(Note(at, "not offered", why, line))
        elif row.get("disabled"):
            work.notes.append(Note(at, "off", "it is turned off", line))
        else:
            folders.append(_folder(work, at, row, sizes, lines))
    if folders:
        work.take("dataset.folders", folders, "instance_data_dir")
        work.notes.append(Note("instance_data_dir", "taken", "", None, "dataset.folders"))
    if sizes:
        near = (
            f"Monotile has one resolution for all folders; the largest of {', '.join(map(str, sizes))} is used"
            if len(set(sizes)) > 1
            else ""
        )
        work.take("dataset.resolution", max(sizes), "resolution")
        work.notes.append(Note("resolution", "near" if near else "taken", near, None, "dataset.resolution"))


def _folder(work: Work, at: str, row: Mapping[str, Any], sizes: list[int], lines: Mapping[str, int]) -> dict[str, Any]:
    repeats = number(row.get("repeats", 0))
    # it counts how often pictures come again, so that 0 is once
    again = repeats + 1 if isinstance(repeats, int) and not isinstance(repeats, bool) and repeats >= 0 else 1
    for name, value in row.items():
        path = f"{at}.{name}"
        if name in ("instance_data_dir", "repeats"):
            work.notes.append(
                Note(path, "taken", "in the other program 0 means once" if name == "repeats" else "", lines.get(path))
            )
        elif name == "resolution":
            try:
                sizes.append(PROGRAM_READERS["resolutions"](name, value, {}).value)
            except Left as left:
                work.notes.append(Note(path, "not offered", str(left), lines.get(path)))
        elif name == "caption_strategy" and value == "instanceprompt":
            work.notes.append(
                Note(path, "near", "captions come from files; the prompt becomes the trigger word", lines.get(path))
            )
        elif name == "instance_prompt" and value:
            work.take("dataset.trigger_word", str(value), name)
            work.notes.append(
                Note(path, "near", "put in front of every caption", lines.get(path), "dataset.trigger_word")
            )
        else:
            why = _BACKEND_WHY.get(name)
            fate = "off" if is_off(value) else "unknown" if why is None else "not needed"
            work.notes.append(Note(path, fate, why or "", lines.get(path)))
    return {"path": str(row["instance_data_dir"]), "num_repeats": again}


PROGRAM = Program(KEYS, NOT_NEEDED, NOT_OFFERED, _combined, NEUTRAL)
