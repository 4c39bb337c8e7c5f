"""What the arguments of sd-scripts, musubi-tuner and kohya_ss are called here, and why some are not taken. Data only.

Names and defaults are those of the programs' own argument parsers. A name that is missing here may still be an alias
of a setting (`Setting.aliases`), which is looked up after these tables.
"""

from __future__ import annotations

from typing import Any

# Name there -> setting here and how the value is read (backend.config.foreign.values).
KEYS: dict[str, tuple[str, str]] = {
    "pretrained_model_name_or_path": ("model.base_model", "path"),
    "dit": ("model.base_model", "path"),
    "vae": ("model.vae", "path"),
    "ae": ("model.vae", "path"),
    "clip_l": ("model.text_encoder", "path"),
    "t5xxl": ("model.text_encoder_2", "path"),
    "text_encoder1": ("model.text_encoder_2", "path"),
    "text_encoder2": ("model.text_encoder", "path"),
    "text_encoder": ("model.text_encoder", "path"),
    "qwen3": ("model.text_encoder", "path"),
    "t5xxl_max_token_length": ("model.text_length", "number"),
    "qwen3_max_token_length": ("model.text_length", "number"),
    "guidance_scale": ("model.guidance_scale", "number"),
    "resolution": ("dataset.resolution", "resolution"),
    "max_resolution": ("dataset.resolution", "resolution"),
    "min_bucket_reso": ("dataset.min_bucket_size", "number"),
    "max_bucket_reso": ("dataset.max_bucket_size", "number"),
    "bucket_reso_steps": ("dataset.bucket_step", "bucket_step"),
    "bucket_no_upscale": ("dataset.no_upscale", "flag"),
    "train_batch_size": ("dataset.batch_size", "number"),
    "batch_size": ("dataset.batch_size", "number"),
    "caption_extension": ("dataset.caption_extension", "extension"),
    "caption_extention": ("dataset.caption_extension", "extension"),
    "caption_dropout_rate": ("dataset.caption_dropout_rate", "number"),
    "caption_dropout_every_n_epochs": ("dataset.caption_dropout_every_n_epochs", "off_at_0"),
    "validation_split": ("dataset.validation_split", "number"),
    "validation_seed": ("dataset.validation_split_seed", "number"),
    "max_token_length": ("dataset.max_token_length", "number"),
    "network_dim": ("network.network_dim", "number"),
    "network_alpha": ("network.network_alpha", "number"),
    "network_dropout": ("network.network_dropout", "number"),
    "network_weights": ("network.network_weights", "path"),
    "LoRA_network_weights": ("network.network_weights", "path"),
    "lora_network_weights": ("network.network_weights", "path"),
    "full_bf16": ("network.lora_weight_dtype", "full_bf16"),
    "optimizer_type": ("optimizer.optimizer", "optimizer"),
    "optimizer": ("optimizer.optimizer", "optimizer"),
    "learning_rate": ("optimizer.learning_rate", "number"),
    "unet_lr": ("optimizer.learning_rate", "rate"),
    "text_encoder_lr": ("optimizer.text_encoder_lr", "rate"),
    "lr_scheduler": ("optimizer.lr_scheduler", "scheduler"),
    "lr_scheduler_type": ("optimizer.lr_scheduler", "class_path"),
    "lr_warmup_steps": ("optimizer.lr_warmup", "warmup"),
    "lr_warmup": ("optimizer.lr_warmup", "percent"),
    "lr_scheduler_num_cycles": ("optimizer.lr_scheduler_num_cycles", "number"),
    "lr_scheduler_power": ("optimizer.lr_scheduler_power", "number"),
    "lr_scheduler_min_lr_ratio": ("optimizer.lr_scheduler_min_lr_ratio", "number"),
    "max_grad_norm": ("optimizer.max_grad_norm", "number"),
    "max_train_steps": ("training.max_train_steps", "off_at_0"),
    "max_train_epochs": ("training.max_train_epochs", "off_at_0"),
    "epoch": ("training.max_train_epochs", "off_at_0"),
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps", "number"),
    "mixed_precision": ("training.mixed_precision", "text"),
    "seed": ("training.seed", "seed"),
    "gradient_checkpointing": ("training.gradient_checkpointing", "flag"),
    "timestep_sampling": ("timesteps.timestep_sampling", "sampling"),
    "sigmoid_scale": ("timesteps.sigmoid_scale", "number"),
    "discrete_flow_shift": ("timesteps.discrete_flow_shift", "number"),
    "logit_mean": ("timesteps.logit_mean", "number"),
    "logit_std": ("timesteps.logit_std", "number"),
    "weighting_scheme": ("timesteps.weighting_scheme", "weighting"),
    "min_timestep": ("timesteps.min_timestep", "number"),
    "max_timestep": ("timesteps.max_timestep", "number"),
    "loss_type": ("loss.loss_type", "text"),
    "huber_c": ("loss.huber_c", "number"),
    "huber_schedule": ("loss.huber_schedule", "text"),
    "v_parameterization": ("loss.prediction_type", "v_prediction"),
    "min_snr_gamma": ("loss.min_snr_gamma", "off_at_0"),
    "debiased_estimation_loss": ("loss.debiased_estimation", "flag"),
    "scale_v_pred_loss_like_noise_pred": ("loss.scale_v_pred_loss_like_noise_pred", "flag"),
    "noise_offset": ("loss.noise_offset", "number"),
    "multires_noise_iterations": ("loss.multires_noise_iterations", "number"),
    "multires_noise_discount": ("loss.multires_noise_discount", "number"),
    "ip_noise_gamma": ("loss.ip_noise_gamma", "number"),
    "zero_terminal_snr": ("loss.zero_terminal_snr", "flag"),
    "torch_compile": ("compile.compile", "compile"),
    "compile": ("compile.compile", "compile"),
    "dynamo_backend": ("compile.compile_backend", "backend"),
    "compile_backend": ("compile.compile_backend", "backend"),
    "dynamo_mode": ("compile.compile_mode", "text"),
    "compile_mode": ("compile.compile_mode", "text"),
    "dynamo_use_dynamic": ("compile.compile_dynamic", "dynamic"),
    "compile_dynamic": ("compile.compile_dynamic", "dynamic"),
    "dynamo_use_fullgraph": ("compile.compile_fullgraph", "flag"),
    "compile_fullgraph": ("compile.compile_fullgraph", "flag"),
    "compile_cache_size_limit": ("compile.compile_cache_size_limit", "off_at_0"),
    "sdpa": ("compile.attention", "attention"),
    "xformers": ("compile.attention", "attention"),
    "flash_attn": ("compile.attention", "attention"),
    "flash3": ("compile.attention", "attention"),
    "sage_attn": ("compile.attention", "attention"),
    "mem_eff_attn": ("compile.attention", "attention"),
    "attn_mode": ("compile.attention", "attention"),
    "blocks_to_swap": ("memory.blocks_to_swap", "number"),
    "fp8_base": ("memory.base_quantization", "fp8"),
    "fp8_base_unet": ("memory.base_quantization", "fp8"),
    "fp8_scaled": ("memory.base_quantization", "fp8"),
    "fp8_t5": ("memory.text_encoder_quantization", "int8_text"),
    "fp8_vl": ("memory.text_encoder_quantization", "int8_text"),
    "fp8_text_encoder": ("memory.text_encoder_quantization", "int8_text"),
    "cpu_offload_checkpointing": ("memory.checkpointing_kind", "offload"),
    "gradient_checkpointing_cpu_offload": ("memory.checkpointing_kind", "offload"),
    "unsloth_offload_checkpointing": ("memory.checkpointing_kind", "offload"),
    "sample_every_n_steps": ("sampling.sample_every_n_steps", "off_at_0"),
    "sample_every_n_epochs": ("sampling.sample_every_n_epochs", "off_at_0"),
    "sample_at_first": ("sampling.sample_at_start", "flag"),
    "validate_every_n_steps": ("validation.validate_every_n_steps", "off_at_0"),
    "validate_every_n_epochs": ("validation.validate_every_n_epochs", "off_at_0"),
    "output_name": ("saving.output_name", "text"),
    "save_every_n_steps": ("saving.save_every_n_steps", "off_at_0"),
    "save_every_n_epochs": ("saving.save_every_n_epochs", "off_at_0"),
    "save_last_n_steps": ("saving.save_last_n", "keep_last"),
    "save_last_n_epochs": ("saving.save_last_n", "keep_last"),
    "save_precision": ("saving.save_precision", "precision"),
    "save_state": ("saving.save_state", "flag"),
    "metadata_title": ("saving.metadata_title", "text"),
    "metadata_author": ("saving.metadata_author", "text"),
    "metadata_description": ("saving.metadata_description", "text"),
    "training_comment": ("saving.metadata_description", "text"),
    "metadata_license": ("saving.metadata_license", "text"),
    "metadata_tags": ("saving.metadata_tags", "text"),
    "log_with": ("logging.tensorboard", "log_with"),
}
# The same where a family has other parts behind a name.
FAMILY_KEYS: dict[str, dict[str, tuple[str, str]]] = {"sd3": {"t5xxl": ("model.text_encoder_3", "path")}}

