"""Settings that break each rule between settings."""

from __future__ import annotations

from tests.tiny.caption_rule_rows import CAPTION_ROWS
from tests.tiny.full_rule_rows import FULL_ROWS
from tests.tiny.process_rule_rows import PROCESS_ROWS
from tests.tiny.rule_values import (
    AVERAGED,
    BOTH,
    FOLDERS,
    PRODIGY,
    PROMPT,
    SDXL,
    SIGMAS,
    TEXT,
    TEXT_RATIO,
    VALIDATED,
    WAN22,
    Values,
)

# (values, where the problem is shown, a word of it), at least one for each rule; more values keep other rules quiet
BROKEN: list[tuple[Values, str, str]] = [
    *FULL_ROWS,
    *CAPTION_ROWS,
    *PROCESS_ROWS,
    *(
        ({**BOTH, **values}, f"saving.{name}", "takes one LoRA file")
        for name, values in (
            ("keep_best", {**VALIDATED, **SIGMAS, "saving.keep_best": True}),
            ("average_checkpoints", AVERAGED),
        )
    ),
    ({"saving.output_dir": "~"}, "saving.output_dir", "other things than runs"),
    ({"saving.output_dir": "~/Downloads/"}, "saving.output_dir", "other things than runs"),
    ({"training.max_train_steps": 5, "training.max_train_epochs": 5}, "training.max_train_steps", "twice"),
    ({"dataset.folders": [{"path": "a", "control_path": "b"}]}, "dataset.folders", "no control images"),
    (
        {
            "model.family": "flux_kontext",
            "sampling.prompts": [{"prompt": "a", "control_image": "b", "control_image_2": "c"}],
        },
        "sampling.prompts[0].control_image_2",
        "fewer control images",
    ),
    ({"model.zero_cond_t": "on"}, "model.zero_cond_t", "does not have it"),
    ({"timesteps.train_experts": "high"}, "timesteps.train_experts", "does not have it"),
    ({"timesteps.timestep_boundary": 0.8}, "timesteps.timestep_boundary", "does not have it"),
    ({"timesteps.switch_boundary_every": 5}, "timesteps.switch_boundary_every", "does not have it"),
    ({**WAN22, "timesteps.timestep_boundary": 0.8}, "timesteps.timestep_boundary", "all noise levels"),
    ({**WAN22, "timesteps.switch_boundary_every": 5}, "timesteps.switch_boundary_every", "take turns"),
    *(
        (
            {**BOTH, "dataset.validation_split": 0.1, "validation.validation_sigmas": [sigma]},
            "validation.validation_sigmas",
            f"expert for {side} noise",
        )
        for side, sigma in (("high", 0.35), ("low", 0.9))
    ),
    (
        {**WAN22, "timesteps.train_experts": "both", "timesteps.min_timestep": 875.0},
        "timesteps.min_timestep",
        "low noise has no timesteps",
    ),
    (
        {**WAN22, "timesteps.train_experts": "high", "timesteps.max_timestep": 800.0},
        "timesteps.max_timestep",
        "high noise has no timesteps",
    ),
    ({"dataset.control_resolution": 512}, "dataset.control_resolution", "does not have it"),
    ({"optimizer.lr_warmup": 1.5}, "optimizer.lr_warmup", "whole"),
    ({"optimizer.lr_warmup": 100.0, "training.max_train_steps": 100}, "optimizer.lr_warmup", "never reached"),
    ({"optimizer.lr_warmup": 1600.0}, "optimizer.lr_warmup", "never reached"),
    ({**SDXL, "optimizer.text_encoder_lr": 1e-5}, "optimizer.text_encoder_lr", "not trained"),
    ({"optimizer.optimizer": "prodigy"}, "optimizer.learning_rate", "trains almost nothing"),
    ({**SDXL, **TEXT, **PRODIGY, "optimizer.text_encoder_lr": 0.5}, "optimizer.text_encoder_lr", "one rate"),
    (
        {**PRODIGY, "network.layer_settings": [{"layers": "a", "dim": 4}, {"layers": "b", "learning_rate": 0.5}]},
        "network.layer_settings[1].learning_rate",
        "one rate",
    ),
    ({"optimizer.optimizer": "PagedAdamW8bit", "optimizer.learning_rate": 1.0}, "optimizer.learning_rate", "too high"),
    ({"optimizer.optimizer": "AdamWScheduleFree"}, "optimizer.lr_scheduler", "twice"),
    ({"training.ema": True, "optimizer.optimizer": "schedulefree.SGDScheduleFree"}, "training.ema", "itself"),
    ({"training.ema_decay": 0.99}, "training.ema_decay", "ema is off"),
    *(
        ({f"logging.wandb_{name}": value}, f"logging.wandb_{name}", "Weights & Biases is off")
        for name, value in (("project", "p"), ("run_name", "r"), ("entity", "e"), ("mode", "offline"))
    ),
    (
        {"network.lora_weight_dtype": "bf16", "training.mixed_precision": "fp16"},
        "network.lora_weight_dtype",
        "two different",
    ),
    ({"network.lora_fused": True, "network.network_dropout": 0.1}, "network.lora_fused", "has another input"),
    ({"network.lora_fused": True, "network.rank_dropout": 0.1}, "network.lora_fused", "at random for each layer"),
    ({"network.lora_fused": True, "network.module_dropout": 0.1}, "network.lora_fused", "at random for each layer"),
    (
        {"network.network_type": "lokr", "network.rank_dropout": 0.1},
        "network.rank_dropout",
        "works with the ranks of a LoRA",
    ),
    ({"loss.huber_c": 0.2}, "loss.huber_c", "loss_type l2"),
    ({"loss.huber_schedule": "constant"}, "loss.huber_schedule", "loss_type l2"),
    ({**SDXL, "loss.multires_noise_discount": 0.5}, "loss.multires_noise_discount", "iterations is 0"),
    (
        {**SDXL, "loss.debiased_estimation": True, "loss.min_snr_gamma": 5.0},
        "loss.debiased_estimation",
        "both change the weights",
    ),
    (
        {**SDXL, "loss.zero_terminal_snr": True, "loss.prediction_type": "epsilon"},
        "loss.zero_terminal_snr",
        "needs v-pred",
    ),
    ({"model.family": "sdxl", "compile.shape_mode": "static"}, "compile.shape_mode", "convolutions"),
    ({"model.family": "sd15", "compile.shape_mode": "static"}, "compile.shape_mode", "convolutions"),
    ({**SDXL, "compile.caption_buckets": [64, 77]}, "compile.caption_buckets", "one length"),
    ({**SDXL, **PROMPT}, "sampling.prompts[0].true_cfg_scale", "blurred"),
    (
        {"memory.blocks_to_swap": 3, "compile.compile_scope": "model", "training.gradient_checkpointing": False},
        "memory.blocks_to_swap",
        "compile_scope model",
    ),
    ({"compile.disable_linear": "on", "compile.compile_fullgraph": True}, "compile.compile_fullgraph", "a graph break"),
    ({"memory.blocks_to_swap": 3, "compile.cuda_graphs": "on"}, "compile.cuda_graphs", "fixed addresses"),
    *(
        ({f"network.{name}": 0.1, "compile.cuda_graphs": "on"}, "compile.cuda_graphs", name)
        for name in ("network_dropout", "rank_dropout", "module_dropout")
    ),
    ({"memory.checkpointing_kind": "offload", "compile.cuda_graphs": "on"}, "compile.cuda_graphs", "copies to RAM"),
    ({"memory.blocks_to_swap": 2}, "memory.blocks_to_swap", "saves nothing"),
    ({"memory.swap_ring": 3}, "memory.swap_ring", "no blocks"),
    ({"memory.swap_pinned_limit_gb": 4.0}, "memory.swap_pinned_limit_gb", "no blocks"),
    ({"saving.save_every_n_steps": 2000}, "saving.save_every_n_steps", "longer"),
    ({"saving.save_every_n_epochs": 5, "training.max_train_epochs": 4}, "saving.save_every_n_epochs", "longer"),
    ({"sampling.sample_every_n_steps": 2000, **PROMPT}, "sampling.sample_every_n_steps", "longer"),
    (
        {"sampling.sample_every_n_epochs": 5, "training.max_train_epochs": 4, **PROMPT},
        "sampling.sample_every_n_epochs",
        "longer",
    ),
    (
        {"validation.validate_every_n_steps": 2000, "dataset.validation_split": 0.1},
        "validation.validate_every_n_steps",
        "longer",
    ),
    (
        {
            "validation.validate_every_n_epochs": 5,
            "training.max_train_epochs": 4,
            "dataset.validation_split": 0.1,
        },
        "validation.validate_every_n_epochs",
        "longer",
    ),
    (
        {"dataset.caption_dropout_every_n_epochs": 9, "training.max_train_epochs": 4},
        "dataset.caption_dropout_every_n_epochs",
        "longer",
    ),
    (
        {"dataset.min_bucket_size": 1024, "dataset.max_bucket_size": 1000, "dataset.resolution": 1000},
        "dataset.min_bucket_size",
        "above",
    ),
    ({"dataset.resolution": 128}, "dataset.resolution", "min_bucket_size is"),
    ({"dataset.resolution": 4096}, "dataset.resolution", "max_bucket_size is"),
    ({"dataset.folders": [{"path": "a"}, {"path": "b"}, {"path": "./a"}]}, "dataset.folders[2].path", "already"),
    ({"dataset.caption_dropout_rate": 1.0}, "dataset.caption_dropout_rate", "every caption"),
    ({"dataset.caption_dropout_every_n_epochs": 1}, "dataset.caption_dropout_rate", "every caption"),
    (
        {"dataset.folders": [{"path": "a"}, {"path": "b", "is_reg": True, "class_images": 9}]},
        "dataset.folders[1].class_images",
        "from its caption",
    ),
    ({"dataset.folders": [{"path": "a", "is_reg": True}]}, "dataset.folders", "nothing to learn"),
    ({"loss.prior_loss_weight": 0.5}, "loss.prior_loss_weight", "no folder has regularization images"),
    ({"dataset.validation_split_seed": 1}, "dataset.validation_split_seed", "no effect"),
    ({"optimizer.learning_rate": 0.0}, "optimizer.learning_rate", "nothing is trained"),
    ({"optimizer.optimizer_args": {"lr": 1.0}}, "optimizer.optimizer_args", "setting of their own"),
    ({"optimizer.lr_scheduler_num_cycles": 3}, "optimizer.lr_scheduler_num_cycles", "no effect"),
    ({"optimizer.lr_scheduler_power": 2.0}, "optimizer.lr_scheduler_power", "no effect"),
    (
        {"optimizer.lr_scheduler": "constant", "optimizer.lr_scheduler_min_lr_ratio": 0.1},
        "optimizer.lr_scheduler_min_lr_ratio",
        "no effect",
    ),
    ({"training.mixed_precision": "bf16", "model.weight_dtype": "fp16"}, "training.mixed_precision", "two different"),
    ({"training.mixed_precision": "no", "model.weight_dtype": "fp16"}, "training.mixed_precision", "overflow"),
    ({"timesteps.min_timestep": 500.0, "timesteps.max_timestep": 500.0}, "timesteps.min_timestep", "between"),
    (
        {"timesteps.discrete_flow_shift": 2.0, "timesteps.timestep_sampling": "flux_shift"},
        "timesteps.discrete_flow_shift",
        "no effect",
    ),
    (
        {"timesteps.sigmoid_scale": 2.0, "timesteps.timestep_sampling": "uniform"},
        "timesteps.sigmoid_scale",
        "no effect",
    ),
    ({"timesteps.logit_mean": 1.0}, "timesteps.logit_mean", "no effect"),
    ({"timesteps.logit_std": 2.0}, "timesteps.logit_std", "no effect"),
    ({"timesteps.mode_scale": 1.0}, "timesteps.mode_scale", "no effect"),
    (
        {"compile.compile_backend": "cudagraphs", "training.gradient_accumulation_steps": 2},
        "compile.compile_backend",
        "overwrites",
    ),
    ({"compile.compile_backend": "cudagraphs"}, "compile.compile_backend", "may be unsafe"),
    (
        {"compile.compile_mode": "max-autotune", "compile.cuda_graphs": "off"},
        "compile.compile_mode",
        "nothing is recorded",
    ),
    ({"compile.compile_mode": "max-autotune", "memory.blocks_to_swap": 3}, "compile.compile_mode", "fixed addresses"),
    (
        {"compile.compile_mode": "reduce-overhead", "memory.checkpointing_kind": "offload"},
        "compile.compile_mode",
        "copies to RAM",
    ),
    *(
        ({"compile.compile_mode": "reduce-overhead", f"network.{name}": 0.1}, "compile.compile_mode", name)
        for name in ("network_dropout", "rank_dropout", "module_dropout")
    ),
    *(
        ({"compile.compile": False, f"compile.{name}": value}, f"compile.{name}", "compile is off")
        for name, value in {
            "compile_backend": "aot_eager",
            "compile_mode": "reduce-overhead",
            "compile_dynamic": "true",
            "compile_fullgraph": True,
            "compile_cache_size_limit": 20,
            "compile_scope": "model",
            "compile_blocks": [{"blocks": "double", "compile": False}],
            "disable_linear": "on",
        }.items()
    ),
    (
        {"compile.compile_mode": "max-autotune-no-cudagraphs", "compile.compile_backend": "aot_eager"},
        "compile.compile_mode",
        "no effect",
    ),
    ({"compile.compile_scope": "model"}, "compile.compile_scope", "nothing would be compiled"),
    ({"compile.compile_cache_dir": "my kernels"}, "compile.compile_cache_dir", "may fail with paths"),
    (
        {"memory.checkpointing_kind": "offload", "training.gradient_checkpointing": False},
        "memory.checkpointing_kind",
        "is off",
    ),
    (
        {
            "memory.activation_memory_budget": 0.5,
            "compile.compile": False,
            "training.gradient_checkpointing": False,
        },
        "memory.activation_memory_budget",
        "needs compile",
    ),
    (
        {"memory.checkpointing_kind": "attention", "network.network_dropout": 0.1},
        "memory.checkpointing_kind",
        "is block here",
    ),
    (
        {"memory.activation_memory_budget": 0.5, "memory.checkpointing_kind": "block"},
        "memory.activation_memory_budget",
        "almost nothing",
    ),
    *(
        (
            {
                "memory.activation_memory_budget": 0.5,
                f"network.{name}": 0.1,
                "training.gradient_checkpointing": False,
            },
            "memory.activation_memory_budget",
            f"with {name}: torch's compiler may choose another dropout",
        )
        for name in ("network_dropout", "rank_dropout", "module_dropout")
    ),
    (
        {
            "memory.activation_memory_budget": 0.5,
            "compile.compile_backend": "aot_eager",
            "training.gradient_checkpointing": False,
        },
        "memory.activation_memory_budget",
        "no effect",
    ),
    (
        {
            "compile.compile_scope": "model",
            "training.gradient_checkpointing": False,
            "compile.compile_blocks": [{"blocks": "double"}],
        },
        "compile.compile_blocks",
        "no effect",
    ),
    (
        {"compile.compile_blocks": [{"blocks": "double:0-3"}, {"blocks": "middle:1"}]},
        "compile.compile_blocks[1].blocks",
        "no blocks",
    ),
    ({"network.lokr_factor": 4}, "network.lokr_factor", "is not lokr"),
    (
        {"network.base_weights": ["a", "b"], "network.base_weights_multiplier": [1.0]},
        "network.base_weights_multiplier",
        "differ in length",
    ),
    ({"network.base_weights_multiplier": [1.0]}, "network.base_weights_multiplier", "nothing is merged"),
    ({"network.network_type": "loha", "saving.save_layout": "diffusers"}, "saving.save_layout", "can't hold loha"),
    ({"network.network_type": "lokr", "network.lora_fused": True}, "network.lora_fused", "works with a LoRA only"),
    ({"network.network_type": "lokr", "network.conv_dim": 4, **SDXL}, "network.conv_dim", "this run trains lokr"),
    (
        {"network.network_type": "lokr", "network.loraplus_lr_ratio": 4.0},
        "network.loraplus_lr_ratio",
        "works with a LoRA only",
    ),
    (
        {"optimizer.optimizer": "prodigy", "optimizer.learning_rate": 1.0, "network.loraplus_lr_ratio": 4.0},
        "network.loraplus_lr_ratio",
        "finds one rate",
    ),
    (
        {"optimizer.optimizer": "prodigyplus.ProdigyPlusScheduleFree", "network.loraplus_lr_ratio": 4.0},
        "network.loraplus_lr_ratio",
        "finds one rate",
    ),
    ({**SDXL, **TEXT, **TEXT_RATIO, "network.network_type": "loha"}, *TEXT_RATIO, "works with a LoRA only"),
    (
        {**SDXL, **TEXT, **TEXT_RATIO, "optimizer.optimizer": "prodigy", "optimizer.learning_rate": 1.0},
        *TEXT_RATIO,
        "finds one rate",
    ),
    ({**SDXL, **TEXT_RATIO}, *TEXT_RATIO, "not trained"),
    ({"network.network_type": "loha", "network.scale_weight_norms": 1.0}, "network.scale_weight_norms", "trains loha"),
    ({"network.network_type": "dora", "network.scale_weight_norms": 1.0}, "network.scale_weight_norms", "trains dora"),
    *(
        (
            {"optimizer.optimizer": name, "optimizer.lr_scheduler": "constant", "network.scale_weight_norms": 1.0},
            "network.scale_weight_norms",
            "its own averages",
        )
        for name in ("AdamWScheduleFree", "schedulefree.SGDScheduleFree")
    ),
    ({"network.conv_alpha": 4.0, **SDXL}, "network.conv_alpha", "conv_dim is not set"),
    ({"compile.static_token_count": 4096, "compile.shape_mode": "off"}, "compile.static_token_count", "no effect"),
    ({"compile.compile_dynamic": "true", "compile.shape_mode": "dynamic"}, "compile.compile_dynamic", "no effect"),
    ({"compile.compile_profile": "balanced", "compile.compile": False}, "compile.compile_profile", "no effect"),
    ({"memory.base_compute": "int8", "memory.base_quantization": "nf4"}, "memory.base_compute", "weights in int8"),
    ({"memory.base_products": "fast"}, "memory.base_products", "no effect"),
    (
        {"memory.base_products": "fast", "memory.base_compute": "fp8", "memory.blocks_to_swap": 3},
        "memory.base_products",
        "doubles what each swapped block",
    ),
    (
        {"sampling.prompts": [{"prompt": "x"}, {"prompt": "y", "negative_prompt": "z"}]},
        "sampling.prompts[1].negative_prompt",
        "no effect",
    ),
    (
        {"sampling.prompts": [{"prompt": "x"}, {"prompt": "y", "frames": 17}]},
        "sampling.prompts[1].frames",
        "makes images",
    ),
    ({"sampling.sample_every_n_steps": 10}, "sampling.sample_every_n_steps", "no sample prompts"),
    ({"sampling.sample_every_n_epochs": 10}, "sampling.sample_every_n_epochs", "no sample prompts"),
    ({"sampling.sample_at_start": True}, "sampling.sample_at_start", "no sample prompts"),
    ({"validation.validate_every_n_steps": 10}, "validation.validate_every_n_steps", "no validation images"),
    ({"validation.validate_every_n_epochs": 10}, "validation.validate_every_n_epochs", "no validation images"),
    ({"validation.validate_at_start": True}, "validation.validate_at_start", "no validation images"),
    ({"validation.validate_training_images": 2}, "validation.validate_training_images", "no validation images"),
    ({"saving.average_from": "best"}, "saving.average_from", "average_checkpoints is empty"),
    ({"saving.average_checkpoints": 3}, "saving.average_checkpoints", "nothing is saved before"),
    (
        {"saving.average_checkpoints": 3, "saving.save_last_n": 2, "saving.save_every_n_steps": 10},
        "saving.average_checkpoints",
        "save_last_n keeps 2",
    ),
    ({"validation.early_stop_min_gain": 0.1}, "validation.early_stop_min_gain", "early_stop_patience is empty"),
    ({"validation.validation_sigmas": [0.5]}, "validation.validation_sigmas", "no validation images"),
    ({"validation.validation_seed": 1}, "validation.validation_seed", "no validation images"),
    ({"validation.validation_repeats": 2}, "validation.validation_repeats", "no validation images"),
    (
        {"validation.validation_folders": [{"path": "x", "name": "A"}, {"path": "y", "name": "a"}]},
        "validation.validation_folders[1].name",
        "this name",
    ),
    (
        {"validation.validation_folders": [{"path": "a", "name": "x"}], **FOLDERS},
        "validation.validation_folders[0].path",
        "this folder is trained too",
    ),
    ({"saving.save_last_n": 3}, "saving.save_last_n", "no effect"),
]
