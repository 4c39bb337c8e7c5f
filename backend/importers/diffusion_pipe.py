"""Reads settings of diffusion-pipe and its data sets: TOML with [model], [adapter], [optimizer], and [[directory]].

Names are those of ``examples/`` and ``docs/supported_models.md`` of tdrussell/diffusion-pipe. Levels of noise are a
logit-normal's there, or even, with an optional shift by a number or by size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from backend.importers.combined import take_family
from backend.importers.common_reasons import (
    ALWAYS_CACHED,
    IMAGE_SHAPES,
    NO_FOLDER,
    NO_LORA_SETTING,
    NO_MASKS,
    NO_UPLOAD,
    NO_VIDEOS,
    ONE_MACHINE,
    PLAIN_ADAMW,
    RESUME_STATE,
    RUN_FOLDER,
    TARGETS,
    UNKNOWN,
    WHOLE_MODEL,
)
from backend.importers.families import family_of_path, named_family
from backend.importers.network import WHOLE
from backend.importers.notes import Fate, Note
from backend.importers.program import Fields, Program, by_name, take_optimizer
from backend.importers.program_values import PROGRAM_READERS
from backend.importers.values import Left, is_off, number
from backend.importers.work import Work

_EVEN = 1.7
"""A sigmoid of this scale is nearly even, see `timesteps`."""
_OPTIMIZERS = {
    "adamw_optimi": ("adamw", ""),
    "adamw8bitkahan": ("adamw8bit", ""),
    "stableadamw": ("adamw", PLAIN_ADAMW),
    "automagic": ("", ""),
}
KEYS: dict[str, tuple[str, str]] = {
    "epochs": ("training.max_train_epochs", "off_at_0"),
    "max_steps": ("training.max_train_steps", "off_at_0"),
    "micro_batch_size_per_gpu": ("dataset.batch_size", "number"),
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps", "number"),
    "gradient_clipping": ("optimizer.max_grad_norm", "no_limit"),
    "warmup_steps": ("optimizer.lr_warmup", "number"),
    "lr_scheduler": ("optimizer.lr_scheduler", "schedule"),
    "blocks_to_swap": ("memory.blocks_to_swap", "number"),
    "eval_every_n_epochs": ("validation.validate_every_n_epochs", "off_at_0"),
    "eval_every_n_steps": ("validation.validate_every_n_steps", "off_at_0"),
    "eval_before_first_step": ("validation.validate_at_start", "flag"),
    "save_every_n_epochs": ("saving.save_every_n_epochs", "off_at_0"),
    "save_every_n_steps": ("saving.save_every_n_steps", "off_at_0"),
    "save_dtype": ("saving.save_precision", "saved"),
    "compile": ("compile.compile", "compile"),
    "seed": ("training.seed", "seed_or_0"),
    "model.vae_path": ("model.vae", "path"),
    "model.clip_path": ("model.text_encoder", "path"),
    "model.text_encoder_path": ("model.text_encoder", "path"),
    "model.llm_path": ("model.text_encoder", "path"),
    "model.t5_path": ("model.text_encoder_2", "path"),
    "model.dtype": ("training.mixed_precision", "amp"),
    "model.transformer_dtype": ("memory.base_quantization", "quantization"),
    "model.guidance": ("model.guidance_scale", "number"),
    "model.max_sequence_length": ("model.text_length", "number"),
    "model.min_t": ("timesteps.min_timestep", "limit"),
    "model.max_t": ("timesteps.max_timestep", "limit"),
    "model.min_snr_gamma": ("loss.min_snr_gamma", "off_at_0"),
    "model.debiased_estimation_loss": ("loss.debiased_estimation", "flag"),
    "model.v_pred": ("loss.prediction_type", "v_prediction"),
    "adapter.rank": ("network.network_dim", "number"),
    "adapter.alpha": ("network.network_alpha", "number"),
    "adapter.dropout": ("network.network_dropout", "dropout"),
    "adapter.dtype": ("network.lora_weight_dtype", "saved"),
    "adapter.init_from_existing": ("network.network_weights", "path"),
    "optimizer.lr": ("optimizer.learning_rate", "number"),
    "optimizer.weight_decay": ("optimizer.weight_decay", "number"),
    "optimizer.eps": ("optimizer.eps", "number"),
    "optimizer.betas": ("optimizer.betas", "text"),
}
NOT_NEEDED = by_name({
    ONE_MACHINE: (
        "pipeline_stages partition_method partition_split reentrant_activation_checkpointing "
        "image_micro_batch_size_per_gpu"
    ),
    RUN_FOLDER: "output_dir",
    RESUME_STATE: "checkpoint_every_n_minutes checkpoint_every_n_epochs",
    ALWAYS_CACHED: "caching_batch_size map_num_proc",
    "the Run tab always shows the loss": "steps_per_print x_axis_examples monitoring. logging_steps",
    NO_UPLOAD: "upload_hf_from_epoch huggingface_repo",
    "validation uses the batch size of training": (
        "eval_micro_batch_size_per_gpu image_eval_micro_batch_size_per_gpu eval_gradient_accumulation_steps "
        "disable_block_swap_for_eval"
    ),
    "see the data set file": "dataset",
})  # fmt: skip
NOT_OFFERED = by_name({
    NO_VIDEOS: "video_clip_mode model.first_frame_conditioning_p",
    "set validation folders on the Sampling tab": "eval_datasets eval_datasets[].",
    "intervals are in steps or epochs": "eval_every_n_examples save_every_n_examples",
    "the learning rate follows lr_scheduler": "force_constant_lr",
    "set LoRAs to merge as network.base_weights": "adapter.fuse_adapters adapter.fuse_adapters[].",
    TARGETS: (
        "adapter.exclude_linear_modules "
        "adapter.target_modules"
    ),
    "the model always receives the guidance": "model.bypass_guidance_embedding",
    "Monotile has no such setting for the model": "model.",
    NO_LORA_SETTING: "adapter.",
    "Monotile uses the arguments of the optimizer's own class": "optimizer.",
})  # fmt: skip
DEFAULTS: dict[str, Any] = {"optimizer.lr_scheduler": "constant", "optimizer.lr_warmup": 0.0}


def _combined(fields: Fields) -> None:
    work = fields.work
    _family(fields)
    _base(fields)
    if fields.has("adapter.type"):
        _network(fields)
    elif not any(key.startswith("adapter.") for key in work.values):
        work.notes.append(Note("adapter", "not offered", WHOLE_MODEL))
    take_optimizer(fields, "optimizer.type", _OPTIMIZERS)
    _noise(fields)
    kept = fields.get("activation_checkpointing")
    if kept is not None:
        fields.take("activation_checkpointing", "training.gradient_checkpointing", not is_off(kept))
        if str(kept).lower() == "unsloth":
            work.take("memory.checkpointing_kind", "offload", "activation_checkpointing")
    constant = number(fields.get("pseudo_huber_c"))
    if not is_off(constant):
        work.take("loss.loss_type", "huber", "pseudo_huber_c")
        fields.take("pseudo_huber_c", "loss.huber_c", constant)
    rates = [name for name in ("model.text_encoder_1_lr", "model.text_encoder_2_lr") if fields.on(name)]
    if fields.on("model.unet_lr"):
        fields.take("model.unet_lr", "optimizer.learning_rate", number(fields.get("model.unet_lr")))
        fields.note("optimizer.lr", "not needed", "model.unet_lr rules")
    if work.family == "sdxl":
        work.take("network.train_text_encoder", True, "model.type")
        work.notes.append(Note("text encoders", "default", "not in the file: the other program trains SDXL's too"))
    if rates:
        fields.take(rates[0], "optimizer.text_encoder_lr", number(fields.get(rates[0])))
        fields.note("model.text_encoder_2_lr", "not offered", "Monotile has one rate for all text encoders")
    if work.ours.get("training.max_train_steps") is None and fields.on("max_steps") and fields.on("epochs"):
        fields.note("epochs", "not needed", "max_steps ends the run; in the other program whichever comes first")
    if work.dataset is not None and work.dataset.kind == "diffusion-pipe-dataset":
        read_directories(work, work.dataset.values, work.dataset.lines)
    elif fields.on("dataset"):
        fields.note("dataset", "not offered", "import that file together with this one: add it with --dataset")


def _family(fields: Fields) -> None:
    family = named_family(fields.get("model.type")) if fields.on("model.type") else fields.work.wanted
    # editing models share the type of the plain ones
    paths = [fields.get(f"model.{name}") for name in ("transformer_path", "diffusers_path", "checkpoint_path")]
    edits = next((edit for path in paths if (edit := family_of_path(path)).startswith(f"{family}_")), "")
    take_family(fields.work, edits or family, "model.type")
    fields.read.add("model.type")


def _base(fields: Fields) -> None:
    """The base model: a folder of diffusers, a single file, or a denoiser with a folder."""
    whole = fields.first("model.diffusers_path", "model.checkpoint_path", "model.single_file_path", "model.ckpt_path")
    transformer = "model.transformer_path"
    if fields.on(transformer):
        near = "the denoiser's file; set VAE and text encoders too" if whole else ""
        fields.take(transformer, "model.base_model", str(fields.get(transformer)), near)
        for name in ("diffusers_path", "checkpoint_path", "single_file_path", "ckpt_path"):
            fields.note(
                f"model.{name}", "not offered", "the denoiser's file is the base model; set the other parts separately"
            )
    elif whole:
        fields.take(whole, "model.base_model", str(fields.get(whole)))


def _network(fields: Fields) -> None:
    kind = str(fields.get("adapter.type")).strip().lower()
    fields.note("adapter.type", "taken" if kind in ("lora", "lokr") else "not offered", f"{kind} is not supported")
    rank = number(fields.get("adapter.rank"))
    if kind == "lokr":
        fields.work.take("network.network_type", "lokr", "adapter.type")
        factor = number(fields.get("adapter.decompose_factor"))
        if isinstance(factor, int) and factor > 0:
            fields.take("adapter.decompose_factor", "network.lokr_factor", factor)
        fields.note("adapter.decompose_factor", "off", "both factors are as square as possible")
        if isinstance(rank, int) and rank > WHOLE:
            near = "the largest rank: the large factor is not split, as in the other program"
            fields.take("adapter.rank", "network.network_dim", WHOLE, near)
            rank = WHOLE
    if isinstance(rank, int) and not fields.on("adapter.alpha"):
        fields.work.take("network.network_alpha", float(rank), "adapter.rank")


def _noise(fields: Fields) -> None:
    work, method, flux, number_ = fields.work, "model.timestep_sample_method", "model.flux_shift", "model.shift"
    if work.family in ("sdxl", "sd15"):
        return
    kind = str(fields.get(method) or "logit_normal").lower()
    scale = number(fields.get("model.sigmoid_scale", 1.0))
    scale = float(scale) if isinstance(scale, int | float) and scale > 0 else 1.0
    shift = number(fields.get(number_, 1.0))
    shift = float(shift) if isinstance(shift, int | float) and shift > 0 else 1.0
    goal = "timesteps.timestep_sampling"
    if fields.on(flux):
        work.take(goal, "flux_shift", flux)
    elif kind == "uniform" and shift == 1:
        work.take(goal, "uniform", method)
    elif kind == "uniform":
        work.take(goal, "shift", method)
        work.take("timesteps.discrete_flow_shift", shift, number_)
        work.take("timesteps.sigmoid_scale", _EVEN, method)
    else:
        work.take(goal, "logit_normal", method)
        work.take("timesteps.logit_mean", round(math.log(shift), 6) + 0.0, number_)
        work.take("timesteps.logit_std", scale, "model.sigmoid_scale")
    if work.ours[goal] == "flux_shift" and kind != "uniform":
        work.take("timesteps.sigmoid_scale", scale, "model.sigmoid_scale")
    for name in (method, flux, number_, "model.sigmoid_scale"):
        fields.note(name, "taken", "", goal if name == method else None)
    if not fields.has(method) and not fields.on(flux):
        work.notes.append(
            Note(
                "timestep_sample_method", "default", "not in the file: the other program uses logit_normal", None, goal
            )
        )


_WHY = {
    "enable_ar_bucket": "images always keep their shape",
    "skip_empty_caption": "images without a caption are reported before the start",
    "min_ar": IMAGE_SHAPES,
    "max_ar": IMAGE_SHAPES,
    "num_ar_buckets": IMAGE_SHAPES,
    "ar_buckets": IMAGE_SHAPES,
    "frame_buckets": NO_VIDEOS,
    "size_buckets": IMAGE_SHAPES,
    "default_mask_file": NO_MASKS,
}
_COLUMNS = ("control_path", "mask_path", "caption_prefix")
"""Texts of a folder, which have the same names here."""
_SHUFFLES = {
    "shuffle_tags": ("captions.shuffle_caption", lambda value: not is_off(value)),
    "cache_shuffle_num": ("captions.caption_variants", number),
    "cache_shuffle_delimiter": ("captions.caption_separator", str),
}
"""What a folder or the whole file says of tags, and all folders have together here."""


def read_directories(work: Work, data: Mapping[str, Any], lines: Mapping[str, int]) -> None:
    """Folders, size and the rest of a data set of diffusion-pipe."""
    folders: list[dict[str, Any]] = []
    sizes: list[tuple[Any, str]] = [(data["resolutions"], "resolutions")] if data.get("resolutions") else []
    for name in data:
        if name in _SHUFFLES or name in ("caption_prefix",):
            _shuffle(work, name, name, data[name], lines)
        elif name not in ("directory", "resolutions"):
            _left(work, name, name, data[name], lines)
    rows = data.get("directory")
    for place, row in enumerate(rows if isinstance(rows, list) else []):
        at = f"directory[{place}]"
        if not isinstance(row, Mapping) or not row.get("path"):
            work.notes.append(Note(at, "not offered", NO_FOLDER, lines.get(at)))
            continue
        folder = {"path": str(row["path"])}
        if "num_repeats" in row:
            folder["num_repeats"] = number(row["num_repeats"])
        both = {"caption_prefix": data.get("caption_prefix"), **row}
        folder |= {column: str(both[column]) for column in _COLUMNS if both.get(column)}
        folders.append(folder)
        if row.get("resolutions"):
            sizes.append((row["resolutions"], f"{at}.resolutions"))
        for name in row:
            if name in _SHUFFLES or name in ("mask_path", "caption_prefix"):
                _shuffle(work, name, f"{at}.{name}", row[name], lines)
            elif name not in ("path", "num_repeats", "control_path", "resolutions"):
                _left(work, name, f"{at}.{name}", row[name], lines)
    if folders:
        work.take("dataset.folders", folders, "directory")
        work.notes.append(Note("directory", "taken", "", lines.get("directory"), "dataset.folders"))
    _size(work, sizes, lines)


def _shuffle(work: Work, name: str, path: str, value: Any, lines: Mapping[str, int]) -> None:
    """What is said of tags, or a text that is in the row of its folder already."""
    fate: Fate = "off" if is_off(value) else "taken"
    goal = None if fate == "off" else "dataset.folders"
    if name in _SHUFFLES and fate == "taken":
        goal, read = _SHUFFLES[name]
        work.take(goal, read(value), path)
        if name == "cache_shuffle_num":
            work.take("captions.shuffle_caption", True, path)
    work.notes.append(Note(path, fate, "", lines.get(path), goal))


def _size(work: Work, sizes: list[tuple[Any, str]], lines: Mapping[str, int]) -> None:
    for size, path in sizes:
        try:
            taken = PROGRAM_READERS["resolutions"]("resolutions", size, {})
        except Left as left:
            work.notes.append(Note(path, "not offered", str(left), lines.get(path)))
            continue
        if taken.value >= work.ours.get("dataset.resolution", 0):
            work.take("dataset.resolution", taken.value, path)
        near = taken.near or (
            "Monotile has one resolution for all folders; the largest is used" if len(sizes) > 1 else ""
        )
        work.notes.append(Note(path, "near" if near else "taken", near, lines.get(path), "dataset.resolution"))


def _left(work: Work, name: str, path: str, value: Any, lines: Mapping[str, int]) -> None:
    why = _WHY.get(name, UNKNOWN)
    fate = "off" if is_off(value) else "not offered" if name in _WHY else "unknown"
    if name in ("enable_ar_bucket", "skip_empty_caption", "min_ar", "max_ar", "num_ar_buckets"):
        fate = "not needed"
    if name == "frame_buckets" and value == [1]:
        fate = "off"
    work.notes.append(Note(path, fate, why, lines.get(path)))


PROGRAM = Program(KEYS, NOT_NEEDED, NOT_OFFERED, _combined, {}, DEFAULTS)