# Read by code of their own, since they mean more than one setting.
COMBINED = frozenset(
    [
        "network_module",
        "LoRA_type",
        "network_args",
        "optimizer_args",
        "train_data_dir",
        "image_dir",
        "dataset_config",
        "sample_prompts",
        "network_train_unet_only",
        "network_train_text_encoder_only",
        "sdxl",
        "flux1_checkbox",
        "sd3_checkbox",
        "v2",
        "model_version",
        "edit",
        "edit_plus",
        "conv_dim",
        "conv_alpha",
        "enable_bucket",
    ]
)

_CACHED = "pictures and captions are always cached on disk"
_OWN_FOLDER = "each run keeps this in a folder of its own under saving.output_dir"
_MACHINE = "one GPU trains, and nothing has to be told to accelerate"
_LIBRARY = "it belongs to the other program's window, not to training"
_KEPT_SMALL = "weights are read straight from the file, so there is nothing to save"
_SAVES = "a run always keeps what it needs to go on"

NOT_NEEDED: dict[str, str] = {
    **dict.fromkeys(("cache_latents", "cache_latents_to_disk", "cache_text_encoder_outputs"), _CACHED),
    **dict.fromkeys(
        ("cache_text_encoder_outputs_to_disk", "vae_batch_size", "sdxl_cache_text_encoder_outputs"), _CACHED
    ),
    **dict.fromkeys(("text_encoder_batch_size", "skip_cache_check", "skip_latents_validity_check"), _CACHED),
    **dict.fromkeys(("flux1_cache_text_encoder_outputs", "flux1_cache_text_encoder_outputs_to_disk"), _CACHED),
    **dict.fromkeys(("sd3_cache_text_encoder_outputs", "sd3_cache_text_encoder_outputs_to_disk"), _CACHED),
    **dict.fromkeys(("output_dir", "logging_dir", "log_prefix", "log_tracker_name", "log_config"), _OWN_FOLDER),
    **dict.fromkeys(("log_tracker_config", "wandb_run_name"), _OWN_FOLDER),
    **dict.fromkeys(("num_processes", "num_machines", "num_cpu_threads_per_process", "multi_gpu", "gpu_ids"), _MACHINE),
    **dict.fromkeys(("main_process_port", "extra_accelerate_launch_args", "ddp_timeout", "ddp_static_graph"), _MACHINE),
    **dict.fromkeys(("ddp_gradient_as_bucket_view", "additional_parameters"), _MACHINE),
    **dict.fromkeys(("model_list", "save_as_bool", "stop_text_encoder_training", "use_wandb"), _LIBRARY),
    **dict.fromkeys(("console_log_level", "console_log_simple", "console_log_file", "config_file"), _LIBRARY),
    **dict.fromkeys(
        ("async_upload", "huggingface_repo_id", "huggingface_path_in_repo", "huggingface_repo_type"),
        "nothing is uploaded",
    ),  # fmt: skip
    **dict.fromkeys(
        ("huggingface_repo_visibility", "save_state_to_huggingface", "resume_from_huggingface"), "nothing is uploaded"
    ),  # fmt: skip
    **dict.fromkeys(("huggingface_token", "wandb_api_key"), "secrets don't belong in a settings file"),
    **dict.fromkeys(("lowram", "highvram", "disable_mmap_load_safetensors", "mem_eff_save"), _KEPT_SMALL),
    **dict.fromkeys(("save_state_on_train_end", "save_last_n_steps_state", "save_last_n_epochs_state"), _SAVES),
    "save_model_as": "LoRA files are always safetensors",
    "no_metadata": "the LoRA file always says how it was made",
    "resume": "use Resume on the Run tab, or launcher.py train --resume RUN",
    "persistent_data_loader_workers": "loader workers always stay",
    "max_data_loader_n_workers": "caches are read ahead by as many threads as are set here",
    "model_prediction_type": "flow models are trained on the velocity, as they were made",
    "apply_t5_attn_mask": "it belongs to the model family",
    "split_attn": "pictures of one batch never attend to each other",
    "split_mode": "use memory.blocks_to_swap instead",
    "no_half_vae": "the VAE runs in a format that it is exact in",
    "use_pinned_memory_for_block_swap": "pinned memory is used where there is enough of it",
    "img_in_txt_in_offloading": "only blocks are swapped",
    "dit_dtype": "the format follows model.weight_dtype",
    "vae_dtype": "the VAE runs in a format that it is exact in",
    "disable_numpy_memmap": _KEPT_SMALL,
    "sample_sampler": "samples are drawn with Euler's method",
    "dynamo_use_regional": "blocks are compiled one by one anyway (compile.compile_scope)",
    "cuda_allow_tf32": "matrix products run in the precision of training.mixed_precision",
    "cuda_cudnn_benchmark": "pictures come in few sizes, so that there is nothing to search",
    "preserve_distribution_shape": "limits squeeze the distribution; see its picture in the Training tab",
}

