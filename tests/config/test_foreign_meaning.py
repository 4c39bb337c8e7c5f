"""Values that mean another thing there than here: each comes over as what it does there, whatever it is called.

Facts: sd-scripts at 48d368f, musubi-tuner at 30c658c, kohya_ss at 45088f0 (the files are named beside the code).
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import toml
import torch

from backend.config.schema import get
from backend.families.table import family
from backend.importers.convert import Converted, convert
from backend.importers.source import read_raw
from backend.lora.inject import find_targets
from tests.tiny.flux import make_tiny_denoiser

FLUX = {"network_module": "networks.lora_flux", "pretrained_model_name_or_path": "flux1-dev.safetensors"}
SDXL = {"network_module": "networks.lora", "pretrained_model_name_or_path": "sd_xl_base_1.0.safetensors"}
SD3 = {"network_module": "networks.lora_sd3", "pretrained_model_name_or_path": "sd3.safetensors"}
QWEN = {"network_module": "networks.lora_qwen_image", "dit": "qwen.safetensors"}
KONTEXT = {"network_module": "networks.lora_flux", "dit": "kontext.safetensors", "text_encoder1": "t5.safetensors"}
GUI = {"LoRA_type": "Standard", "sdxl": True}
GUI_FLUX = {"LoRA_type": "Flux1", "flux1_checkbox": True, "discrete_flow_shift": 3.0}
GUI_SD3 = {"LoRA_type": "Standard", "sd3_checkbox": True, "flux1_checkbox": False, "timestep_sampling": "sigmoid"}
GUI_ANIMA = {"LoRA_type": "Anima", "anima_checkbox": True, "flux1_checkbox": False}
BLOCK, SINGLE = r"transformer_blocks\.\d+\..+", r"single_transformer_blocks\.\d+\..+"
ADAFACTOR = {"optimizer_type": "Adafactor", "learning_rate": 1e-4, "lr_scheduler": "constant_with_warmup"}


def brought(values: dict[str, Any], dataset: dict[str, Any] | None = None) -> Converted:
    written = json.dumps(values) if "LoRA_type" in values else toml.dumps(values)
    converted = convert(read_raw(written.encode()), read_raw(toml.dumps(dataset).encode()) if dataset else None)
    assert converted.loaded.config is not None and not converted.loaded.errors
    return converted


ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # rates
    "the denoiser's rate rules, wherever it stands": (
        SDXL | {"unet_lr": 3e-4, "learning_rate": 1e-4},
        {"optimizer.learning_rate": 3e-4, "optimizer.text_encoder_lr": 1e-4},
    ),
    "a preset that caches its texts": (
        GUI | {"sdxl_cache_text_encoder_outputs": True, "text_encoder_lr": 1e-4}, {"network.train_text_encoder": False}
    ),
    "epochs that stay are files": (
        FLUX | {"save_every_n_epochs": 2, "save_last_n_epochs": 4}, {"saving.save_last_n": 4}
    ),
    "steps that stay reach back": (
        FLUX | {"save_every_n_steps": 10, "save_last_n_steps": 30}, {"saving.save_last_n": 4}
    ),
    # optimizers
    "prodigy's arguments are called otherwise here": (
        SDXL | {"optimizer_type": "Prodigy", "optimizer_args": ["use_bias_correction=True", "slice_p=11"]},
        {"optimizer.optimizer_args": {"bias_correction": True}, "optimizer.weight_decay": 0.0},
    ),
    "lion has its own decay and betas": (
        SDXL | {"optimizer_type": "Lion8bit"}, {"optimizer.weight_decay": 0.0, "optimizer.betas": [0.9, 0.99]}
    ),
    "adamw has ours": (SDXL | {"optimizer_type": "AdamW8bit"}, {"optimizer.weight_decay": 0.01}),
    "nesterov": (
        SDXL | {"optimizer_type": "SGDNesterov", "optimizer_args": ["momentum=0.8"]},
        {"optimizer.optimizer": "sgd", "optimizer.optimizer_args": {"momentum": 0.8, "nesterov": True}},
    ),
    "a class that has no name here": (
        SDXL | {"optimizer_type": "PagedAdamW32bit"}, {"optimizer.optimizer": "bitsandbytes.optim.PagedAdamW32bit"}
    ),
    "d-adaptation": (
        SDXL | {"optimizer_type": "DAdaptAdam", "learning_rate": 1.0}, {"optimizer.optimizer": "prodigy"}
    ),
    "adafactor with a rate is hugging face's": (
        SDXL | ADAFACTOR | {"optimizer_args": ["relative_step=False", "scale_parameter=False", "warmup_init=False"]},
        {"optimizer.optimizer": "transformers.optimization.Adafactor", "optimizer.learning_rate": 1e-4,
         "optimizer.optimizer_args": {"relative_step": False, "scale_parameter": False, "warmup_init": False}},
    ),
    "adafactor without one is torch's": (
        SDXL | ADAFACTOR,
        {"optimizer.optimizer": "adafactor", "optimizer.learning_rate": 0.01, "optimizer.lr_scheduler": "constant",
         "optimizer.lr_warmup": 0.0, "optimizer.optimizer_args": {}},
    ),
    "schedule-free optimizers have no schedule": (
        SDXL | {"optimizer_type": "AdamWScheduleFree", "lr_scheduler": "cosine", "lr_warmup_steps": 50},
        {"optimizer.lr_scheduler": "constant", "optimizer.lr_warmup": 0.0},
    ),
    "a floor that the schedule does not heed": (
        SDXL | {"lr_scheduler": "cosine", "lr_scheduler_min_lr_ratio": 0.1},
        {"optimizer.lr_scheduler_min_lr_ratio": 0.0},
    ),
    "a floor that it heeds": (
        SDXL | {"lr_scheduler": "cosine_with_min_lr", "lr_scheduler_min_lr_ratio": 0.1},
        {"optimizer.lr_scheduler": "cosine", "optimizer.lr_scheduler_min_lr_ratio": 0.1},
    ),
    "a scheduler of torch rules over the other": (
        SDXL | {"lr_scheduler_type": "CosineAnnealingLR", "lr_scheduler": "constant"},
        {"optimizer.lr_scheduler": "torch.optim.lr_scheduler.CosineAnnealingLR"},
    ),
    "rex": (
        QWEN | {"lr_scheduler": "rex"},
        {"optimizer.lr_scheduler": "rex", "optimizer.lr_scheduler_min_lr_ratio": 0.01},
    ),
    # dropout
    "ranks and layers left out": (
        SDXL | {"network_args": ["rank_dropout=0.2", "module_dropout=0.1"]},
        {"network.rank_dropout": 0.2, "network.module_dropout": 0.1, "network.network_dropout": 0.0},
    ),
    "the same of a preset": (
        GUI | {"rank_dropout": 0.2, "module_dropout": 0, "LoRA_type": "LyCORIS/LoCon"},
        {"network.rank_dropout": 0.2, "network.module_dropout": 0.0},
    ),
    "factors have no ranks to leave out": (
        SDXL | {"network_module": "networks.lokr", "network_args": ["rank_dropout=0.2", "module_dropout=0.1"]},
        {"network.rank_dropout": 0.0, "network.module_dropout": 0.1, "network.network_type": "lokr"},
    ),
    "a limit of norms": (SDXL | {"scale_weight_norms": 1.5}, {"network.scale_weight_norms": 1.5}),
    "no limit of norms": (GUI | {"scale_weight_norms": 0}, {"network.scale_weight_norms": None}),
    # LoRA+
    "one ratio is for all": (
        SDXL | {"network_args": ["loraplus_lr_ratio=16"]},
        {"network.loraplus_lr_ratio": 16.0, "network.loraplus_text_encoder_lr_ratio": None},
    ),
    "one of each": (
        SDXL | {"network_args": ["loraplus_unet_lr_ratio=16", "loraplus_text_encoder_lr_ratio=4"]},
        {"network.loraplus_lr_ratio": 16.0, "network.loraplus_text_encoder_lr_ratio": 4.0},
    ),
    "the denoiser's own alone": (
        SDXL | {"network_args": ["loraplus_unet_lr_ratio=16"]},
        {"network.loraplus_lr_ratio": 16.0, "network.loraplus_text_encoder_lr_ratio": 1.0},
    ),
    "the encoders' own alone": (
        SDXL | {"network_args": ["loraplus_text_encoder_lr_ratio=4"]},
        {"network.loraplus_lr_ratio": 1.0, "network.loraplus_text_encoder_lr_ratio": 4.0},
    ),
    "the denoiser's own beside that of all": (
        SDXL | {"network_args": ["loraplus_unet_lr_ratio=16", "loraplus_lr_ratio=8"]},
        {"network.loraplus_lr_ratio": 16.0, "network.loraplus_text_encoder_lr_ratio": 8.0},
    ),
    "three ratios": (
        SDXL | {"network_args": ["loraplus_unet_lr_ratio=16", "loraplus_text_encoder_lr_ratio=4",
                                 "loraplus_lr_ratio=8"]},
        {"network.loraplus_lr_ratio": 16.0, "network.loraplus_text_encoder_lr_ratio": 4.0},
    ),
    "encoders that are not trained have none": (
        SDXL | {"network_train_unet_only": True,
                "network_args": ["loraplus_lr_ratio=8", "loraplus_text_encoder_lr_ratio=4"]},
        {"network.loraplus_lr_ratio": 8.0, "network.loraplus_text_encoder_lr_ratio": None},
    ),
    "ratios of a preset": (
        GUI | {"loraplus_lr_ratio": 0, "loraplus_unet_lr_ratio": 8, "loraplus_text_encoder_lr_ratio": 0},
        {"network.loraplus_lr_ratio": 8.0, "network.loraplus_text_encoder_lr_ratio": 1.0},
    ),
    "no two rates where one is found": (
        SDXL | {"optimizer_type": "Prodigy", "network_args": ["loraplus_lr_ratio=16"]},
        {"network.loraplus_lr_ratio": 1.0, "optimizer.optimizer": "prodigy"},
    ),
    # noise levels
    "flux's default": (
        FLUX,
        {"timesteps.timestep_sampling": "shift", "timesteps.discrete_flow_shift": 3.0, "timesteps.sigmoid_scale": 1.7},
    ),
    "sigma without a shift": (
        FLUX | {"timestep_sampling": "sigma", "discrete_flow_shift": 1.0}, {"timesteps.timestep_sampling": "uniform"}
    ),
    "sd3's mode": (
        SD3 | {"weighting_scheme": "mode", "mode_scale": 0.8},
        {"timesteps.timestep_sampling": "mode", "timesteps.mode_scale": 0.8, "timesteps.weighting_scheme": "none"},
    ),
    "musubi's mode has no shift": (
        QWEN | {"weighting_scheme": "mode", "discrete_flow_shift": 2.2},
        {"timesteps.timestep_sampling": "mode", "timesteps.mode_scale": 1.29},
    ),
    "mode with a shift": (
        FLUX | {"weighting_scheme": "mode", "mode_scale": 0.5, "discrete_flow_shift": 2.0},
        {"timesteps.timestep_sampling": "shift", "timesteps.discrete_flow_shift": 2.0,
         "timesteps.sigmoid_scale": 1.4, "timesteps.mode_scale": 1.29},
    ),
    "mode beside another sampling": (
        FLUX | {"timestep_sampling": "sigmoid", "weighting_scheme": "mode", "mode_scale": 0.5},
        {"timesteps.timestep_sampling": "sigmoid", "timesteps.mode_scale": 1.29},
    ),
    "buckets of levels": (
        QWEN | {"timestep_sampling": "shift", "num_timestep_buckets": 8}, {"timesteps.stratified": True}
    ),
    "buckets that sigma does not heed": (QWEN | {"num_timestep_buckets": 8}, {"timesteps.stratified": False}),
    "limits that flux does not heed": (FLUX | {"min_timestep": 200}, {"timesteps.min_timestep": 0.0}),
    "sd3's default": (SD3, {"timesteps.timestep_sampling": "uniform"}),
    "sd3's shift": (
        SD3 | {"weighting_scheme": "logit_normal", "logit_mean": 0.5, "training_shift": 3.0, "max_timestep": 900},
        {"timesteps.timestep_sampling": "logit_normal", "timesteps.logit_mean": pytest.approx(0.5 + math.log(3)),
         "timesteps.max_timestep": 900.0},
    ),
    "musubi's sigma has no shift": (
        QWEN | {"timestep_sampling": "sigma", "discrete_flow_shift": 2.2, "min_timestep": 100},
        {"timesteps.timestep_sampling": "uniform", "timesteps.min_timestep": 0.0, "timesteps.max_timestep": 900.0},
    ),
    "qwen's shift": (
        QWEN | {"timestep_sampling": "qwen_shift", "sigmoid_scale": 1.3},
        {"timesteps.timestep_sampling": "flux_shift", "timesteps.sigmoid_scale": 1.3},
    ),
    "qwen's shift and more": (
        QWEN | {"timestep_sampling": "qinglong_qwen"}, {"timesteps.timestep_sampling": "flux_shift"}
    ),
    "flux's shift for qwen": (
        QWEN | {"timestep_sampling": "flux_shift", "resolution": 1024},
        {"timesteps.timestep_sampling": "shift",
         "timesteps.discrete_flow_shift": pytest.approx(math.exp(1.15), abs=0.01)},
    ),
    "qwen's shift for flux": (
        KONTEXT | {"timestep_sampling": "qwen_shift", "resolution": 1024},
        {"timesteps.timestep_sampling": "shift", "timesteps.discrete_flow_shift": pytest.approx(2.0, abs=0.01)},
    ),
    "flux's shift for flux": (
        KONTEXT | {"timestep_sampling": "flux_shift"}, {"timesteps.timestep_sampling": "flux_shift"}
    ),
    "a family without a line of its own": (
        GUI_ANIMA | {"anima_timestep_sampling": "flux_shift"}, {"timesteps.timestep_sampling": "flux_shift"}
    ),
    "logsnr": (
        QWEN | {"timestep_sampling": "logsnr", "logit_mean": -6.0, "logit_std": 2.0},
        {"timesteps.timestep_sampling": "logit_normal", "timesteps.logit_mean": 3.0, "timesteps.logit_std": 1.0},
    ),
    # units and defaults
    "blocks of flux go in pairs": (FLUX | {"blocks_to_swap": 18}, {"memory.blocks_to_swap": 27}),
    "and in musubi": (KONTEXT | {"blocks_to_swap": 18}, {"memory.blocks_to_swap": 28}),
    "those of qwen don't": (QWEN | {"blocks_to_swap": 18}, {"memory.blocks_to_swap": 18}),
    "formats that are left out": (
        SDXL, {"saving.save_precision": "fp32", "training.mixed_precision": "no", "network.network_alpha": 1.0}
    ),
    "a LoRA in bf16 is saved so": (SDXL | {"full_bf16": True}, {"saving.save_precision": "bf16"}),
    "compile that is off says nothing": (
        FLUX | {"torch_compile": False, "dynamo_backend": "eager"}, {"compile.compile_backend": "inductor"}
    ),
    "merged LoRAs count as 1 where nothing is said": (
        FLUX | {"base_weights": ["a.safetensors", "b.safetensors"], "base_weights_multiplier": [0.5]},
        {"network.base_weights": ["a.safetensors", "b.safetensors"], "network.base_weights_multiplier": [0.5, 1.0]},
    ),
    "one merged LoRA": (
        QWEN | {"base_weights": "a.safetensors", "base_weights_multiplier": 2},
        {"network.base_weights": ["a.safetensors"], "network.base_weights_multiplier": [2.0]},
    ),
    "a multiplier of nothing": (FLUX | {"base_weights_multiplier": [0.5]}, {"network.base_weights_multiplier": None}),
    "a whole LoKr": (
        SDXL | {"network_module": "lycoris.kohya", "network_dim": 100000, "network_args": ["algo=lokr", "conv_dim=9"]},
        {"network.network_type": "lokr", "network.network_dim": 4096, "network.conv_dim": None},
    ),
    "a preset hands train_blocks on only when it splits": (
        GUI_FLUX | {"split_mode": False, "train_blocks": "single"}, {"network.targets_include": [BLOCK, SINGLE]}
    ),
    "patterns over other names": (
        KONTEXT | {"network_args": ["exclude_patterns=[r'.*img_mlp.*']"]},
        {"network.targets_exclude": None, "network.targets_include": None},
    ),
    "patterns over the same names": (
        QWEN | {"network_args": ["exclude_patterns=[r'.*']", "include_patterns=[r'.*attn.*']"]},
        {"network.targets_exclude": None, "network.targets_include": [".*attn.*"]},
    ),
    "sd3 by its text encoders": (SDXL | {"network_module": "lycoris.kohya", "clip_g": "g"}, {"model.family": "sd3"}),
    "qwen by its file": (QWEN | {"network_module": "networks.lokr"}, {"model.family": "qwen_image"}),
    # presets hold the settings of all families
    "noise of one kind": (
        GUI | {"noise_offset_type": "Multires", "noise_offset": 0.05, "multires_noise_iterations": 6},
        {"loss.noise_offset": 0.0, "loss.multires_noise_iterations": 6},
    ),
    "and of the other": (
        GUI | {"noise_offset_type": "Original", "noise_offset": 0.05, "multires_noise_iterations": 6},
        {"loss.noise_offset": 0.05, "loss.multires_noise_iterations": 0},
    ),
    "a weighting of sd3 in a preset of flux": (
        GUI_FLUX | {"timestep_sampling": "sigma", "weighting_scheme": "logit_normal", "sd3_checkbox": False},
        {"timesteps.timestep_sampling": "shift", "timesteps.discrete_flow_shift": 3.0},
    ),
    "sampling of flux in a preset of sd3": (
        GUI_SD3 | {"discrete_flow_shift": 3.0, "weighting_scheme": "logit_normal"},
        {"timesteps.timestep_sampling": "logit_normal", "timesteps.logit_mean": 0.0},
    ),
    "a shift of flux in a preset of anima": (
        GUI_ANIMA | {"discrete_flow_shift": 3.0, "anima_discrete_flow_shift": 2.0, "anima_timestep_sampling": "shift"},
        {"timesteps.discrete_flow_shift": 2.0},
    ),
    "dynamo that is never handed on": (
        GUI | {"dynamo_backend": "inductor", "dynamo_use_dynamic": False}, {"compile.compile_dynamic": "auto"}
    ),
    "restarts that are left empty": (
        GUI | {"lr_scheduler": "cosine_with_restarts", "lr_scheduler_num_cycles": "", "epoch": 5},
        {"optimizer.lr_scheduler_num_cycles": 5},
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_a_value_comes_over_as_what_it_does_there(row: str) -> None:
    values, wanted = ROWS[row]
    config = brought(values).loaded.config
    assert {path: get(config, path) for path in wanted} == wanted


@pytest.mark.parametrize(
    ("dataset", "wanted"),
    [
        ({"image_directory": "/d"}, {"dataset.resolution": 723, "dataset.max_bucket_size": 2048}),
        (
            {"enable_bucket": True, "subsets": [{"image_dir": "/d", "conditioning_data_dir": "/masks"}]},
            {"dataset.max_bucket_size": 1024, "dataset.bucket_step": 64, "dataset.caption_extension": ".caption"},
        ),
        ({"subsets": [{"image_dir": "/d"}]}, {"dataset.max_bucket_size": 2048, "dataset.bucket_step": 16}),
        (
            {"image_directory": "/d", "resolution": 512, "qwen_image_edit_control_resolution": [512, 512],
             "qwen_image_edit_no_resize_control": True},
            {"dataset.control_resolution": 512},
        ),
    ],
)  # fmt: skip
def test_a_data_set_alone_has_the_defaults_of_its_program(dataset: dict[str, Any], wanted: dict[str, Any]) -> None:
    musubi = "image_directory" in dataset
    base = QWEN | {"edit_plus": True} if musubi else SDXL
    for converted in (brought({"datasets": [dataset]}), brought(base, {"datasets": [dataset]})):
        config, outcomes = converted.loaded.config, {note.key.rpartition(".")[2]: note.fate for note in converted.notes}
        if "control_resolution" not in str(wanted) or config.model.family == "qwen_image_edit_plus":
            assert {path: get(config, path) for path in wanted} == wanted
        assert [(f.path, f.control_path) for f in config.dataset.folders] == [("/d", None)]
        assert "unknown" not in outcomes.values()
        assert outcomes.get("enable_bucket") == ("not needed" if "enable_bucket" in dataset else "default")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (KONTEXT, {"width": 256, "steps": 20, "guidance_scale": 2.5, "true_cfg_scale": 1.0}),
        (QWEN, {"width": 256, "true_cfg_scale": 4.0}),
        (FLUX, {"width": 512, "steps": 20, "guidance_scale": 3.5, "true_cfg_scale": 1.0}),
        (SD3, {"width": 512, "steps": 30, "true_cfg_scale": 7.5}),
    ],
)
def test_samples_are_drawn_as_there_where_their_line_says_nothing(
    values: dict[str, Any], wanted: dict[str, Any]
) -> None:
    config = brought(values | {"sample_prompts": "a cat\n"}).loaded.config
    assert config is not None
    assert {name: getattr(config.sampling.prompts[0], name) for name in wanted} == wanted


def test_sigma_nearly_comes_over_as_it_draws() -> None:
    """Levels of sd-scripts' sigma and of what it becomes, held against each other at a thousand places."""
    u = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    normal = math.sqrt(2) * torch.erfinv(2 * u - 1)
    times = brought(FLUX | {"timestep_sampling": "sigma", "discrete_flow_shift": 2.0}).loaded.config.timesteps
    nearly = torch.sigmoid(times.sigmoid_scale * normal + math.log(times.discrete_flow_shift))
    assert times.timestep_sampling == "shift" and (2 * u / (1 + u) - nearly).abs().max() < 0.03
    exact = brought(FLUX | {"timestep_sampling": "sigma", "weighting_scheme": "logit_normal", "logit_mean": 0.4})
    times = exact.loaded.config.timesteps
    drawn = 3 * torch.sigmoid(-(0.4 + normal)) / (1 + 2 * torch.sigmoid(-(0.4 + normal)))
    ours = torch.sigmoid(times.logit_mean - times.logit_std * normal)
    assert times.timestep_sampling == "logit_normal" and torch.allclose(ours, drawn, atol=1e-5)
    # mode lies in the middle and has its ends still: no sigmoid does both
    times = brought(FLUX | {"weighting_scheme": "mode"}).loaded.config.timesteps
    mode = u - 1.29 * (torch.sin(torch.pi / 2 * u) ** 2 - u)
    assert (mode - torch.sigmoid(times.sigmoid_scale * normal)).abs().max() < 0.09
    assert (mode - torch.sigmoid(1.7 * normal)).abs().max() > 0.12


