"""Settings that break the rules of full fine-tuning."""

from __future__ import annotations

from tests.tiny.rule_values import AVERAGED, FULL, PRODIGY, SDXL, TEXT, VALIDATED, WAN22, Values

FULL_ROWS: list[tuple[Values, str, str]] = [
    *(
        ({**FULL, f"network.{name}": value}, f"network.{name}", "has no effect: training kind full")
        for name, value in (
            ("network_dim", 32),
            ("network_alpha", 8.0),
            ("network_dropout", 0.1),
            ("rank_dropout", 0.1),
            ("module_dropout", 0.1),
            ("lora_weight_dtype", "bf16"),
            ("lora_fused", True),
        )
    ),
    ({**FULL, "saving.save_layout": "diffusers"}, "saving.save_layout", "trains no LoRA"),
    ({**FULL, "model.weight_dtype": "bf16"}, "model.weight_dtype", "kept in fp32, as full_weight_dtype says"),
    ({"saving.model_layout": "diffusers"}, "saving.model_layout", "a LoRA is saved"),
    ({**FULL, "network.network_type": "dora"}, "network.network_type", "dora is a kind of LoRA"),
    ({**FULL, "network.scale_weight_norms": 1.0}, "network.scale_weight_norms", "limits the change"),
    ({**FULL, "network.loraplus_lr_ratio": 4.0}, "network.loraplus_lr_ratio", "second matrix"),
    ({**FULL, **SDXL, "network.conv_dim": 4}, "network.conv_dim", "convolutions themselves"),
    (
        {**FULL, **SDXL, **TEXT, "memory.text_encoder_quantization": "int8"},
        "memory.text_encoder_quantization",
        "smaller than the format",
    ),
    ({**FULL, "network.network_weights": "a"}, "network.network_weights", "a LoRA to continue"),
    ({**FULL, **VALIDATED, "saving.keep_best": True}, "saving.keep_best", "keeps a LoRA"),
    ({**FULL, **AVERAGED}, "saving.average_checkpoints", "averages LoRA files"),
    ({**FULL, **WAN22, "timesteps.train_experts": "both"}, "timesteps.train_experts", "trained as LoRAs"),
    ({**FULL, "memory.base_quantization": "fp8"}, "memory.base_quantization", "can't be trained"),
    ({**FULL, "memory.blocks_to_swap": 9}, "memory.blocks_to_swap", "have to be stepped there"),
    (
        {**FULL, "memory.blocks_to_swap": 9, "optimizer.fused_backward": True, "training.ema": True},
        "memory.blocks_to_swap",
        "after each step",
    ),
    (
        {**FULL, "network.layer_settings": [{"layers": "a", "learning_rate": 0.1}, {"layers": "a", "dim": 4}]},
        "network.layer_settings[1].dim",
        "is a LoRA's",
    ),
    ({**FULL, "network.layer_settings": [{"layers": "a", "alpha": 4.0}]}, "network.layer_settings[0].alpha", "LoRA's"),
    (
        {**FULL, "sampling.prompts": [{"prompt": "x"}, {"prompt": "x", "lora_scale": 0.5}]},
        "sampling.prompts[1].lora_scale",
        "no LoRA to weaken",
    ),
    ({"optimizer.fused_backward": True}, "optimizer.fused_backward", "a LoRA's are small"),
    (
        {**FULL, "optimizer.fused_backward": True, "training.gradient_accumulation_steps": 2},
        "optimizer.fused_backward",
        "sums those of 2 batches",
    ),
    (
        {**FULL, "optimizer.fused_backward": True, "training.mixed_precision": "fp16"},
        "optimizer.fused_backward",
        "loss scaling",
    ),
    ({**FULL, **PRODIGY, "optimizer.fused_backward": True}, "optimizer.fused_backward", "one by one"),
    ({**FULL, **PRODIGY, "training.full_weight_dtype": "bf16"}, "training.full_weight_dtype", "one by one"),
    (
        {**FULL, "training.full_weight_dtype": "bf16", "training.mixed_precision": "fp16"},
        "training.full_weight_dtype",
        "two different 16-bit",
    ),
    ({"training.full_weight_dtype": "bf16"}, "training.full_weight_dtype", "not trained"),
    ({**FULL, "compile.cuda_graphs": "on"}, "compile.cuda_graphs", "never tried"),
    ({**FULL, "compile.compile_mode": "max-autotune"}, "compile.compile_mode", "never tried"),
]