NOT_OFFERED: dict[str, str] = {
    **dict.fromkeys(
        (
            "shuffle_caption",
            "keep_tokens",
            "keep_tokens_separator",
            "caption_separator",
            "secondary_separator",
            "caption_tag_dropout_rate",
            "enable_wildcard",
            "caption_prefix",
            "caption_suffix",
            "token_warmup_min",
            "token_warmup_step",
            "weighted_captions",
        ),
        "captions are used as they are written",
    ),  # fmt: skip
    **dict.fromkeys(
        ("flip_aug", "color_aug", "random_crop", "face_crop_aug_range", "random_crop_padding_percent"),
        "pictures are cached, so they can't be changed in every step",
    ),  # fmt: skip
    **dict.fromkeys(("masked_loss", "alpha_mask", "conditioning_data_dir", "weighting_mask"), "masks are not offered"),
    **dict.fromkeys(("reg_data_dir", "prior_loss_weight", "is_reg"), "regularisation pictures are not offered"),
    **dict.fromkeys(
        (
            "scale_weight_norms",
            "rank_dropout",
            "module_dropout",
            "loraplus_lr_ratio",
            "dim_from_weights",
            "base_weights",
            "base_weights_multiplier",
        ),
        "there is no such setting of the LoRA",
    ),  # fmt: skip
    **dict.fromkeys(
        ("block_dims", "block_alphas", "down_lr_weight", "mid_lr_weight", "up_lr_weight", "block_lr"),
        "write ranks and rates of single layers by pattern instead",
    ),  # fmt: skip
    "clip_skip": "text encoders are read where the model's own pipeline reads them",
    "full_fp16": "gradients in fp16 lose small values; training.mixed_precision is the way to fp16",
    "mode_scale": "the distribution mode is not offered",
    "fused_backward_pass": "the optimizer steps after the backward pass",
    "fused_optimizer_groups": "the optimizer steps after the backward pass",
    "initial_epoch": "a run begins at its first step",
    "initial_step": "a run begins at its first step",
    "in_json": "captions are read from files beside the pictures",
    "tokenizer_cache_dir": "nothing is fetched; tokenizers come from a folder (model.tokenizer)",
    "vae_dir": "there is no such setting",
    "adaptive_noise_scale": "there is no such setting of the noise",
    "noise_offset_random_strength": "the noise offset has one strength",
    "ip_noise_gamma_random_strength": "the input perturbation has one strength",
}

