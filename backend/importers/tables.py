"""Lists arguments of sd-scripts, musubi-tuner and kohya_ss that no declaration has. Data only; `reasons` has the rest.

Names and defaults are those of the programs' own argument parsers, checked against kohya-ss/sd-scripts at 48d368f,
kohya-ss/musubi-tuner at 30c658c and bmaltais/kohya_ss at 45088f0 (tests/config/foreign/names.json lists them). A name
that is missing here is that of a setting or one of its aliases (`Setting.aliases`), read as its kind says; here stand
those whose value has another form there, and those that mean another setting than their name says.
"""

from __future__ import annotations

from typing import Any

# Name there -> setting here and how the value is read (backend.importers.values), where no declaration gives both.
KEYS: dict[str, tuple[str, str]] = {
    "text_encoder1": ("model.text_encoder_2", "path"),
    "text_encoder2": ("model.text_encoder", "path"),
    "qwen3": ("model.text_encoder", "path"),
    "t5_tokenizer_path": ("model.tokenizer_2", "path"),
    "t5xxl_max_token_length": ("model.text_length", "number"),
    "qwen3_max_token_length": ("model.text_length", "number"),
    "resolution": ("dataset.resolution", "resolution"),
    "max_resolution": ("dataset.resolution", "resolution"),
    "control_resolution": ("dataset.control_resolution", "resolution"),
    "qwen_image_edit_control_resolution": ("dataset.control_resolution", "resolution"),
    "bucket_reso_steps": ("dataset.bucket_step", "bucket_step"),
    "color_aug": ("augmentation.color_jitter", "jitter"),
    "caption_extension": ("dataset.caption_extension", "extension"),
    "caption_extention": ("dataset.caption_extension", "extension"),
    "validation_seed": ("dataset.validation_split_seed", "number"),
    "network_alpha": ("network.network_alpha", "alpha"),
    "network_dropout": ("network.network_dropout", "dropout"),
    "base_weights": ("network.base_weights", "paths"),
    "base_weights_multiplier": ("network.base_weights_multiplier", "multipliers"),
    "lora_network_weights": ("network.network_weights", "path"),
    "full_bf16": ("network.lora_weight_dtype", "full_bf16"),
    "optimizer_type": ("optimizer.optimizer", "optimizer"),
    "optimizer": ("optimizer.optimizer", "optimizer"),
    "use_8bit_adam": ("optimizer.optimizer", "old_optimizer"),
    "use_lion_optimizer": ("optimizer.optimizer", "old_optimizer"),
    "unet_lr": ("optimizer.learning_rate", "rate"),
    "text_encoder_lr": ("optimizer.text_encoder_lr", "rate"),
    "lr_scheduler": ("optimizer.lr_scheduler", "scheduler"),
    "lr_scheduler_type": ("optimizer.lr_scheduler", "class_path"),
    "lr_warmup_steps": ("optimizer.lr_warmup", "warmup"),
    "lr_warmup": ("optimizer.lr_warmup", "percent"),
    "lr_scheduler_num_cycles": ("optimizer.lr_scheduler_num_cycles", "off_at_0"),
    "seed": ("training.seed", "seed_or_0"),
    "timestep_sampling": ("timesteps.timestep_sampling", "sampling"),
    "num_timestep_buckets": ("timesteps.stratified", "buckets"),
    "weighting_scheme": ("timesteps.weighting_scheme", "weighting"),
    "v_parameterization": ("loss.prediction_type", "v_prediction"),
    "multires_noise_discount": ("loss.multires_noise_discount", "discount"),
    "torch_compile": ("compile.compile", "compile"),
    "compile": ("compile.compile", "compile"),
    "dynamo_backend": ("compile.compile_backend", "backend"),
    "compile_backend": ("compile.compile_backend", "backend"),
    "dynamo_dynamic": ("compile.compile_dynamic", "dynamic"),
    "dynamo_use_dynamic": ("compile.compile_dynamic", "dynamic"),
    "compile_dynamic": ("compile.compile_dynamic", "dynamic"),
    "dynamo_fullgraph": ("compile.compile_fullgraph", "flag"),
    "sdpa": ("compile.attention", "attention"),
    "xformers": ("compile.attention", "attention"),
    "flash_attn": ("compile.attention", "attention"),
    "flash3": ("compile.attention", "attention"),
    "sage_attn": ("compile.attention", "attention"),
    "mem_eff_attn": ("compile.attention", "attention"),
    "use_flash_attn": ("compile.attention", "attention"),
    "use_sage_attn": ("compile.attention", "attention"),
    "attn_mode": ("compile.attention", "attention"),
    "block_swap_ring_size": ("memory.swap_ring", "number"),
    "vae_tiling": ("memory.vae_tiling", "tiling"),
    "factor": ("network.lokr_factor", "factor"),
    "fp8_base": ("memory.base_quantization", "fp8"),
    "fp8_base_unet": ("memory.base_quantization", "fp8"),
    "fp8_scaled": ("memory.base_quantization", "fp8"),
    "fp8_t5": ("memory.text_encoder_quantization", "int8_text"),
    "fp8_llm": ("memory.text_encoder_quantization", "int8_text"),
    "fp8_vl": ("memory.text_encoder_quantization", "int8_text"),
    "fp8_text_encoder": ("memory.text_encoder_quantization", "int8_text"),
    "cpu_offload_checkpointing": ("memory.checkpointing_kind", "offload"),
    "gradient_checkpointing_cpu_offload": ("memory.checkpointing_kind", "offload"),
    "unsloth_offload_checkpointing": ("memory.checkpointing_kind", "offload"),
    "save_last_n_steps": ("saving.save_last_n", "keep_last"),
    "save_last_n_epochs": ("saving.save_last_n", "keep_last"),
    "save_precision": ("saving.save_precision", "precision"),
}
# The same where a family has other parts behind a name.
FAMILY_KEYS: dict[str, dict[str, tuple[str, str]]] = {"sd3": {"t5xxl": ("model.text_encoder_3", "path")}}
# The same where a program reads a value otherwise: kohya_ss doesn't hand on a seed of 0.
PROGRAM_KEYS: dict[str, dict[str, tuple[str, str]]] = {"kohya_ss": {"seed": ("training.seed", "seed")}}

