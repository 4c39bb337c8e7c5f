"""Reads settings of OneTrainer: the JSON that its window saves, its presets, its lists of concepts.

Names and defaults are those of ``modules/util/config/TrainConfig.py`` of Nerogar/OneTrainer. How levels of noise are
drawn is its ``ModelSetupNoiseMixin``: a shift s brings a logit-normal's mean up by log s.
"""

from __future__ import annotations

import math
from typing import Any

from backend.importers.combined import take_family
from backend.importers.common_reasons import (
    ADAM_8BIT,
    ALWAYS_CACHED,
    DADAPT,
    DENOISER_TRAINED,
    FIXED_CAPTIONS,
    FIXED_IMAGES,
    NO_LORA_SETTING,
    NO_LOSS_SETTING,
    NO_MASKS,
    NO_NOISE_SETTING,
    ONE_MACHINE,
    PLAIN_ADAMW,
    RESUME_STATE,
    WEIGHT_FORMAT,
)
from backend.importers.families import named_family
from backend.importers.network import WHOLE
from backend.importers.notes import Note
from backend.importers.onetrainer_data import read_concepts, read_samples
from backend.importers.onetrainer_images import read_masks
from backend.importers.program import Fields, Program, by_name, take_every, take_known, take_optimizer
from backend.importers.values import is_off, number
from backend.importers.whole_model import FUSED, KIND, WEIGHTS, take_kind

_DENOISERS = ("transformer", "unet", "prior")
_EVEN = 1.7
"""A sigmoid of this scale is nearly even, see `timesteps`."""
_OPTIMIZERS = {
    "adamw_8bit": ("adamw8bit", ""), "adam_8bit": ("adamw8bit", ADAM_8BIT),
    "adamw_adv": ("adamw", PLAIN_ADAMW),
    "prodigy_plus_schedule_free": ("prodigy", "the schedule-free variant is not supported; Prodigy is used"),
    "prodigy_adv": ("prodigy", "this variant is not supported; Prodigy is used"),
    "schedule_free_adamw": ("adamw_schedulefree", ""), "schedule_free_sgd": ("pytorch_optimizer.ScheduleFreeSGD", ""),
    "lion_8bit": ("lion8bit", ""), "adafactor": ("transformers.optimization.Adafactor", ""),
    "sgd_8bit": ("bitsandbytes.optim.SGD8bit", ""), "came_8bit": ("came", "CAME keeps its state in full precision"),
    "dadapt_adam": ("prodigy", DADAPT),
    "dadapt_lion": ("prodigy", DADAPT),
}  # fmt: skip

_PARTS = {
    "weight_dtype": ("memory.base_quantization", "quantization"),
    "guidance_scale": ("model.guidance_scale", "number"),
    "gradient_checkpointing": ("training.gradient_checkpointing", "switched"),
}
KEYS: dict[str, tuple[str, str]] = {
    "base_model_name": ("model.base_model", "base"),
    "vae.model_name": ("model.vae", "path"),
    "text_encoder.model_name": ("model.text_encoder", "path"),
    "text_encoder_2.model_name": ("model.text_encoder_2", "path"),
    "text_encoder_3.model_name": ("model.text_encoder_3", "path"),
    "text_encoder.weight_dtype": ("memory.text_encoder_quantization", "text_quantization"),
    "text_encoder_2.weight_dtype": ("memory.text_encoder_quantization", "text_quantization"),
    "text_encoder_3.weight_dtype": ("memory.text_encoder_quantization", "text_quantization"),
    "text_encoder_2_sequence_length": ("model.text_length", "number"),
    "output_dtype": ("saving.save_precision", "saved"),
    "output_model_destination": ("saving.output_name", "file_name"),
    "cache_dir": ("dataset.cache_dir", "path"),
    "tensorboard": ("logging.tensorboard", "flag"),
    "compile": ("compile.compile", "compile"),
    "learning_rate": ("optimizer.learning_rate", "number"),
    "learning_rate_scheduler": ("optimizer.lr_scheduler", "schedule"),
    "learning_rate_warmup_steps": ("optimizer.lr_warmup", "number"),
    "learning_rate_cycles": ("optimizer.lr_scheduler_num_cycles", "off_at_0"),
    "learning_rate_min_factor": ("optimizer.lr_scheduler_min_lr_ratio", "number"),
    "clip_grad_norm": ("optimizer.max_grad_norm", "no_limit"),
    "epochs": ("training.max_train_epochs", "off_at_0"),
    "batch_size": ("dataset.batch_size", "number"),
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps", "number"),
    "ema": ("training.ema", "switched"),
    "ema_decay": ("training.ema_decay", "number"),
    "train_dtype": ("training.mixed_precision", "amp"),
    "resolution": ("dataset.resolution", "resolutions"),
    "attention_mechanism": ("compile.attention", "kernel"),
    "dropout_probability": ("network.network_dropout", "dropout"),
    "offset_noise_weight": ("loss.noise_offset", "number"),
    "perturbation_noise_weight": ("loss.ip_noise_gamma", "number"),
    "rescale_noise_scheduler_to_zero_terminal_snr": ("loss.zero_terminal_snr", "flag"),
    "force_v_prediction": ("loss.prediction_type", "v_prediction"),
    "min_noising_strength": ("timesteps.min_timestep", "limit"),
    "max_noising_strength": ("timesteps.max_timestep", "limit"),
    "lora_weight_dtype": ("network.lora_weight_dtype", "saved"),
    "lora_model_name": ("network.network_weights", "path"),
    **{f"{part}.{name}": goal for part in _DENOISERS for name, goal in _PARTS.items()},
}  # fmt: skip

