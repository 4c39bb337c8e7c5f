"""Lists where the effect of each setting is seen: an observation of a run's parts, or the test that shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.families.spec import VIDEO_OPTIONS
from tests.training.setting_effects import (
    World,
    attended,
    compiled,
    compiled_and_recorded,
    decoded,
    described,
    done_between_steps,
    formats,
    identified,
    kept_in,
    left_out,
    limited,
    loaded,
    parts_found,
    planned,
    read_ahead,
    recorded,
    scanned,
    seeded,
    shown_in_tensorboard,
    trained_with,
    validated,
)

Observation = Callable[[World, Config], Any]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Seen:
    """Settings whose effect `by` shows. values: of each setting, besides its choices. beside: what it needs to act."""

    by: Observation
    values: Mapping[str, tuple[Any, ...]]
    beside: Values | None = None


PROMPT = {"prompt": "a dot", "width": 64, "height": 64, "steps": 1}
MISSING = Path(__file__).parent

SEEN: tuple[Seen, ...] = (
    Seen(
        compiled_and_recorded,
        {
            "compile.compile": (),
            "compile.compile_profile": (),
            "compile.compile_backend": ("inductor", "aot_eager", "eager", "cudagraphs"),
            "compile.compile_mode": (),
            "compile.compile_dynamic": (),
            "compile.compile_fullgraph": (),
            "compile.compile_blocks": (
                [{"blocks": "double:0", "compile": False}],
                [{"blocks": "double:0", "backend": "aot_eager"}],
                [{"blocks": "single:0", "compile": False}],
            ),
            "memory.activation_memory_budget": (0.3,),
        },
    ),
    Seen(limited, {"compile.compile_cache_size_limit": (31,)}),
    Seen(left_out, {"compile.disable_linear": ()}),
    Seen(recorded, {"compile.cuda_graphs": ()}),
    Seen(compiled, {"compile.compile_scope": ()}, {"training.gradient_checkpointing": False}),
    Seen(attended, {"compile.attention": ()}),
    Seen(
        planned,
        {
            "compile.shape_mode": (),
            "compile.static_token_count": (64,),
            "compile.caption_buckets": ([4, 16],),
            "dataset.resolution": (96,),
            "dataset.min_bucket_size": (64,),
            "dataset.max_bucket_size": (80,),
            "dataset.bucket_step": (32,),
            "dataset.batch_size": (2, 3),
            "dataset.caption_dropout_rate": (0.5,),
            "dataset.caption_dropout_every_n_epochs": (2,),
            "training.max_train_steps": (3,),
            "training.max_train_epochs": (3,),
            "training.gradient_accumulation_steps": (2,),
            "training.num_processes": (2,),
            "training.seed": (1,),
            "sampling.prompts": ([PROMPT],),
            "model.text_length": (32,),
        },
        {"training.max_train_steps": None},
    ),
    Seen(planned, {"dataset.no_upscale": ()}, {"dataset.resolution": 256}),
    Seen(planned, {"dataset.sample_ratio": (0.5, 0.99)}, {"dataset.batch_size": 3}),
    Seen(scanned, {"dataset.trigger_word": ("ohwx",), "dataset.caption_extension": (".caption",)}),
    Seen(scanned, {"dataset.validation_split": (0.5,)}),
    Seen(scanned, {"dataset.validation_split_seed": (7,)}, {"dataset.validation_split": 0.5}),
    Seen(
        loaded,
        {
            "network.network_type": (),
            "network.network_dim": (2,),
            "network.network_alpha": (1.0,),
            "network.network_dropout": (0.5,),
            "network.rank_dropout": (0.5,),
            "network.module_dropout": (0.5,),
            "network.scale_weight_norms": (1.0,),
            "network.loraplus_lr_ratio": (4.0,),
            "network.lora_weight_dtype": (),
            "network.lora_fused": (),
            "network.targets_include": (["attn.to_q"], None),
            "network.targets_exclude": (["attn.to_q"],),
            "network.layer_settings": (
                [{"layers": "attn.to_q", "dim": 2}],
                [{"layers": "attn.to_q", "alpha": 7.0}],
                [{"layers": "attn.to_q", "learning_rate": 0.5}],
            ),
            "optimizer.optimizer": (
                "adamw", "adafactor", "came", "lion", "prodigy", "adamw_schedulefree", "radam_schedulefree",
                "adam", "sgd", "rmsprop",
            ),
            "optimizer.optimizer_args": ({"amsgrad": True},),
            "optimizer.learning_rate": (0.25,),
            "optimizer.weight_decay": (0.5,),
            "optimizer.betas": ([0.8, 0.9],),
            "optimizer.eps": (1e-4,),
            "optimizer.lr_scheduler": ("constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex"),
            "optimizer.lr_warmup": (3.0,),
            "training.gradient_checkpointing": (),
            "training.ema": (),
            "training.kind": (),
            "memory.checkpointing_kind": (),
            "memory.blocks_to_swap": (2,),
            "memory.base_quantization": ("none", "fp8", "int8"),
            "memory.base_compute": (),
        },
        # a LoRA on one or two layers a block class: a load of each value takes half of the time
        {"network.targets_include": ["attn.to_q", "proj_mlp"], "optimizer.lr_scheduler_num_cycles": 2,
         "optimizer.lr_scheduler_power": 2.0},
    ),
    Seen(
        loaded,
        {"memory.swap_ring": (3,), "memory.swap_pinned_limit_gb": (1.0,)},
        {"memory.blocks_to_swap": 4},
    ),
    Seen(loaded, {"memory.base_products": ("fast",)}, {"memory.base_compute": "fp8"}),
    Seen(loaded, {"network.lokr_factor": (2,)}, {"network.network_type": "lokr"}),
    Seen(loaded, {"training.ema_decay": (0.5,)}, {"training.ema": True}),
    Seen(loaded, {"optimizer.lr_scheduler_num_cycles": (3,)}, {"optimizer.lr_scheduler": "cosine_with_restarts"}),
    Seen(loaded, {"optimizer.lr_scheduler_power": (3.0,)}, {"optimizer.lr_scheduler": "polynomial"}),
    Seen(loaded, {"optimizer.lr_scheduler_min_lr_ratio": (0.5,)}, {"optimizer.lr_scheduler": "linear"}),
    Seen(
        trained_with,
        {
            "timesteps.timestep_sampling": (),
            "timesteps.sigmoid_scale": (2.0,),
            "timesteps.discrete_flow_shift": (5.0,),
            "timesteps.logit_mean": (1.0,),
            "timesteps.logit_std": (2.0,),
            "timesteps.mode_scale": (0.5,),
            "timesteps.stratified": (),
            "timesteps.weighting_scheme": (),
            "timesteps.min_timestep": (100.0,),
            "timesteps.max_timestep": (900.0,),
            "loss.loss_type": (),
            "loss.huber_c": (0.3,),
            "loss.huber_schedule": (),
        },
    ),
    Seen(decoded, {"memory.offload_by_turns": (), "memory.vae_tiling": ()}),
    Seen(
        validated,
        {
            "validation.validation_sigmas": ([0.3],),
            "validation.validation_seed": (7,),
            "validation.validation_repeats": (3,),
        },
    ),
    Seen(
        described,
        {
            **{f"saving.metadata_{name}": ("x",) for name in
               ("title", "author", "description", "license", "tags", "trigger")},
            "saving.output_name": ("other",),
            "model.guidance_scale": (3.5,),
        },
    ),
    Seen(parts_found, {"model.base_model": (str(MISSING),), "model.variant": ("fp16",)}),
    Seen(identified, {"dataset.transparency": (), "dataset.cache_dir": ("/tmp",)}),
    Seen(formats, {"model.weight_dtype": ("auto", "bf16", "fp16"), "training.mixed_precision": ("no", "bf16")}),
    Seen(kept_in, {"memory.text_encoder_quantization": (), "memory.vram_limit_gb": (8.0,)}),
    Seen(read_ahead, {"dataset.loader_workers": (2,)}),
    Seen(seeded, {"training.deterministic": ()}),
    Seen(
        done_between_steps,
        {
            "saving.save_every_n_steps": (2,),
            "saving.save_every_n_epochs": (1,),
            "sampling.sample_every_n_steps": (2,),
            "sampling.sample_every_n_epochs": (1,),
            "sampling.sample_at_start": (),
            "sampling.sample_at_end": (),
            "validation.validate_every_n_steps": (2,),
            "validation.validate_every_n_epochs": (1,),
            "validation.validate_at_start": (),
            "validation.validate_at_end": (),
        },
    ),
    Seen(shown_in_tensorboard, {"logging.tensorboard": ()}),
)  # fmt: skip

_PARTS = "models/test_single_files.py::test_what_a_single_file_lacks_is_asked_for_by_its_setting"
_EXPERTS = "models/wan/test_expert_choice.py"
_SD3 = "models/sd3/test_parts.py::test_captions_are_what_the_pipeline_tells_its_denoiser"
_MASKS = "training/test_masks.py"
_CUT = f"{_MASKS}::test_a_mask_is_cut_and_mirrored_as_its_image_and_weighs_the_cells"
_SOURCES = "dataset/test_caption_sources.py"
_CLIPS = "dataset/test_clip_scan.py::test_settings_change_which_frames_are_trained_on"
_DIFFUSION = "objectives/test_diffusion.py::test_settings_reach_the_objective"
_WANDB = "training/test_trackers.py::test_numbers_of_a_run_are_written_for_weights_and_biases"
_OVERFIT = "training/test_overfit.py"
_MERGED = "lora/test_base_weights.py::test_a_run_over_a_merged_base"

ALIKE = {
    ("compile.attention", "auto", "sdpa"),
    ("compile.disable_linear", "auto", "off"),
    ("compile.shape_mode", "auto", "static"),
    ("training.mixed_precision", "auto", "no"),
}
"""(setting, choice, what that comes to for FLUX on a CPU)"""

PROVEN: dict[str, str] = {
    "masks.alpha_mask": f"{_MASKS}::test_masks_are_found_by_name_and_by_transparency_and_wrong_ones_are_named",
    **{
        f"masks.{name}": _CUT for name in ("unmasked_weight", "unmasked_probability", "normalize_masked_area_loss")
    },
    **{
        f"augmentation.{name}": _CUT for name in ("flip_aug", "random_crop", "color_jitter", "image_variants")
    },
    "captions.caption_lines": f"{_SOURCES}::test_several_captions_prefix_suffix_and_the_folders_own_trigger",
    "captions.more_caption_extensions": f"{_SOURCES}::test_several_captions_prefix_suffix_and_the_folders_own_trigger",
    "captions.caption_variants": f"{_SOURCES}::test_the_plan_says_what_versions_cost",
    **{
        f"captions.{name}": f"{_SOURCES}::test_kept_tags_stay_in_front_and_no_tag_is_made_up"
        for name in ("shuffle_caption", "keep_tokens", "caption_tag_dropout_rate", "caption_separator")
    },
    **{
        f"captions.{name}": f"{_SOURCES}::test_separators_groups_and_wildcards"
        for name in ("keep_tokens_separator", "secondary_separator", "enable_wildcard")
    },
    "dataset.excluded_images": "dataset/test_scan.py::test_excluded_files_are_listed_and_nothing_else_is_said_of_them",
    "loss.prior_loss_weight": "training/test_regularization.py"
    "::test_regularization_images_have_their_class_for_a_caption_and_a_weight",
    "model.family": "training/test_step.py::test_sdxl",
    **{f"model.{n}": _PARTS for n in ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "vae")},
    **{f"model.{n}": _SD3 for n in ("text_encoder_3", "tokenizer_3")},
    "model.transformer_2": f"{_EXPERTS}::test_both_need_two_experts_of_one_build_in_their_places",
    "timesteps.train_experts": f"{_EXPERTS}::test_each_expert_draws_noise_levels_of_its_own_range_alone",
    "timesteps.timestep_boundary": f"{_EXPERTS}::test_each_expert_draws_noise_levels_of_its_own_range_alone",
    "timesteps.switch_boundary_every": f"{_EXPERTS}::test_the_plan_tells_the_steps_of_each_and_the_memory_of_two",
    "model.image_encoder": "models/wan/test_start.py::test_the_eyes_in_one_file",
    "model.zero_cond_t": "models/qwen_image/test_edit_plus.py"
    "::test_which_of_the_two_it_is_comes_from_folder_file_or_setting",
    "dataset.folders": "dataset/test_dataset.py::test_folders_repeats_and_settings_of_problems",
    **{f"video.{name}": _CLIPS for name in VIDEO_OPTIONS},
    "dataset.control_resolution": "models/qwen_image/test_edit_plus.py"
    "::test_the_plan_counts_the_tokens_of_every_control_picture",
    "dataset.max_token_length": "models/sdxl/test_text_training.py"
    "::test_sd15_names_its_one_encoder_as_its_other_programs_do_and_goes_on_from_the_file",
    "network.loraplus_text_encoder_lr_ratio": "lora/test_loraplus.py"
    "::test_the_ratio_of_text_encoders_is_that_of_the_denoiser_where_it_is_empty",
    "network.conv_dim": "lora/test_convolutions.py::test_conv_dim_adds_all_of_resnets_and_what_changes_the_size",
    "network.conv_alpha": "models/sdxl/test_runs.py::test_files_of_both_layouts_are_read_back_and_by_diffusers",
    "network.train_text_encoder": "lora/test_dora_runs.py::test_text_encoders_train_theirs_too",
    "network.base_weights": _MERGED,
    "network.base_weights_multiplier": _MERGED,
    "network.network_weights": "training/test_settings.py::test_continuing_from_a_lora_starts_where_it_ended",
    "optimizer.text_encoder_lr": "models/sdxl/test_text_training.py"
    "::test_a_run_trains_both_encoders_and_its_file_gives_diffusers_the_same_text_and_picture",
    "optimizer.max_grad_norm": "training/test_settings.py"
    "::test_clipping_shortens_the_step_and_the_row_tells_the_whole_length",
    **{
        f"loss.{name}": _DIFFUSION
        for name in (
            "prediction_type", "min_snr_gamma", "debiased_estimation", "scale_v_pred_loss_like_noise_pred",
            "noise_offset", "multires_noise_iterations", "multires_noise_discount", "ip_noise_gamma",
        )
    },
    "loss.zero_terminal_snr": "training/test_step.py::test_sdxl",
    "compile.compile_cache_dir": "training/test_compiled.py"
    "::test_inductor_gives_the_eager_loss_the_planned_graphs_and_a_warm_second_start",
    "saving.keep_best": f"{_OVERFIT}::test_the_best_file_is_the_lora_of_the_lowest_loss",
    "saving.average_checkpoints": f"{_OVERFIT}::test_the_last_files_are_averaged_as_what_they_change",
    "saving.average_from": f"{_OVERFIT}::test_the_best_files_stay_and_are_averaged",
    "validation.early_stop_patience": f"{_OVERFIT}::test_the_run_ends_where_its_losses_say",
    "validation.early_stop_min_gain": f"{_OVERFIT}::test_a_gain_counts_from_the_smallest_that_is_set",
    "validation.validate_training_images": f"{_OVERFIT}::test_overfitting_is_said_once",
    "validation.picture_losses": "training/test_picture_losses.py::"
    "test_each_size_is_measured_in_a_graph_that_the_plan_counts",
    "validation.validation_folders": "dataset/test_dataset.py::test_validation_folders_and_leaks",
    "saving.output_dir": "runs/test_folder.py::test_a_folder_that_can_not_be_made_is_named",
    "saving.save_last_n": "training/test_settings.py"
    "::test_epochs_rule_and_saves_come_at_their_ends_and_the_last_few_stay",
    "saving.save_precision": "training/test_settings.py::test_the_file_tells_what_it_is",
    "saving.save_layout": "training/test_run.py::test_diffusers_draws_the_trainers_own_sample_from_base_and_lora",
    "training.full_weight_dtype": "training/test_full.py"
    "::test_a_fused_step_is_the_plain_one_and_bf16_weights_stay_near_it",
    "optimizer.fused_backward": "training/test_full.py"
    "::test_a_fused_step_is_the_plain_one_and_bf16_weights_stay_near_it",
    "saving.model_layout": "training/test_full.py::test_every_weight_of_the_denoiser_is_trained_and_saved",
    "saving.save_state": "training/test_step.py::test_flux",
    "logging.wandb": _WANDB,
    **{f"logging.wandb_{name}": _WANDB for name in ("project", "run_name", "entity", "mode")},
    "logging.log_level": "runs/test_logs.py::test_started_by_hand_the_terminal_sees_the_log_too",
}  # fmt: skip