# Read by code of their own, since they mean more than one setting.
COMBINED = frozenset(
    [
        "network_module",
        "LoRA_type",
        "network_args",
        "dora_wd",
        "optimizer_args",
        "train_data_dir",
        "image_dir",
        "reg_data_dir",
        "dataset_config",
        "sample_prompts",
        "log_with",
        "log_tracker_name",
        "wandb_run_name",
        "network_train_unet_only",
        "network_train_text_encoder_only",
        "base_model_version",
        "sdxl",
        "sdxl_checkbox",
        "flux1_checkbox",
        "sd3_checkbox",
        "anima_checkbox",
        "lumina_checkbox",
        "hunyuan_image_checkbox",
        "v2",
        "model_version",
        "task",
        "dit_high_noise",
        "timestep_boundary",
        "edit",
        "edit_plus",
        "f1",
        "conv_dim",
        "conv_alpha",
        "rank_dropout",
        "module_dropout",
        "loraplus_lr_ratio",
        "loraplus_unet_lr_ratio",
        "loraplus_text_encoder_lr_ratio",
        "enable_bucket",
        "caption_prefix",
        "caption_suffix",
        "in_json",
        "masked_loss",
        "conditioning_data_dir",
    ]
)

_BOTH = {
    "network_dim": 4, "network_alpha": 1, "lr_scheduler": "constant", "lr_warmup_steps": 0, "learning_rate": 2e-6,
    "gradient_checkpointing": False, "max_train_steps": 1600, "save_precision": "float",
}  # fmt: skip
# What the other program does where its file says nothing, and ours does something else. Without a precision of saving
# they write what they train: float32, where full_bf16 is not on.
DEFAULTS: dict[str, dict[str, Any]] = {
    "sd-scripts": {**_BOTH, "mixed_precision": "no"},
    "musubi-tuner": {**_BOTH, "timestep_sampling": "sigma", "discrete_flow_shift": 1.0},
    "kohya_ss": {},
}
DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "sd-scripts": {"caption_extension": ".caption", "max_bucket_reso": 1024, "bucket_reso_steps": 64},
    "musubi-tuner": {"resolution": [960, 544]},
}
"""The same of data sets, whether they have a file of their own or not."""
FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "flux": {"timestep_sampling": "sigma", "guidance_scale": 3.5, "discrete_flow_shift": 3.0},
    "anima": {"timestep_sampling": "sigmoid", "discrete_flow_shift": 1.0},
}
"""Of sd-scripts, by family."""
SAMPLES: dict[str, dict[str, Any]] = {
    "flux": {"steps": 20, "guidance_scale": 3.5, "true_cfg_scale": 1.0},
    "flux_kontext": {"steps": 20, "guidance_scale": 2.5, "true_cfg_scale": 1.0},
    "qwen_image": {"steps": 20, "true_cfg_scale": 4.0},
    "qwen_image_edit": {"steps": 20, "true_cfg_scale": 4.0},
    "qwen_image_edit_plus": {"steps": 20, "true_cfg_scale": 4.0},
    "wan": {"steps": 20, "true_cfg_scale": 5.0},
    "wan_i2v": {"steps": 20, "true_cfg_scale": 5.0},
    "wan22": {"steps": 20, "true_cfg_scale": 5.0},
    "wan22_i2v": {"steps": 20, "true_cfg_scale": 5.0},
    "wan22_5b": {"steps": 20, "true_cfg_scale": 5.0},
    "wan22_5b_i2v": {"steps": 20, "true_cfg_scale": 5.0},
    "hunyuan_video": {"steps": 20, "guidance_scale": 6.0, "true_cfg_scale": 1.0},
    "framepack": {"steps": 20, "guidance_scale": 10.0, "true_cfg_scale": 1.0},
    "framepack_f1": {"steps": 20, "guidance_scale": 10.0, "true_cfg_scale": 1.0},
}
"""What samples are drawn with where their line says nothing, by our column; of other families, `OTHER_SAMPLES`."""
OTHER_SAMPLES: dict[str, Any] = {"steps": 30, "true_cfg_scale": 7.5}
SAMPLE_SIDE: dict[str, int] = {"musubi-tuner": 256, "sd-scripts": 512, "kohya_ss": 512}