def test_a_scale_of_mode_is_told_where_it_does_nothing() -> None:
    converted = brought(FLUX | {"timestep_sampling": "sigmoid", "weighting_scheme": "mode", "mode_scale": 0.5})
    (note,) = [note for note in converted.notes if note.key == "mode_scale"]
    assert note.fate == "not needed" and "only with mode" in note.why


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        # lora_flux.py: 4 linear layers of attention and feed-forward a stream and one of modulation, 3 a single block
        (FLUX, 2 * (8 + 4 + 2) + 2 * (5 + 1)),
        (FLUX | {"network_args": ["train_blocks=single"]}, 2 * (5 + 1)),
        (FLUX | {"network_args": ["img_mod_dim=0", "txt_mod_dim=0", "single_mod_dim=0"]}, 2 * (8 + 4) + 2 * 5),
        (FLUX | {"network_args": ["img_attn_dim=0", "single_dim=0"]}, 2 * (4 + 4 + 2) + 2 * 1),
        (KONTEXT, 2 * (8 + 4) + 2 * 5),
    ],
)
def test_the_layers_are_those_that_are_trained_there(values: dict[str, Any], layers: int) -> None:
    """A fused query, key and value are three layers here, and a single block's first layer four."""
    network, model = brought(values).loaded.config.network, make_tiny_denoiser()
    include = network.targets_include or family("flux").default_targets
    assert len(find_targets(model, include, network.targets_exclude)) == layers
