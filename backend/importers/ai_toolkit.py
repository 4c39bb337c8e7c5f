"""Reads settings of ai-toolkit: a job in YAML, or the same in JSON, whose first process trains.

Names are those of ``config/examples/`` and ``toolkit/config_modules.py`` of ostris/ai-toolkit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from backend.importers.combined import take_family
from backend.importers.common_reasons import (
    ADAM_8BIT,
    ALWAYS_CACHED,
    DADAPT,
    DENOISER_TRAINED,
    FIXED_CAPTIONS,
    FIXED_IMAGES,
    NO_FOLDER,
    NO_LORA_SETTING,
    NO_LOSS_SETTING,
    NO_MASKS,
    NO_UPLOAD,
    NO_VIDEOS,
    TEXT_ENCODERS_FROZEN,
    WEIGHT_FORMAT,
    WHOLE_MODEL,
)
from backend.importers.experts import read_experts
from backend.importers.families import family_of_path, named_family
from backend.importers.folder_values import Rows, take_for_all
from backend.importers.network import WHOLE
from backend.importers.notes import Note
from backend.importers.program import Fields, Program, by_name, take_known, take_optimizer
from backend.importers.program_values import PROGRAM_READERS
from backend.importers.values import Left, is_off, number
from backend.importers.work import Work

_START = "config.process[]."
_OPTIMIZERS = {
    "adamw8bit": ("adamw8bit", ""), "adam8bit": ("adamw8bit", ADAM_8BIT),
    "prodigyopt": ("prodigy", ""), "prodigy8bit": ("prodigy", "Monotile keeps its state in full precision"),
    "dadaptation": ("prodigy", DADAPT),
    "adafactor": ("transformers.optimization.Adafactor", ""),
}  # fmt: skip
_FLAGS = {"model.is_flux": "flux", "model.is_xl": "sdxl", "model.is_v3": "sd3", "model.is_v2": "sd2",
          "model.is_pixart": "pixart", "model.is_auraflow": "auraflow", "model.is_lumina2": "lumina"}  # fmt: skip
KEYS: dict[str, tuple[str, str]] = {
    "config.name": ("saving.output_name", "file_name"),
    "trigger_word": ("dataset.trigger_word", "text"),
    "network.dropout": ("network.network_dropout", "dropout"),
    "network.conv": ("network.conv_dim", "number"),
    "network.conv_alpha": ("network.conv_alpha", "number"),
    "network.network_kwargs.only_if_contains": ("network.targets_include", "parts_of_names"),
    "network.network_kwargs.ignore_if_contains": ("network.targets_exclude", "parts_of_names"),
    "network.pretrained_lora_path": ("network.network_weights", "path"),
    "save.dtype": ("saving.save_precision", "saved"),
    "save.save_every": ("saving.save_every_n_steps", "off_at_0"),
    "save.max_step_saves_to_keep": ("saving.save_last_n", "off_at_0"),
    "train.batch_size": ("dataset.batch_size", "number"),
    "train.steps": ("training.max_train_steps", "off_at_0"),
    "train.gradient_accumulation_steps": ("training.gradient_accumulation_steps", "number"),
    "train.gradient_accumulation": ("training.gradient_accumulation_steps", "number"),
    "train.gradient_checkpointing": ("training.gradient_checkpointing", "flag"),
    "train.lr": ("optimizer.learning_rate", "number"),
    "train.unet_lr": ("optimizer.learning_rate", "number"),
    "train.lr_scheduler": ("optimizer.lr_scheduler", "schedule"),
    "train.lr_scheduler_params.num_cycles": ("optimizer.lr_scheduler_num_cycles", "off_at_0"),
    "train.lr_scheduler_params.warmup_steps": ("optimizer.lr_warmup", "number"),
    "train.lr_scheduler_params.num_warmup_steps": ("optimizer.lr_warmup", "number"),
    "train.max_grad_norm": ("optimizer.max_grad_norm", "number"),
    "train.ema_config.use_ema": ("training.ema", "flag"),
    "train.ema_config.ema_decay": ("training.ema_decay", "number"),
    "train.dtype": ("training.mixed_precision", "amp"),
    "train.min_snr_gamma": ("loss.min_snr_gamma", "off_at_0"),
    "train.noise_offset": ("loss.noise_offset", "number"),
    "train.reg_weight": ("loss.prior_loss_weight", "number"),
    "train.min_denoising_steps": ("timesteps.min_timestep", "number"),
    "train.max_denoising_steps": ("timesteps.max_timestep", "number"),
    "train.seed": ("training.seed", "seed_or_0"),
    "model.name_or_path": ("model.base_model", "base"),
    "model.vae_path": ("model.vae", "path"),
    "model.is_v_pred": ("loss.prediction_type", "v_prediction"),
    "model.compile": ("compile.compile", "compile"),
    "sample.sample_every": ("sampling.sample_every_n_steps", "off_at_0"),
}
NOT_NEEDED = by_name({
    "it is for the other program, not for training": (
        "job meta. type training_folder device performance_log_every sqlite_db_path ui logging. train.noise_scheduler "
        "train.free_u train.skip_first_sample sample.sampler sample.sample_start_step sample.format sample.ext "
        "train.force_first_sample config.version"
    ),
    ALWAYS_CACHED: (
        "datasets[].cache_latents_to_disk datasets[].cache_latents train.cache_text_embeddings "
        "train.unload_text_encoder "
        "datasets[].cache_text_embeddings"
    ),
    NO_UPLOAD: "save.push_to_hub save.hf_repo_id save.hf_private save.save_format",
    "weights are read directly from the file": (
        "model.low_vram model.layer_offloading model.layer_offloading_transformer_percent "
        "model.layer_offloading_text_encoder_percent"
    ),
    DENOISER_TRAINED: "train.train_unet",
    "buckets are always on": "datasets[].buckets datasets[].type",
    WEIGHT_FORMAT: "model.dtype",
    "its value is used in another setting": "model.arch model.quantize model.quantize_te model.qtype model.qtype_te",
})  # fmt: skip
NOT_OFFERED = by_name({
    FIXED_CAPTIONS: "datasets[].random_triggers",
    FIXED_IMAGES: (
        "datasets[].flip_y datasets[].random_scale datasets[].augments "
        "datasets[].augmentations datasets[].augmentations[]. datasets[].scale"
    ),
    NO_MASKS: "datasets[].invert_mask",
    NO_VIDEOS: (
        "datasets[].num_frames datasets[].shrink_video_to_frames datasets[].do_i2v datasets[].fps sample.num_frames "
        "sample.fps"
    ),
    "folders are weighted by their repeats": "datasets[].network_weight datasets[].loss_multiplier",
    NO_LOSS_SETTING: (
        "train.loss_type train.loss_target train.snr_gamma train.linear_timesteps train.linear_timesteps2 "
        "train.content_or_style train.do_differential_guidance train.differential_guidance_scale "
        "train.diff_output_preservation train.diff_output_preservation_multiplier train.diff_output_preservation_class "
        "train.blank_prompt_preservation train.blank_prompt_preservation_multiplier"
    ),
    "the model always receives the guidance": "train.bypass_guidance_embedding",
    "set LoRAs to merge as network.base_weights": "model.lora_path model.assistant_lora_path",
    "text encoders are read from the base model, or set separately": (
        "model.te_name_or_path "
        "model.extras_name_or_path"
    ),
    "single samples can't be turned off": "train.disable_sampling",
    "Monotile has no such setting for the model": "model.",
    NO_LORA_SETTING: "network.",
    "Monotile has no such setting for the optimizer": "train.optimizer_params. train.lr_scheduler_params.",
    "Monotile has no such setting for the samples": "sample.",
    "Monotile has no such setting for saving": "save.",
})  # fmt: skip
NEUTRAL = {
    "train.content_or_style": ("balanced",), "train.loss_type": ("mse",), "train.loss_target": ("noise",),
    "datasets[].network_weight": ("1", "1.0"), "datasets[].scale": ("1", "1.0"),
    "datasets[].loss_multiplier": ("1", "1.0"),
    "datasets[].num_frames": ("1",), "sample.num_frames": ("1",), "sample.fps": ("1", "16"),
    "sample.network_multiplier": ("1", "1.0"),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {"optimizer.lr_scheduler": "constant", "optimizer.lr_warmup": 0.0}


def _combined(fields: Fields) -> None:
    work = fields.work
    for key in work.values:
        place = re.match(r"config\.process\[(\d+)\]", key)
        if place and int(place[1]):
            work.note(key, "not offered", "only the first process of a job is read")
            fields.read.add(key)
    _family(fields)
    _network(fields)
    take_optimizer(fields, "train.optimizer", _OPTIMIZERS, "train.optimizer_params.")
    _weights(fields)
    encoders = fields.on("train.train_text_encoder")
    take_known(work, "network.train_text_encoder", encoders, "train.train_text_encoder")
    trains = "network.train_text_encoder" in work.ours
    why = "" if trains else "text encoders of this family are not trained"
    fields.note("train.train_text_encoder", "taken" if trains else "not offered", why)
    if encoders and trains and fields.on("train.text_encoder_lr"):
        rate = number(fields.get("train.text_encoder_lr"))
        fields.take("train.text_encoder_lr", "optimizer.text_encoder_lr", rate)
    fields.note("train.text_encoder_lr", "off", TEXT_ENCODERS_FROZEN)
    for name, kernel in (("train.sdp", "sdpa"), ("train.xformers", "auto")):
        if fields.on(name):
            fields.take(name, "compile.attention", kernel)
        fields.note(name, "off")
    _noise(fields)
    read_experts(fields)
    _folders(fields)
    _samples(fields)


def _family(fields: Fields) -> None:
    arch = str(fields.get("model.arch") or "").split(":")[0]
    flag = next((flag for flag in _FLAGS if fields.on(flag)), "")
    base = fields.get("model.name_or_path")
    family = named_family(arch) if arch else _FLAGS.get(flag) or family_of_path(base) or fields.work.wanted
    if family == "wan22_5b" and any(not is_off(row.get("do_i2v")) for _, row in fields.rows("datasets")):
        family = "wan22_5b_i2v"
        fields.note("datasets[].do_i2v", "taken", "", "model.family")
    guessed = "" if arch or flag or not family else "by the base model's name"
    take_family(fields.work, family, "config.process[0].model." + (flag.removeprefix("model.") or "arch"), guessed)
    for name in (*_FLAGS, "model.arch"):
        fields.read |= {key for key in fields.work.values if fields.bare(key) == name and fields.on(name)}
        fields.note(name, "off")


def _network(fields: Fields) -> None:
    kind = str(fields.get("network.type") or "lora").lower()
    if kind in ("lora", "locon", "lokr", "dora", "loha"):
        fields.work.take("network.network_type", "lora" if kind == "locon" else kind, "network.type")
        fields.note("network.type", "taken", "", "network.network_type")
    else:
        fields.note("network.type", "not offered", f"{kind} networks are not supported; a LoRA is trained")
    if not any(key.startswith("config.process[0].network.") for key in fields.work.values):
        fields.work.notes.append(Note("network", "not offered", WHOLE_MODEL))
    rank, alpha = fields.first("network.rank", "network.linear"), fields.first("network.linear_alpha", "network.alpha")
    if rank:
        fields.take(rank, "network.network_dim", number(fields.get(rank)))
    if alpha:
        fields.take(alpha, "network.network_alpha", number(fields.get(alpha)))
    elif rank:
        fields.work.take("network.network_alpha", 1.0, "network.linear_alpha")
        fields.work.notes.append(Note("linear_alpha", "default", "not in the file: ai-toolkit uses 1"))
    for name in ("network.rank", "network.linear", "network.alpha", "network.linear_alpha"):
        fields.note(name, "not needed", "another name for it has priority")
    factor = number(fields.get("network.lokr_factor"))
    if kind == "lokr" and isinstance(factor, int) and factor > 0:
        fields.take("network.lokr_factor", "network.lokr_factor", factor)
    fields.note("network.lokr_factor", "off", "both factors are as square as possible, or it is not a LoKr")
    if kind == "lokr" and fields.on("network.lokr_full_rank"):
        fields.take("network.lokr_full_rank", "network.network_dim", WHOLE, "the largest rank")
    fields.note("network.lokr_full_rank", "off")


def _weights(fields: Fields) -> None:
    """Quantised weights, whose format counts only where a switch is on."""
    for switch, kind, goal, reader in (
        ("model.quantize", "model.qtype", "memory.base_quantization", "quantization"),
        ("model.quantize_te", "model.qtype_te", "memory.text_encoder_quantization", "text_quantization"),
    ):
        if not fields.on(switch):
            fields.note(switch, "off")
            fields.note(kind, "off", f"it is used only if {switch} is on")
            continue
        form = str(fields.get(kind) or "qfloat8").split("|")[0]
        try:
            taken = PROGRAM_READERS[reader](kind, form, {})
        except Left as left:
            fields.note(switch, "not offered", str(left))
            continue
        near = taken.near or ("the adapter that corrects it is not supported" if "|" in str(fields.get(kind)) else "")
        fields.take(switch, goal, taken.value, near)


_TIMESTEPS = {
    "sigmoid": ("sigmoid", ""), "linear": ("uniform", ""),
    "shift": ("flux_shift", "the shift depends on the size of each image"),
    "flux_shift": ("flux_shift", ""),
    "weighted": ("uniform", "weights by noise level are not supported; all levels are drawn equally"),
    "lumina2_shift": ("flux_shift", "Lumina's shift by size is not supported; FLUX's is used"),
}  # fmt: skip


def _noise(fields: Fields) -> None:
    name, goal = "train.timestep_type", "timesteps.timestep_sampling"
    if fields.work.family in ("sdxl", "sd15"):
        fields.note(name, "not needed", "for this family all levels are drawn equally")
        return
    sampling = str(fields.get(name) or "sigmoid").lower()
    if sampling in _TIMESTEPS:
        ours, near = _TIMESTEPS[sampling]
        fields.take(name, goal, ours, near)
    else:
        fields.work.take(goal, "sigmoid", name)
        fields.note(name, "near", f"{sampling} is not supported; a sigmoid is used", goal)
    if not fields.has(name):
        fields.work.notes.append(
            Note("timestep_type", "default", "not in the file: ai-toolkit uses sigmoid", None, goal)
        )


_CHANGES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "shuffle_tokens": ("captions.shuffle_caption", bool), "keep_tokens": ("captions.keep_tokens", number),
    "token_dropout_rate": ("captions.caption_tag_dropout_rate", number), "flip_x": ("augmentation.flip_aug", bool),
    "random_crop": ("augmentation.random_crop", bool), "alpha_mask": ("masks.alpha_mask", bool),
    "mask_min_value": ("masks.unmasked_weight", number),
}  # fmt: skip
"""What each folder has there, and all have together here."""


def _folders(fields: Fields) -> None:
    work, folders, sizes = fields.work, [], []
    rows: Rows = []
    shared: dict[str, list[tuple[str, Any]]] = {"caption_ext": [], "caption_dropout_rate": []}
    for place, row in fields.rows("datasets"):
        path = row.get("folder_path") or row.get("dataset_path")
        if not path:
            work.notes.append(Note(place, "not offered", NO_FOLDER))
        else:
            folder = {"path": str(path)}
            folder |= {"num_repeats": number(row["num_repeats"])} if "num_repeats" in row else {}
            folder |= {} if is_off(row.get("is_reg")) else {"is_reg": True}
            folder |= {"class_tokens": str(row["default_caption"])} if row.get("default_caption") else {}
            folder |= {"mask_path": str(row["mask_path"])} if row.get("mask_path") else {}
            rows.append((place, row))
            folder |= _control(work, place, row.get("control_path"))
            folders.append(folder)
            sizes.append((row.get("resolution", 512), place))
            for name, values in shared.items():
                values += [(place, row[name])] if row.get(name) not in (None, "") else []
    for name in (
        "folder_path",
        "dataset_path",
        "num_repeats",
        "control_path",
        "is_reg",
        "default_caption",
        "mask_path",
    ):
        fields.note(f"datasets[].{name}", "taken", "", "dataset.folders" if name == "folder_path" else None)
    if folders:
        work.take("dataset.folders", folders, "datasets")
    _shared(fields, shared, len(folders))
    for name, (goal, read) in _CHANGES.items():
        take_for_all(fields, "datasets", rows, name, goal, read)
    _size(fields, sizes)


def _control(work: Work, place: str, path: Any) -> dict[str, str]:
    paths = path if isinstance(path, list) else [path] if path else []
    if len(paths) > 1:
        work.notes.append(
            Note(f"{place}.control_path", "near", "each folder has one folder of control images; the first is used")
        )
    return {"control_path": str(paths[0])} if paths else {}


def _shared(fields: Fields, shared: dict[str, list[tuple[str, Any]]], count: int) -> None:
    goals = {
        "caption_ext": ("dataset.caption_extension", "dotted"),
        "caption_dropout_rate": ("dataset.caption_dropout_rate", ""),
    }
    for name, values in shared.items():
        if values:
            goal, reader = goals[name]
            value = values[0][1] if name == "caption_ext" else max(values, key=lambda pair: _share(pair[1]))[1]
            differ = len({str(each) for _, each in values}) > 1 or len(values) < count
            near = "folders have different values, and Monotile has one for all" if differ else ""
            ours = PROGRAM_READERS[reader](name, value, {}).value if reader else number(value)
            fields.take(f"datasets[].{name}", goal, ours, near)
        fields.note(f"datasets[].{name}", "off")


def _share(value: Any) -> float:
    share = number(value)
    return float(share) if isinstance(share, int | float) else 0.0


def _size(fields: Fields, sizes: list[tuple[Any, str]]) -> None:
    resolutions: list[int] = []
    for size, place in sizes:
        try:
            values = size if isinstance(size, list) else [size]
            resolutions += [PROGRAM_READERS["resolutions"]("resolution", [value], {}).value for value in values]
        except Left as left:
            fields.work.notes.append(Note(f"{place}.resolution", "not offered", str(left)))
    several = ", ".join(map(str, sorted(set(resolutions))))
    near = (
        f"Monotile has one resolution for all images; the largest of {several} is used"
        if len(set(resolutions)) > 1
        else ""
    )
    if resolutions:
        fields.take("datasets[].resolution", "dataset.resolution", max(resolutions), near)
    fields.note("datasets[].resolution", "off")


def _samples(fields: Fields) -> None:
    work = fields.work
    columns = {"width": "width", "height": "height", "seed": "seed", "sample_steps": "steps", "neg": "negative_prompt",
               "guidance_scale": "guidance_scale" if work.family.startswith("flux") else "true_cfg_scale"}  # fmt: skip
    usual = {
        column: value if name == "neg" else number(value)
        for name, column in columns.items()
        if (value := fields.get(f"sample.{name}")) not in (None, "", False)
    }
    trigger = str(fields.get("trigger_word") or "")
    prompts = fields.get("sample.prompts")
    rows = [usual | {"prompt": str(text)} for text in (prompts if isinstance(prompts, list) else [])]
    own = {**columns, "ctrl_img": "control_image"}
    for _, row in fields.rows("sample.samples"):
        if row.get("prompt"):
            own_values = {own[name]: value for name, value in row.items() if name in own and value not in (None, "")}
            rows.append(usual | own_values | {"prompt": str(row["prompt"])})
    for place, row in enumerate(rows):
        row["prompt"] = row["prompt"].replace("[trigger]", trigger).strip()
        if fields.on("sample.walk_seed") and isinstance(row.get("seed"), int):
            row["seed"] += place  # each prompt has the next seed there
    if rows:
        work.take("sampling.prompts", rows, "sample.prompts")
    why = "" if rows else "the file has no sample prompts"
    for name in (*columns, "walk_seed", "prompts"):
        fields.note(
            f"sample.{name}", "taken" if rows else "off", why, "sampling.prompts" if name == "prompts" else None
        )
    for name in ("prompt", *own):
        fields.note(f"sample.samples[].{name}", "taken", "", "sampling.prompts" if name == "prompt" else None)
    fields.note("sample.samples", "off")


PROGRAM = Program(KEYS, NOT_NEEDED, NOT_OFFERED, _combined, NEUTRAL, DEFAULTS, _START)