# network_module -> family here; a name that is not in model.family is not offered.
NETWORKS: dict[str, str] = {
    "networks.lora_flux": "flux", "networks.lora_sd3": "sd3", "networks.lora_qwen_image": "qwen_image",
    "networks.lora_anima": "anima", "networks.lora_lumina": "lumina", "networks.lora_wan": "wan",
    "networks.lora_framepack": "framepack", "networks.lora_zimage": "z_image", "networks.lora_flux_2": "flux_2",
    "networks.lora_hunyuan_image": "hunyuan_image", "networks.lora_hv_1_5": "hunyuan_video_1_5",
    "networks.lora_kandinsky": "kandinsky5", "networks.lora_krea2": "krea2", "networks.lora_ideogram4": "ideogram4",
    "networks.lora_hidream_o1": "hidream_o1",
}  # fmt: skip
_BLOCK, _SINGLE = r"transformer_blocks\.\d+\..+", r"single_transformer_blocks\.\d+\..+"
# What a LoRA covers there where nothing is said, and ours does not: all linear layers of the blocks (`networks/
# lora_flux.py` and `lora_sd3.py`; `lora_qwen_image.py` of musubi-tuner, whose pattern for modulation fits no name).
LAYERS: dict[str, dict[str, tuple[str, ...]]] = {
    "sd-scripts": {"flux": (_BLOCK, _SINGLE), "sd3": (_BLOCK,)},
    "musubi-tuner": {"qwen_image": (_BLOCK,), "qwen_image_edit": (_BLOCK,), "qwen_image_edit_plus": (_BLOCK,)},
}
# Ranks of kinds of layers; 0 leaves them out.
TYPE_DIMS: dict[str, str] = {
    "img_attn_dim": r"transformer_blocks\.\d+\.attn\.to_(q|k|v|out\.0)",
    "txt_attn_dim": r"transformer_blocks\.\d+\.attn\.(add_|to_add).*",
    "img_mlp_dim": r"transformer_blocks\.\d+\.ff\..+", "txt_mlp_dim": r"transformer_blocks\.\d+\.ff_context\..+",
    "img_mod_dim": r"transformer_blocks\.\d+\.norm1\.linear",
    "txt_mod_dim": r"transformer_blocks\.\d+\.norm1_context\.linear",
    "single_dim": r"single_transformer_blocks\.\d+\.(attn|proj_mlp|proj_out).*",
    "single_mod_dim": r"single_transformer_blocks\.\d+\.norm\.linear",
}  # fmt: skip
SAME_NAMES = ("qwen_image", "qwen_image_edit", "qwen_image_edit_plus")
"""Families whose layers have the same names there as here."""
# kohya_ss' kinds: the family that each says, and the kind of network here. What is not here is not offered.
LORA_TYPES: dict[str, tuple[str, str]] = {
    "Standard": ("", "lora"), "Flux1": ("flux", "lora"), "Anima": ("anima", "lora"), "Lumina": ("lumina", "lora"),
    "HunyuanImage-2.1": ("hunyuan_image", "lora"), "Kohya LoCon": ("", "lora"), "LyCORIS/LoCon": ("", "lora"),
    "LoCon": ("", "lora"), "LoHa": ("", "loha"), "LoKr": ("", "lokr"),
    "Kohya LoHa": ("", "loha"), "LyCORIS/LoHa": ("", "loha"), "Kohya LoKr": ("", "lokr"), "LyCORIS/LoKr": ("", "lokr"),
}  # fmt: skip
NO_CONVOLUTIONS = ("Standard", "Flux1", "Anima", "Lumina", "HunyuanImage-2.1")
"""Of these, those that leave conv_dim unused, which every preset has."""