NOT_NEEDED = by_name({
    "it is for the other program's window, not for training": (
        "__version debug_mode debug_dir tensorboard_expose tensorboard_always_on tensorboard_port include_train_config "
        "continue_last_backup prevent_overwrites only_cache workspace_dir samples_to_tensorboard sample_image_format "
        "sample_video_format sample_audio_format non_ema_sampling save_filename_prefix concepts[].name concepts[].seed "
        "optimizer_defaults. cloud. sample_definition_file_name output_model_format clear_cache_before_training"
    ),
    "secrets don't belong in a settings file": "secrets.",
    RESUME_STATE: (
        "backup_after backup_after_unit rolling_backup rolling_backup_count backup_before_save"
    ),
    ONE_MACHINE: (
        "multi_gpu device_indexes gradient_reduce_precision fused_gradient_reduce async_gradient_reduce "
        "async_gradient_reduce_buffer train_device temp_device"
    ),
    ALWAYS_CACHED: (
        "image_caching text_caching latent_caching caching_threads dataloader_threads prefetch_next_batch"
    ),
    "no model in Monotile has such a part": (
        "effnet_encoder. decoder. decoder_text_encoder. decoder_vqgan. unconditional_transformer. text_encoder_4. "
        "text_encoder_4_layer_skip frames vb_loss_strength"
    ),
    "it is not a part of LoRA training": (
        "embedding_learning_rate preserve_embedding_norm embedding. additional_embeddings[]. additional_embeddings "
        "embedding_weight_dtype bundle_additional_embeddings embeddings[]. embeddings oft_block_size oft_block_share "
        "dora_oft "
        "oft_scaled oft_clipped_norm oft_cans lokr_vec_trick"
    ),
    WEIGHT_FORMAT: (
        "weight_dtype vae.weight_dtype fallback_train_dtype enable_autocast_cache"
    ),
    "the training setting of this part already says it": " ".join(
        f"{part}.include {part}.train_embedding {part}.stop_training_after {part}.stop_training_after_unit "
        f"{part}.attention_mask {part}.activation_offloading"
        for part in (*_DENOISERS, "text_encoder", "text_encoder_2", "text_encoder_3", "vae")
    ) + " vae. async_offloading",
    "it is always on": "aspect_ratio_bucketing",
})  # fmt: skip
NOT_OFFERED = by_name({
    "use memory.blocks_to_swap, in whole blocks": (
        "layer_offload_fraction " + " ".join(f"{part}.offload_fraction" for part in _DENOISERS)
    ),
    "the denoiser is read from model.base_model; set that to this file": " ".join(
        f"{part}.model_name" for part in _DENOISERS
    ),
    "text encoders have one setting for all, and leave the GPU after encoding": (
        "text_encoder. text_encoder_2. text_encoder_3. text_encoder_sequence_length"
    ),
    "text encoders are used at the layer that the model's own pipeline uses": (
        "text_encoder_layer_skip text_encoder_2_layer_skip text_encoder_3_layer_skip"
    ),
    "Monotile has no such setting for the denoiser": " ".join(f"{part}." for part in _DENOISERS),
    NO_MASKS: "masked_prior_preservation_weight custom_conditioning_image",
    NO_LOSS_SETTING: "mae_strength log_cosh_strength loss_scaler cep_gamma",
    "the learning rate is not scaled by the batch size": "learning_rate_scaler",
    "the average is updated in every step": "ema_update_step_interval",
    "set the layers to train as network.targets_include, with diffusers' names": (
        "layer_filter layer_filter_preset layer_filter_regex"
    ),
    "all layers are quantized in the same way": "quantization.",
    "set a scheduler of your own by its class path": (
        "custom_learning_rate_scheduler scheduler_params "
        "scheduler_params[]."
    ),
    "seamless tiling is not supported": "force_circular_padding",
    NO_NOISE_SETTING: "generalized_offset_noise force_epsilon_prediction",
    "LoKr factors in three parts are not supported": "lokr_use_tucker",
    NO_LORA_SETTING: (
        "lora_decompose_norm_epsilon lora_decompose_output_axis lokr_decompose_both lokr_weight_decompose "
        "lokr_dora_on_output"
    ),
    "nothing is skipped at the start": "sample_skip_first save_skip_first",
    "Monotile uses the arguments of the optimizer's own class": "optimizer.",
    FIXED_IMAGES: "concepts[].image.",
    FIXED_CAPTIONS: "concepts[].text.",
    "folders are weighted by their repeats": (
        "concepts[].balancing_strategy concepts[].loss_weight"
    ),
})  # fmt: skip
NEUTRAL = {
    "quantization.layer_filter_preset": ("full",), "layer_filter_preset": ("full",), "loss_scaler": ("NONE",),
    "learning_rate_scaler": ("NONE",), "quantization.svd_dtype": ("NONE",), "quantization.svd_rank": ("16",),
    "concepts[].balancing_strategy": ("REPEATS",), "concepts[].loss_weight": ("1", "1.0"),
    "lora_decompose_norm_epsilon": ("True",), "lokr_dora_on_output": ("True",),
    "concepts[].text.prompt_source": ("sample",), "concepts[].text.tag_delimiter": (",",),
    "ema_update_step_interval": ("1",),
    "concepts[].text.keep_tags_count": ("1",), "concepts[].image.resolution_override": ("512",),
    "text_encoder_sequence_length": ("512",),
    "concepts[].text.tag_dropout_mode": ("FULL",), "concepts[].text.tag_dropout_special_tags_mode": ("NONE",),
    "concepts[].text.caps_randomize_mode": ("capslock, title, first, random",), "optimizer.centered_wd_mode": ("full",),
    "optimizer.orthogonal_gradient": ("disabled",), "optimizer.state_precision": ("auto",),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "optimizer.lr_scheduler": "constant", "optimizer.lr_warmup": 200.0, "optimizer.learning_rate": 3e-6,
    "network.network_alpha": 1.0, "dataset.resolution": 512, "training.max_train_epochs": 100,
    "saving.save_precision": "fp32",
}  # fmt: skip