# Values that say no more than the other program's default, so that nothing is lost without them.
NEUTRAL: dict[str, tuple[str, ...]] = {
    "clip_skip": ("1",),
    "max_token_length": ("75",),
    "prior_loss_weight": ("1", "1.0"),
    "mode_scale": ("1.29",),
    "face_crop_aug_range": ("",),
    "token_warmup_min": ("1",),
}

# What the other program does where its file says nothing, and ours does something else.
DEFAULTS: dict[str, dict[str, Any]] = {
    "sd-scripts": {
        "network_dim": 4, "network_alpha": 1, "lr_scheduler": "constant", "lr_warmup_steps": 0,
        "gradient_checkpointing": False, "max_train_steps": 1600, "caption_extension": ".caption",
    },
    "musubi-tuner": {
        "network_dim": 4, "network_alpha": 1, "lr_scheduler": "constant", "lr_warmup_steps": 0,
        "gradient_checkpointing": False, "max_train_steps": 1600, "timestep_sampling": "sigma",
        "discrete_flow_shift": 1.0,
    },
    "kohya_ss": {},
}  # fmt: skip
FLUX_DEFAULTS: dict[str, Any] = {"timestep_sampling": "sigma", "guidance_scale": 3.5, "discrete_flow_shift": 3.0}

