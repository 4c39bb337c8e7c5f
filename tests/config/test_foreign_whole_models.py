"""Files of other programs that train whole models: each name is imported, or said why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.config.schema import Config, get
from backend.importers.convert import Converted, convert
from backend.importers.source import read_raw

FULL = {"training.kind": "full", "training.full_weight_dtype": "bf16", "optimizer.fused_backward": True}


def imported(raw: str) -> tuple[Converted, Config]:
    converted = convert(read_raw(raw.encode()))
    assert converted.loaded.config is not None and not converted.loaded.problems, converted.loaded.problems
    assert not [note.key for note in converted.notes if note.fate == "unknown"]
    # nothing is said of a LoRA that the file never named
    assert not {note.path for note in converted.notes} & {"network.network_dim"}
    return converted, converted.loaded.config


def holds(config: Config, wanted: dict[str, Any]) -> None:
    assert {path: get(config, path) for path in wanted} == wanted


FINETUNE = {
    "batch_size": "4", "block_lr": "", "create_buckets": True, "create_caption": True, "dataset_repeats": "1",
    "epoch": 240, "full_bf16": True, "full_fp16": False, "full_path": True, "fused_backward_pass": True,
    "gradient_checkpointing": True, "image_folder": "/pictures", "learning_rate": 5e-05, "learning_rate_te1": 1e-05,
    "lr_scheduler": "constant", "lr_warmup": 0, "max_resolution": "1024,1024", "mixed_precision": "bf16",
    "optimizer": "AdamW8bit", "save_model_as": "diffusers", "save_precision": "bf16", "sdxl_checkbox": True,
    "train_batch_size": 2, "train_text_encoder": True, "use_latent_files": "No",
}  # fmt: skip
DREAMBOOTH = {
    "sd3_checkbox": True, "fused_backward_pass": False, "fused_optimizer_groups": 0, "full_bf16": True,
    "learning_rate": 5e-06, "learning_rate_te": 0, "learning_rate_te1": 1e-05, "learning_rate_te2": 1e-05,
    "max_resolution": "512,512", "max_train_steps": 1600, "optimizer": "AdamW8bit", "prior_loss_weight": 0.5,
    "sd3_fused_backward_pass": True, "save_model_as": "safetensors", "stop_text_encoder_training": 0,
    "train_batch_size": 1, "train_data_dir": "/pictures", "reg_data_dir": "/reg", "epoch": 8,
}  # fmt: skip


def test_presets_of_kohya_ss_for_finetuning_and_dreambooth() -> None:
    converted, config = imported(json.dumps(FINETUNE))
    more = {"saving.model_layout": "diffusers", "dataset.batch_size": 2, "optimizer.optimizer": "adamw8bit"}
    holds(config, FULL | more | {"model.family": "sdxl", "optimizer.learning_rate": 5e-05})
    fates = {note.key: note.fate for note in converted.notes}
    holds(config, {"network.train_text_encoder": True, "optimizer.text_encoder_lr": 1e-05})
    assert fates["image_folder"] == "not offered"
    assert FINETUNE.keys() <= fates.keys()

    # the oldest presets of LoRAs have no LoRA_type
    old = convert(read_raw(json.dumps({**DREAMBOOTH, "network_dim": 8}).encode())).loaded.config
    assert old is not None and old.training.kind == "lora"
    converted, config = imported(json.dumps(DREAMBOOTH))
    holds(config, FULL | {"model.family": "sd3", "saving.model_layout": "single_file", "loss.prior_loss_weight": 0.5})
    assert [(row.path, row.is_reg) for row in config.dataset.folders] == [("/pictures", False), ("/reg", True)]
    fates = {note.key: note.fate for note in converted.notes}
    # its text encoders are not trained here
    assert fates["learning_rate_te1"] == "not offered" and DREAMBOOTH.keys() <= fates.keys()


@pytest.mark.parametrize(
    ("script", "family", "more"),
    [
        ("flux_train.py", "flux", "--t5xxl t5 --ae ae --blocks_to_swap 8"),
        ("sdxl_train.py", "sdxl", "--fused_optimizer_groups 10"),
        ("fine_tune.py", "sd15", "--fused_backward_pass --resolution 512"),
    ],
)
def test_commands_of_sd_scripts(script: str, family: str, more: str) -> None:
    """A step of swapped blocks is in the backward pass here, said or not."""
    line = f"python {script} --pretrained_model_name_or_path m.safetensors --full_bf16 --output_name o {more}"
    _, config = imported(line)
    holds(config, FULL | {"model.family": family, "saving.output_name": "o"})
    assert config.memory.blocks_to_swap == (12 if "swap" in more else 0)
    _, config = imported(line.replace("--full_bf16", "") if "fused" in more else f"{line} --fused_backward_pass")
    assert config.training.kind == "full"


def test_arguments_of_sd_scripts_without_a_network() -> None:
    text = "pretrained_model_name_or_path = 'xl.safetensors'\nfull_bf16 = true\nfused_backward_pass = true\n"
    _, config = imported(text + "optimizer_type = 'AdamW'\nlearning_rate = 1e-5\ntrain_text_encoder = false\n")
    holds(config, FULL | {"model.family": "sdxl", "optimizer.learning_rate": 1e-5})
    # a file that says nothing of a whole model is a LoRA's, as before
    lora = convert(read_raw(b"pretrained_model_name_or_path = 'xl.safetensors'\nlearning_rate = 1e-5\n"))
    assert lora.loaded.config is not None and lora.loaded.config.training.kind == "lora"


def test_fine_tuning_of_onetrainer() -> None:
    preset = {
        "training_method": "FINE_TUNE", "model_type": "STABLE_DIFFUSION_XL_10_BASE", "learning_rate": 1e-5,
        "optimizer": {"optimizer": "ADAFACTOR", "fused_back_pass": True, "stochastic_rounding": True},
        "unet": {"train": True, "weight_dtype": "BFLOAT_16"}, "text_encoder": {"train": True}, "lora_rank": 16,
    }  # fmt: skip
    converted, config = imported(json.dumps(preset))
    holds(config, FULL | {"model.family": "sdxl", "memory.base_quantization": "none"})
    fates = {note.key: note.fate for note in converted.notes}
    assert (fates["lora_rank"], fates["text_encoder.train"]) == ("not needed", "taken")
    assert config.network.train_text_encoder
    assert fates["optimizer.stochastic_rounding"] == "not needed"