def _combined(fields: Fields) -> None:
    work = fields.work
    take_family(work, named_family(fields.get("model_type")) if fields.on("model_type") else work.wanted, "model_type")
    fields.read.add("model_type")
    lora = str(fields.get("training_method") or "FINE_TUNE").upper() == "LORA"
    whole = str(fields.get("training_method") or "FINE_TUNE").upper() == "FINE_TUNE"
    if whole:
        _whole_model(fields)
    else:
        fields.note("training_method", "taken" if lora else "not offered", "" if lora else "an embedding is trained")
    _trained(fields)
    _network(fields)
    _noise(fields)
    _loss(fields)
    take_optimizer(fields, "optimizer.optimizer", _OPTIMIZERS, "optimizer.")
    checkpointing = str(fields.get("gradient_checkpointing") or "").upper()
    if checkpointing:
        fields.take("gradient_checkpointing", "training.gradient_checkpointing", checkpointing != "OFF")
        if checkpointing == "CPU_OFFLOADED":
            work.take("memory.checkpointing_kind", "offload", "gradient_checkpointing")
    take_every(
        fields, "sample_after", "sample_after_unit", "sampling.sample_every_n_steps", "sampling.sample_every_n_epochs"
    )
    saved = ("saving.save_every_n_steps", "saving.save_every_n_epochs")
    take_every(fields, "save_every", "save_every_unit", *saved)
    take_every(fields, "save_after", "save_after_unit", *saved)
    measured = ("validation.validate_every_n_steps", "validation.validate_every_n_epochs")
    take_every(fields, "validate_after", "validate_after_unit", *measured, switch="validation")
    read_masks(fields)
    read_concepts(fields, "concepts")
    here = "dataset.folders" in work.ours or work.dataset is not None
    why = "" if here else "import that file together with this one: add it with --dataset"
    fields.note("concept_file_name", "not needed" if here else "not offered", why or "the folders are read already")
    read_samples(fields)


