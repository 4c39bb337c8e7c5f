"""Lists why arguments of sd-scripts, musubi-tuner and kohya_ss are not imported. Data only; checked as `tables` are."""

from __future__ import annotations

from collections.abc import Mapping

from backend.importers.common_reasons import (
    ALWAYS_CACHED,
    FIXED_CAPTIONS,
    FIXED_IMAGES,
    NO_LORA_SETTING,
    NO_LOSS_SETTING,
    NO_NOISE_SETTING,
    NO_UPLOAD,
    NO_VIDEOS,
    RESUME_STATE,
    RUN_FOLDER,
    TARGETS,
)


def _by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Name -> reason, of names that are written behind each reason, with spaces between."""
    return {name: reason for reason, each in names.items() for name in each.split()}


NOT_NEEDED = _by_name(
    {
        ALWAYS_CACHED: (
            "cache_latents cache_latents_to_disk cache_text_encoder_outputs cache_text_encoder_outputs_to_disk "
            "vae_batch_size sdxl_cache_text_encoder_outputs text_encoder_batch_size skip_cache_check "
            "skip_latents_validity_check flux1_cache_text_encoder_outputs "
            "flux1_cache_text_encoder_outputs_to_disk sd3_cache_text_encoder_outputs "
            "sd3_cache_text_encoder_outputs_to_disk hunyuan_image_cache_text_encoder_outputs cache_info "
            "hunyuan_image_cache_text_encoder_outputs_to_disk"
        ),
        RUN_FOLDER: "output_dir logging_dir log_prefix log_config log_tracker_config",
        "several GPUs are set by training.num_processes alone, without accelerate": (
            "num_machines num_cpu_threads_per_process multi_gpu gpu_ids main_process_port "
            "extra_accelerate_launch_args ddp_timeout ddp_static_graph ddp_gradient_as_bucket_view "
            "additional_parameters deepspeed zero_stage zero3_init_flag zero3_save_16bit_model "
            "offload_optimizer_device offload_optimizer_nvme_path offload_param_device offload_param_nvme_path "
            "fp16_master_weights_and_gradients"
        ),
        "it is for the other program's window, not for training": (
            "model_list save_as_bool stop_text_encoder_training use_wandb console_log_level console_log_simple "
            "console_log_file config_file output_config debug_dataset show_timesteps show_timesteps_resolution"
        ),
        NO_UPLOAD: (
            "async_upload huggingface_repo_id huggingface_path_in_repo huggingface_repo_type "
            "huggingface_repo_visibility save_state_to_huggingface resume_from_huggingface"
        ),
        "secrets don't belong in a settings file": "huggingface_token wandb_api_key",
        "weights are read directly from the file, so that this saves nothing": (
            "lowram highvram disable_mmap_load_safetensors mem_eff_save lowvram offload_inactive_dit "
            "offload_dit_during_sampling disable_numpy_memmap"
        ),
        RESUME_STATE: ("save_state_on_train_end save_last_n_steps_state save_last_n_epochs_state"),
        "Monotile writes it by itself": "metadata_arch metadata_reso metadata_merged_from",
        "the VAE encodes single images, whole or in tiles (memory.vae_tiling)": (
            "vae_chunk_size vae_disable_cache qwen_image_vae_2d vae_cache_cpu vae_enable_patch_conv bulk_decode "
            "no_vae_load"
        ),
        "text encoders run in the format of model.weight_dtype": "text_encoder_dtype t5xxl_dtype",
        "text encoders encode once, and then leave the GPU": "text_encoder_cpu t5xxl_device",
        "only the LoRA is saved, as safetensors": "save_clip save_t5xxl use_safetensors",
        "swapped weights are only copied to the GPU": "block_swap_h2d_only",
        "tiles have a size of their own (memory.vae_tiling)": "vae_spatial_tile_sample_min_size",
        "LoRA files are always safetensors": "save_model_as",
        "the LoRA file always contains its settings": "no_metadata",
        "use Resume on the Run tab, or launcher.py train --resume RUN": "resume",
        "loader workers are always persistent": "persistent_data_loader_workers",
        "each loader worker reads ahead by itself": "max_data_loader_n_workers",
        "images of one batch never attend to each other": "split_attn",
        "use memory.blocks_to_swap instead": "split_mode",
        "the VAE always uses a format in which it is exact": "no_half_vae vae_dtype",
        "pinned memory is used if there is enough": "use_pinned_memory_for_block_swap",
        "only blocks are swapped": "img_in_txt_in_offloading",
        "the format follows model.weight_dtype": "dit_dtype",
        "samples use the Euler sampler": "sample_sampler",
        "matrix products run in the precision of training.mixed_precision": "cuda_allow_tf32",
        "images have few sizes, so that there is nothing to search": "cuda_cudnn_benchmark",
        "the limits compress the distribution; see its plot on the Training tab": "preserve_distribution_shape",
    }
)

NOT_OFFERED = _by_name(
    {
        FIXED_CAPTIONS: (
            "token_warmup_min token_warmup_step weighted_captions validate_caption_structure warn_on_caption_issues"
        ),
        FIXED_IMAGES: "face_crop_aug_range",
        "flow models are trained on the velocity, as in their pretraining": "model_prediction_type",
        "FLUX and SD3 attend to the padding of T5, as in their own pipelines": "apply_t5_attn_mask",
        NO_LORA_SETTING: (
            "dim_from_weights "
            "rank_dropout_scale "
            "bypass_mode constrain use_scalar rescaled train_norm train_on_input unit train_lora_ggpo "
            "ggpo_beta ggpo_sigma network_multiplier"
        ),
        "set ranks and rates of single layers as network.layer_settings": (
            "block_dims block_alphas down_lr_weight mid_lr_weight up_lr_weight block_lr conv_block_dims "
            "conv_block_alphas block_lr_zero_threshold img_attn_dim img_mlp_dim img_mod_dim txt_attn_dim "
            "txt_mlp_dim txt_mod_dim single_dim single_mod_dim in_dims self_attn_lr cross_attn_lr mlp_lr mod_lr "
            "llm_adapter_lr network_reg_dims network_reg_lrs context_attn_dim context_mlp_dim context_mod_dim "
            "x_attn_dim x_mlp_dim x_mod_dim emb_dims"
        ),
        "LoKr factors in three parts are not supported": "use_cp use_tucker",
        "the small factor of a LoKr is never split": "decompose_both",
        TARGETS: (
            "LyCORIS_preset train_blocks train_double_block_indices train_single_block_indices enable_all_linear "
            "split_qkv train_block_indices train_llm_adapter"
        ),
        "use memory.blocks_to_swap, over all blocks": "double_blocks_to_swap single_blocks_to_swap",
        "text encoders of this family are not trained, and each encodes every caption": (
            "train_t5xxl t5xxl_lr clip_l_dropout_rate clip_g_dropout_rate t5_dropout_rate apply_lg_attn_mask "
            "t5_max_token_length"
        ),
        "a scheduler class has no further arguments here": ("lr_scheduler_args lr_decay_steps lr_scheduler_timescale"),
        "Monotile does not write this metadata": (
            "metadata_is_negative_embedding metadata_preprocessor metadata_thumbnail metadata_trigger_phrase "
            "metadata_usage_hint"
        ),
        "all validation images are measured": "max_validation_steps",
        "samples are made one by one": "sample_batch_size",
        "Monotile has no such setting": "resize_interpolation dataset_class dataset_repeats",
        "set saving.save_every_n_epochs or save_every_n_steps": "save_n_epoch_ratio",
        "a run begins at its first step": "skip_until_initial_step initial_epoch initial_step",
        "the Run tab always shows loss, average and noise levels": "log_loss_stats",
        NO_LOSS_SETTING: "v_pred_like_loss huber_scale",
        "noise offset and multires noise are separate settings, and both can be on": "noise_offset_type",
        "positions are those of the pipeline": "enable_scaled_pos_embed pos_emb_random_crop_rate",
        "the adapter is read from the transformer's file or folder": "llm_adapter_path",
        "attention runs in the precision of training.mixed_precision": "use_32bit_attention",
        "Monotile has nothing like it": "custom_attributes train_inpainting",
        "a control image is scaled to the size of its result, or to control_resolution if the family has it": (
            "no_resize_control flux_kontext_no_resize_control qwen_image_edit_no_resize_control"
        ),
        "a control image has one result": "multiple_target",
        "Chroma and similar models are not supported": "model_type",
        "it is for a kind of model that is not supported": (
            "byt5 gemma2 gemma2_max_token_length system_prompt controlnet_model_name_or_path "
            "dit_in_channels force_v2_1_time_embedding i2v_mode ideogram4_timestep_mu ideogram4_timestep_std "
            "image_encoder initial_sigma latent_window_size mask_ratio num_layers one_frame override_dit "
            "remove_first_image_from_target sampler_preset scheduler_scale skip_t2i_visual_dummy "
            "text_encoder_clip text_encoder_qwen turbo_dit turbo_dit_cache unconditional_dit "
            "use_unconditional_dit_for_lora_sampling noise_clip_std noise_scale_start noise_scale_end "
            "vae_sample_size"
        ),
        "attention always sees every token": (
            "force_nabla_attention nabla_P nabla_add_sta nabla_method nabla_wH nabla_wT nabla_wW"
        ),
        "losses with another model's features are not supported": (
            "network_weights_ema network_weights_proj ema_decay self_flow self_flow_gamma "
            "self_flow_gamma_warmup_steps self_flow_teacher_coupling_decay "
            "self_flow_teacher_coupling_decay_steps self_flow_teacher_coupling_prob "
            "self_flow_teacher_mismatch_ratio student_feature_layer teacher_feature_layer dino_loss_backend "
            "dino_loss_every_n_steps dino_loss_feature_mode dino_loss_layer dino_loss_model_type dino_loss_resize "
            "dino_loss_use_gram dino_loss_use_norm dino_loss_weight"
        ),
        NO_VIDEOS: ("fp_latent_window_size fp_1f_clean_indices fp_1f_no_post fp_1f_target_index"),
        "text encoders are used at the layer that the model's own pipeline uses": "clip_skip",
        "gradients in fp16 lose small values; training.mixed_precision is the way to fp16": "full_fp16",
        "it saves the gradients of a whole model, and a LoRA's are small": "fused_backward_pass fused_optimizer_groups",
        "captions are read from files next to the images": (
            "create_caption caption_metadata_filename full_path generate_caption_database"
        ),
        "images are read from dataset.folders": (
            "train_dir image_folder latent_metadata_filename create_buckets generate_image_buckets use_latent_files"
        ),
        "embeddings (textual inversion) are not trained": "init_word num_vectors_per_token template token_string",
        "Monotile has one rate for all text encoders (optimizer.text_encoder_lr)": "learning_rate_te2",
        "Monotile downloads nothing; set the folder as model.tokenizer": "tokenizer_cache_dir",
        NO_NOISE_SETTING: "adaptive_noise_scale",
        "the noise offset has one strength": "noise_offset_random_strength",
        "the input perturbation has one strength": "ip_noise_gamma_random_strength",
    }
)

# Names that say something only beside one of these.
ONLY_BESIDE: dict[str, tuple[str, ...]] = {
    "adaptive_noise_scale": ("noise_offset",),
}

# Values that say no more than the other program's default, so that nothing is lost without them.
NEUTRAL: dict[str, tuple[str, ...]] = {
    "clip_skip": ("1",),
    "max_token_length": ("75",),
    "face_crop_aug_range": ("",),
    "token_warmup_min": ("1",),
    "model_type": ("flux",),
    "train_blocks": ("all",),
    "model_prediction_type": ("raw",),
    "LyCORIS_preset": ("full",),
    "huber_scale": ("1", "1.0"),
    "t5_max_token_length": ("512",),
    "noise_offset_type": ("Original", "Multires"),
}