# network_module, and algo of LyCORIS' -> kind of network here.
KINDS: dict[str, str] = {"networks.loha": "loha", "networks.lokr": "lokr"}
ALGOS: dict[str, str] = {"lora": "lora", "locon": "lora", "loha": "loha", "lokr": "lokr"}

# Every preset of kohya_ss has the settings of all families: start of a name -> the switch that it counts behind.
SWITCHES: dict[str, str] = {
    "anima_": "anima_checkbox", "lumina_": "lumina_checkbox", "hunyuan_": "hunyuan_image_checkbox",
    "sd3_": "sd3_checkbox", "sdxl_": "sdxl",
}  # fmt: skip


def _gates(*rows: tuple[str, str, str]) -> dict[str, tuple[str, str]]:
    """Name -> the name that it hangs on, and the value that this must have ("on": any but off)."""
    return {name: (gate, wanted) for gate, wanted, names in rows for name in names.split()}


# Names of the same presets without such a start, which count only where another has a value
# (`kohya_gui/lora_gui.py`, config_toml_data).
GATES: dict[str, tuple[str, str]] = _gates(
    ("flux1_checkbox", "on", "fp8_base_unet split_mode t5xxl_max_token_length guidance_scale mem_eff_save t5xxl clip_l "
     "ae apply_t5_attn_mask cpu_offload_checkpointing single_blocks_to_swap double_blocks_to_swap discrete_flow_shift "
     "model_prediction_type timestep_sampling model_type"),
    ("sd3_checkbox", "on", "clip_g clip_g_dropout_rate logit_mean logit_std mode_scale pos_emb_random_crop_rate "
     "save_clip save_t5xxl t5xxl_device t5xxl_dtype weighting_scheme"),
    ("noise_offset_type", "Original", "noise_offset adaptive_noise_scale noise_offset_random_strength"),
    ("noise_offset_type", "Multires", "multires_noise_iterations multires_noise_discount"),
    ("split_mode", "on", "train_blocks"),
    ("LoRA_type", "Kohya DyLoRA", "unit"),
    ("LoRA_type", "LyCORIS/iA3", "train_on_input"),
)  # fmt: skip