def _whole_model(fields: Fields) -> None:
    """The denoiser's own weights are trained: their format, and where they are stepped."""
    take_kind(fields.work, "training_method")
    fields.note("training_method", "taken", "", KIND)
    if not fields.has("training_method"):
        fields.work.notes.append(
            Note("training_method", "default", "not in the file: OneTrainer trains all", None, KIND)
        )
    part = fields.first(*(f"{part}.weight_dtype" for part in _DENOISERS)) or "weight_dtype"
    kept = str(fields.get(part) or "FLOAT_32").upper()
    if kept in ("BFLOAT_16", "FLOAT_32"):
        fields.take(part, WEIGHTS, "bf16" if kept == "BFLOAT_16" else "fp32")
    fused = "optimizer.fused_back_pass"
    if fields.on(fused):
        fields.take(fused, FUSED, True)
    rounding = "steps of bf16 weights are always rounded at random, those of float32 ones never"
    fields.note("optimizer.stochastic_rounding", "not needed", rounding)


def _trained(fields: Fields) -> None:
    """Which parts are trained, and at what rates."""
    work = fields.work
    for part in _DENOISERS:
        fields.note(f"{part}.train", "not needed", DENOISER_TRAINED)
        if fields.on(f"{part}.learning_rate"):
            fields.take(f"{part}.learning_rate", "optimizer.learning_rate", number(fields.get(f"{part}.learning_rate")))
            fields.note("learning_rate", "not needed", f"{part}.learning_rate has priority")
    encoders = [name for name in ("text_encoder", "text_encoder_2", "text_encoder_3") if fields.on(f"{name}.train")]
    encoder_names = [
        name for name in ("text_encoder", "text_encoder_2", "text_encoder_3") if fields.has(f"{name}.train")
    ]
    if not encoder_names:
        return
    take_known(work, "network.train_text_encoder", bool(encoders), f"{encoder_names[0]}.train")
    taken = "network.train_text_encoder" in work.ours
    for name in encoder_names:
        fate = "taken" if taken or name not in encoders else "not offered"
        why = "text encoders of this family are not trained" if fate == "not offered" else ""
        fields.note(f"{name}.train", fate, why, "network.train_text_encoder" if taken else None)
        if fields.on(f"{name}.dropout_probability"):
            share = number(fields.get(f"{name}.dropout_probability"))
            near = "caption dropout is the same for all text encoders"
            fields.take(f"{name}.dropout_probability", "dataset.caption_dropout_rate", share, near)
    rated = next((name for name in encoders if fields.on(f"{name}.learning_rate")), "") if taken else ""
    if rated:
        fields.take(f"{rated}.learning_rate", "optimizer.text_encoder_lr", number(fields.get(f"{rated}.learning_rate")))
    for name in encoder_names:
        fields.note(
            f"{name}.learning_rate", "not needed", "Monotile has one rate for all text encoders, or does not train them"
        )


def _network(fields: Fields) -> None:
    kind = str(fields.get("peft_type") or "LORA").upper()
    if kind == "LORA" and fields.on("lora_decompose"):
        kind = "DORA"
    known = {"LORA": "lora", "LOHA": "loha", "LOKR": "lokr", "DORA": "dora"}
    if kind in known:
        fields.work.take("network.network_type", known[kind], "peft_type")
        fields.note("peft_type", "taken", "", "network.network_type")
    else:
        fields.note("peft_type", "not offered", "such networks are not supported; a LoRA is trained")
    decomposed = fields.on("lora_decompose")
    fields.note("lora_decompose", "taken" if kind == "DORA" and decomposed else "off")
    lokr = kind == "LOKR" and fields.has("lokr_dim")
    used, other = ("lokr_dim", "lora_rank") if lokr else ("lora_rank", "lokr_dim")
    if fields.has(used):
        fields.take(used, "network.network_dim", number(fields.get(used)))
    fields.note(other, "off", "this network type does not use it")
    if fields.has("lora_alpha"):
        fields.take("lora_alpha", "network.network_alpha", number(fields.get("lora_alpha")))
    factor = number(fields.get("lokr_decompose_factor"))
    if kind == "LOKR" and isinstance(factor, int) and factor > 0:
        fields.take("lokr_decompose_factor", "network.lokr_factor", factor)
    fields.note("lokr_decompose_factor", "off", "both factors are as square as possible")
    if kind == "LOKR" and fields.on("lokr_full_matrix"):
        near = "the largest rank: the large factor is not split"
        fields.take("lokr_full_matrix", "network.network_dim", WHOLE, near)
    fields.note("lokr_full_matrix", "off")