# network_module -> family here; a name that is not in model.family is not offered.
NETWORKS: dict[str, str] = {
    "networks.lora_flux": "flux", "networks.lora_sd3": "sd3", "networks.lora_qwen_image": "qwen_image",
    "networks.lora_anima": "anima", "networks.lora_lumina": "lumina", "networks.lora_wan": "wan",
    "networks.lora_framepack": "framepack", "networks.lora_zimage": "z_image", "networks.lora_flux_2": "flux_2",
}  # fmt: skip
LORA_TYPES: dict[str, str] = {"Flux1": "flux", "Standard": ""}

OPTIMIZERS: dict[str, str] = {
    "PagedAdamW": "paged_adamw", "AdamWScheduleFree": "adamw_schedulefree", "RAdamScheduleFree": "radam_schedulefree",
    "AdaFactor": "adafactor", "SGDNesterov": "sgd",
}  # fmt: skip
SCHEDULERS: dict[str, tuple[str, str]] = {
    "constant_with_warmup": ("constant", ""),
    "cosine_with_min_lr": ("cosine", ""),
    "adafactor": ("constant", "Adafactor's own schedule is not offered; the rate stays the same"),
    "warmup_stable_decay": ("linear", "it keeps the rate and then falls; linear falls all along"),
    "inverse_sqrt": ("polynomial", "the inverse square root is not offered; polynomial falls to an end"),
    "piecewise_constant": ("constant", "steps of the rate are not offered"),
}
SAMPLINGS: dict[str, tuple[str, str]] = {
    "qwen_shift": ("flux_shift", "Qwen's shift by size is not offered; FLUX's is the nearest"),
    "qinglong_flux": ("flux_shift", "this mixture is not offered; its largest part is taken"),
    "qinglong_qwen": ("flux_shift", "this mixture is not offered; its largest part is taken"),
    "flux2_shift": ("flux_shift", "FLUX.2's shift by size is not offered; FLUX's is the nearest"),
    "logsnr": ("logit_normal", "logsnr is not offered; logit_normal is the nearest"),
}
