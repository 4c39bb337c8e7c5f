"""Settings that rows about rules have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, Any]

FOLDERS = {"dataset.folders": [{"path": "a"}]}
PROMPT = {"sampling.prompts": [{"prompt": "x"}]}
SDXL = {"model.family": "sdxl", "compile.shape_mode": "off"}
WAN22 = {"model.family": "wan22"}
BOTH = {**WAN22, "timesteps.train_experts": "both"}
SIGMAS = {"validation.validation_sigmas": [0.2, 0.95]}
LONG_NAME = {**WAN22, "timesteps.train_experts": "both", "saving.output_name": "\u540d" * 70}
TEXT = {"network.train_text_encoder": True}
TEXT_RATIO = {"network.loraplus_text_encoder_lr_ratio": 4.0}

COMPARED = {
    "saving.keep_best": True,
    "saving.average_from": "best",
    "saving.average_checkpoints": 2,
    "saving.save_every_n_steps": 2,
    "validation.early_stop_patience": 2,
}
TOO_LONG = {"saving.output_dir": "/" + "/".join(["d" * 200] * 20)}
PRODIGY = {"optimizer.optimizer": "prodigy", "optimizer.learning_rate": 1.0}
UNPAIRED = {
    "model.family": "qwen_image_edit",
    "dataset.folders": [{"path": "a", "control_path": "b"}, {"path": "c"}],
    "validation.validation_folders": [{"path": "v", "name": "v"}],
    **PROMPT,
}

VALIDATED = {"validation.validate_every_n_steps": 10, "dataset.validation_split": 0.1}
AVERAGED = {"saving.average_checkpoints": 2, "saving.save_every_n_steps": 2}
FULL = {"training.kind": "full"}

# (values, where the problem is shown, the package), where no optional package is installed
WITHOUT_PACKAGES: list[tuple[Values, str, str]] = [
    ({"memory.base_quantization": "nf4"}, "memory.base_quantization", "bitsandbytes"),
    ({"memory.text_encoder_quantization": "nf4"}, "memory.text_encoder_quantization", "bitsandbytes"),
    ({"optimizer.optimizer": "paged_lion8bit"}, "optimizer.optimizer", "bitsandbytes"),
    ({"optimizer.optimizer": "came"}, "optimizer.optimizer", "pytorch_optimizer"),
    ({"optimizer.optimizer": "pytorch_optimizer.SM3"}, "optimizer.optimizer", "pytorch_optimizer"),
    ({"compile.attention": "flash2"}, "compile.attention", "flash_attn"),
    ({"compile.attention": "fa3"}, "compile.attention", "flash_attn_interface"),
    ({"compile.attention": "fa4"}, "compile.attention", "flash_attn.cute"),
    ({"logging.tensorboard": True}, "logging.tensorboard", "tensorboard"),
    ({"logging.wandb": True, "logging.wandb_mode": "offline"}, "logging.wandb", "wandb"),
]