def _noise(fields: Fields) -> None:
    """How levels of noise are drawn."""
    work = fields.work
    names = ("timestep_distribution", "timestep_shift", "dynamic_timestep_shifting", "noising_weight", "noising_bias")
    kind = str(fields.get("timestep_distribution") or "UNIFORM").upper()
    if work.family in ("sdxl", "sd15"):
        even = kind == "UNIFORM" or (kind == "SIGMOID" and not fields.on("noising_weight"))
        for name in names:
            fate = "not needed" if even or name != names[0] else "not offered"
            fields.note(name, fate, "for this family all levels are drawn equally")
        return
    shift = number(fields.get("timestep_shift", 1.0))
    weight, bias = (number(fields.get(name, 0.0)) for name in ("noising_weight", "noising_bias"))
    if (
        not all(isinstance(each, int | float) and not isinstance(each, bool) for each in (shift, weight, bias))
        or shift <= 0
    ):
        shift, weight, bias = 1.0, 0.0, 0.0
    key, why = names[0], ""
    if fields.on("dynamic_timestep_shifting"):
        work.take("timesteps.timestep_sampling", "flux_shift", names[2])
        why = "the shift by size is used, with a sigmoid of a normal distribution"
    elif kind == "LOGIT_NORMAL":
        work.take("timesteps.timestep_sampling", "logit_normal", key)
        work.take("timesteps.logit_mean", round(bias + math.log(shift), 6), names[4])
        work.take("timesteps.logit_std", round(weight + 1.0, 6), names[3])
    else:
        even = kind == "UNIFORM" or (kind == "SIGMOID" and not weight)
        why = "" if even else f"{kind.lower()} is not supported; all levels are drawn equally"
        work.take("timesteps.timestep_sampling", "uniform" if shift == 1 else "shift", key)
        if shift != 1:
            work.take("timesteps.discrete_flow_shift", float(shift), names[1])
            work.take("timesteps.sigmoid_scale", _EVEN, key)
            why = why or f"a shifted uniform distribution is close to a sigmoid with sigmoid_scale {_EVEN}"
    for name in names:
        fields.note(name, "near" if why else "taken", why, "timesteps.timestep_sampling" if name == key else None)
    if not fields.has(key):
        work.notes.append(Note(key, "default", "not in the file: OneTrainer uses uniform", None))


def _loss(fields: Fields) -> None:
    mean, huber = (number(fields.get(name, usual)) for name, usual in (("mse_strength", 1.0), ("huber_strength", 0.0)))
    if not is_off(huber) and is_off(mean):
        fields.take("huber_strength", "loss.loss_type", "huber")
        if fields.has("huber_delta"):
            fields.take("huber_delta", "loss.huber_c", number(fields.get("huber_delta")))
    mixed = not is_off(huber) and not is_off(mean)
    fields.note("huber_strength", "not offered" if mixed else "off", "losses can't be mixed; l2 is used")
    fields.note("mse_strength", "taken")
    fields.note("huber_delta", "off", "it is used with huber_strength only")
    kind = str(fields.get("loss_weight_fn") or "CONSTANT").upper()
    if kind == "MIN_SNR_GAMMA":
        strength = number(fields.get("loss_weight_strength", 5.0))
        fields.work.take("loss.min_snr_gamma", strength, "loss_weight_fn")
        fields.note("loss_weight_strength", "taken", "", "loss.min_snr_gamma")
    elif kind == "DEBIASED_ESTIMATION":
        fields.work.take("loss.debiased_estimation", True, "loss_weight_fn")
    known = kind in ("CONSTANT", "MIN_SNR_GAMMA", "DEBIASED_ESTIMATION")
    fields.note(
        "loss_weight_fn", "taken" if known else "not offered", "" if known else "such weights are not supported"
    )
    fields.note("loss_weight_strength", "off", "it is used only with a weight that has one")


PROGRAM = Program(KEYS, NOT_NEEDED, NOT_OFFERED, _combined, NEUTRAL, DEFAULTS)
