"""Lists what SimpleTuner's names are called here, and why others are left. Data only, as in its OPTIONS.md."""

from __future__ import annotations

from backend.importers.common_reasons import (
    ALWAYS_CACHED,
    IMAGE_SHAPES,
    NO_LORA_SETTING,
    NO_LOSS_SETTING,
    NO_NOISE_SETTING,
    NO_UPLOAD,
    NO_VIDEOS,
    ONE_MACHINE,
    RUN_FOLDER,
    TARGETS,
)
from backend.importers.program import by_name

KEYS: dict[str, tuple[str, str]] = {
    "pretrained_model_name_or_path": ("model.base_model", "base"),
    "pretrained_vae_model_name_or_path": ("model.vae", "path"),
    "pretrained_t5_model_name_or_path": ("model.text_encoder_2", "path"),
    "variant": ("model.variant", "text"),
    "tokenizer_max_length": ("model.text_length", "number"),
    "base_model_precision": ("memory.base_quantization", "quantization"),
    "text_encoder_1_precision": ("memory.text_encoder_quantization", "text_quantization"),
    "text_encoder_2_precision": ("memory.text_encoder_quantization", "text_quantization"),
    "text_encoder_3_precision": ("memory.text_encoder_quantization", "text_quantization"),
    "vae_enable_tiling": ("memory.vae_tiling", "tiling"),
    "gradient_checkpointing": ("training.gradient_checkpointing", "flag"),
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps", "number"),
    "num_processes": ("training.num_processes", "number"),
    "mixed_precision": ("training.mixed_precision", "amp"),
    "seed": ("training.seed", "seed_or_0"),
    "max_train_steps": ("training.max_train_steps", "off_at_0"),
    "num_train_epochs": ("training.max_train_epochs", "off_at_0"),
    "use_ema": ("training.ema", "flag"),
    "ema_decay": ("training.ema_decay", "number"),
    "train_batch_size": ("dataset.batch_size", "number"),
    "resolution": ("dataset.resolution", "resolutions"),
    "minimum_image_size": ("dataset.min_bucket_size", "off_at_0"),
    "aspect_bucket_alignment": ("dataset.bucket_step", "bucket_step"),
    "caption_dropout_probability": ("dataset.caption_dropout_rate", "number"),
    "instance_prompt": ("dataset.trigger_word", "text"),
    "learning_rate": ("optimizer.learning_rate", "number"),
    "text_encoder_lr": ("optimizer.text_encoder_lr", "rate"),
    "lr_scheduler": ("optimizer.lr_scheduler", "schedule"),
    "lr_warmup_steps": ("optimizer.lr_warmup", "number"),
    "lr_num_cycles": ("optimizer.lr_scheduler_num_cycles", "off_at_0"),
    "lr_power": ("optimizer.lr_scheduler_power", "number"),
    "adam_weight_decay": ("optimizer.weight_decay", "number"),
    "adam_epsilon": ("optimizer.eps", "number"),
    "max_grad_norm": ("optimizer.max_grad_norm", "number"),
    "lora_rank": ("network.network_dim", "number"),
    "lora_dropout": ("network.network_dropout", "dropout"),
    "init_lora": ("network.network_weights", "path"),
    "flux_guidance_value": ("model.guidance_scale", "number"),
    "snr_gamma": ("loss.min_snr_gamma", "off_at_0"),
    "noise_offset": ("loss.noise_offset", "number"),
    "input_perturbation": ("loss.ip_noise_gamma", "number"),
    "loss_type": ("loss.loss_type", "text"),
    "huber_c": ("loss.huber_c", "number"),
    "huber_schedule": ("loss.huber_schedule", "text"),
    "rescale_betas_zero_snr": ("loss.zero_terminal_snr", "flag"),
    "attention_mechanism": ("compile.attention", "kernel"),
    "dynamo_backend": ("compile.compile_backend", "backend"),
    "dynamo_mode": ("compile.compile_mode", "text"),
    "dynamo_fullgraph": ("compile.compile_fullgraph", "flag"),
    "dynamo_dynamic": ("compile.compile_dynamic", "dynamic"),
    "checkpointing_steps": ("saving.save_every_n_steps", "off_at_0"),
    "checkpoint_step_interval": ("saving.save_every_n_steps", "off_at_0"),
    "checkpoint_epoch_interval": ("saving.save_every_n_epochs", "off_at_0"),
    "checkpoints_total_limit": ("saving.save_last_n", "off_at_0"),
    "eval_steps_interval": ("validation.validate_every_n_steps", "off_at_0"),
    "eval_epoch_interval": ("validation.validate_every_n_epochs", "off_at_0"),
    "validation_steps": ("sampling.sample_every_n_steps", "off_at_0"),
    "validation_step_interval": ("sampling.sample_every_n_steps", "off_at_0"),
    "validation_epoch_interval": ("sampling.sample_every_n_epochs", "off_at_0"),
    "validation_on_startup": ("sampling.sample_at_start", "flag"),
    "hub_model_id": ("saving.output_name", "file_name"),
}
NOT_NEEDED = by_name({
    NO_UPLOAD: (
        "push_to_hub push_checkpoints_to_hub push_to_hub_background publishing_config webhook_config model_card_note "
        "model_card_private model_card_safe_for_work hub_token"
    ),
    RUN_FOLDER: (
        "output_dir logging_dir tracker_project_name tracker_run_name cache_dir cache_dir_text cache_dir_vae"
    ),
    ALWAYS_CACHED: (
        "vae_batch_size vae_cache_ondemand vae_cache_disable vae_cache_scan_behaviour write_batch_size read_batch_size "
        "image_processing_batch_size compress_disk_cache preserve_data_backend_cache skip_file_discovery "
        "keep_vae_loaded vae_enable_patch_conv "
        "text_cache_disable text_embed_cache metadata_update_interval aspect_bucket_disable_rebuild "
        "aspect_bucket_worker_count "
        "enable_multiprocessing max_workers torch_num_threads dataloader_prefetch dataloader_prefetch_qlen "
        "aws_max_pool_connections delete_unwanted_images delete_problematic_images disable_bucket_pruning "
        "override_dataset_config ignore_missing_files allow_dataset_oversubscription vae_enable_slicing vae_dtype "
        "fully_unload_text_encoder offload_during_startup offload_during_save"
    ),
    "a run starts at its first step, or is resumed with launcher.py train --resume RUN": "resume_from_checkpoint",
    ONE_MACHINE: "num_machines accelerate_extra_args mixed_precision_backend",
    "it is for the other program, not for training": (
        "disable_benchmark i_know_what_i_am_doing print_filenames print_sampler_statistics debug_aspect_buckets "
        "debug_dataset_loader accelerator_cache_clear_interval quantize_via set_grads_to_none base_model_default_dtype "
        "ema_device ema_cpu_only ema_update_interval ema_foreach_disable validation_torch_compile "
        "validation_seed_source "
        "validation_torch_compile_mode validation_noise_scheduler num_validation_images num_eval_images revision "
        "fuse_qkv_projections disable_tf32 dynamo_use_regional_compilation ignore_final_epochs data_backend_sampling "
        "report_to_url weight_dtype sageattention_usage save_text_encoder"
    ),
    "see the data set file": "data_backend_config",
})  # fmt: skip
NOT_OFFERED = by_name({
    "use memory.blocks_to_swap, or memory.offload_by_turns": (
        "enable_group_offload group_offload_type group_offload_blocks_per_group group_offload_use_stream "
        "group_offload_to_disk_path enable_model_cpu_offload ramtorch ramtorch_target_modules ramtorch_text_encoder "
        "ramtorch_vae ramtorch_controlnet"
    ),
    "ControlNets and other parts are not trained": (
        "controlnet control controlnet_model_name_or_path controlnet_custom_config conditioning_multidataset_sampling "
        "validation_stitch_input_location"
    ),
    "the base model is read as a whole; set model.base_model to this file or folder": (
        "pretrained_transformer_model_name_or_path pretrained_transformer_subfolder pretrained_unet_model_name_or_path "
        "pretrained_unet_subfolder"
    ),
    "no family in Monotile has a fourth text encoder": "text_encoder_4_precision",
    "attention always sees every token at once": "unet_attention_slice",
    "images and captions are read from folders": "parquet_caption_column parquet_filename_column data_aesthetic_score",
    NO_VIDEOS: "validation_num_video_frames",
    "samples use the LoRA at its full strength": "validation_lycoris_strength",
    "all blocks are checkpointed, or as memory.checkpointing_kind sets it": "gradient_checkpointing_interval",
    NO_LORA_SETTING: (
        "lora_init_type peft_lora_mode singlora_ramp_up_steps init_lokr_norm lora_initialisation_style"
    ),
    TARGETS: "flux_lora_target lora_target layer_freeze_strategy",
    NO_NOISE_SETTING: (
        "noise_offset_probability input_perturbation_steps disable_segmented_timestep_sampling timestep_bias_strategy "
        "timestep_bias_begin timestep_bias_end timestep_bias_multiplier flow_beta_schedule_alpha "
        "flow_beta_schedule_beta "
        "flux_fast_schedule offset_noise"
    ),
    NO_LOSS_SETTING: (
        "use_soft_min_snr soft_min_snr_sigma_data prediction_type tread_config"
    ),
    "the guidance has one value": "flux_guidance_mode flux_guidance_min flux_guidance_max",
    "padding of captions is as in the model's own pipeline": (
        "flux_attention_masked_training t5_padding sd3_clip_uncond_behaviour sd3_t5_uncond_behaviour"
    ),
    "the learning rate is not scaled by the batch size": "lr_scale lr_scale_sqrt",
    "gradients are clipped by their norm": "grad_clip_method",
    "captions come from files next to the images": "caption_strategy only_instance_prompt prepend_instance_prompt",
    "the minimum rate is a share (optimizer.lr_scheduler_min_lr_ratio)": "lr_end",
    "guidance of samples is used in every step": (
        "validation_no_cfg_until_timestep validation_guidance_rescale validation_guidance_skip_layers "
        "validation_guidance_skip_layers_start validation_guidance_skip_layers_stop validation_guidance_skip_scale"
    ),
    "add more prompts on the Sampling tab": (
        "validation_prompt_library user_prompt_library "
        "validation_using_datasets"
    ),
    "the loss is measured at fixed noise levels, see validation on the Sampling tab": (
        "evaluation_type eval_timesteps eval_dataset_id eval_dataset_pooling pretrained_evaluation_model_name_or_path"
    ),
    "the network's own file is not read; set its type and rank on the Model tab": "lycoris_config",
    "text encoders are trained as a whole": (
        "text_encoder_limit freeze_encoder_before freeze_encoder_after "
        "freeze_encoder_strategy"
    ),
    IMAGE_SHAPES: (
        "resolution_type maximum_image_size target_downsample_size max_upscale_threshold aspect_bucket_rounding crop"
    ),
})  # fmt: skip
NEUTRAL = {
    "resolution_type": ("pixel", "area", "pixel_area"), "flux_guidance_mode": ("constant",),
    "grad_clip_method": ("norm",),
    "t5_padding": ("unmodified",), "layer_freeze_strategy": ("none",), "timestep_bias_strategy": ("none",),
    "caption_strategy": ("textfile", "filename"), "lora_init_type": ("default",), "peft_lora_mode": ("standard",),
    "flux_lora_target": ("all",), "gradient_checkpointing_interval": ("1",), "timestep_bias_multiplier": ("1", "1.0"),
}  # fmt: skip
