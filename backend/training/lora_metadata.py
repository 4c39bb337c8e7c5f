"""Writes the metadata of LoRA and model files: ``ss_*`` as sd-scripts has it, ``modelspec.*`` as ModelSpec 1.0.1."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from backend.config.experts import ENDINGS, sides_of, timestep_range
from backend.config.layer_patterns import of_convolutions
from backend.config.schema import Config
from backend.dataset.items import Item
from backend.families.spec import Side
from backend.families.table import family
from backend.lora.loraplus import ratios
from backend.plan.caption_draw import trains_text
from backend.plan.learning_rate import warmup_steps
from backend.plan.steps import StepPlan

SOFTWARE = "Monotile"
_TAG_LETTERS = 1_000
_TAGS_BYTES = 1_000_000
"""What the counted tags may take of a file: others read the whole header at each look."""

_PREDICTIONS = {"epsilon": "epsilon", "v_prediction": "v"}
"""What diffusion models predict -> in ModelSpec's words, which has none for flow models."""


def file_metadata(
    cfg: Config,
    items: Iterable[Item],
    buckets: Mapping[tuple[int, int], int],
    *,
    architecture: str,
    base_model_version: str,
    targets: int,
    step: int,
    steps: StepPlan,
    epoch: int,
    prediction: str,
    started: float,
    side: Side | None = None,
) -> dict[str, str]:
    """All metadata but the hashes, which the writer adds. Folder names go in without what lies above them.

    items: the training pictures. buckets: (width, height) in px -> pictures. started: unix seconds.
    side: the expert that the file is of, where a run trains both.
    targets: layers that carry a LoRA, which a whole model has none of. prediction: what the model predicts, as
    objectives are called.
    """
    pictures = list(items)
    fields = {
        **({} if cfg.training.kind == "full" else _network(cfg, targets)),
        **_data(cfg, pictures, buckets),
        **_training(cfg, step, steps, epoch, started),
        **_loss(cfg, prediction),
        **_modelspec(cfg, architecture, prediction, side),
        "ss_base_model_version": base_model_version,
        "ss_sd_model_name": Path(cfg.model.base_model or "").name,
        "ss_v2": "False",
    }
    return {key: str(value) for key, value in fields.items() if value is not None}


def _network(cfg: Config, targets: int) -> dict[str, object]:
    network, baked = cfg.network, cfg.saving.save_layout == "diffusers"
    own = [row.model_dump(exclude_none=True) for row in network.layer_settings or ()]
    kind: dict[str, object] = {}
    if network.network_type == "dora":
        # LyCORIS' own words: there it is a LoRA, and arguments are text
        kind = {"algo": "lora", "dora_wd": "True"}
    elif network.network_type != "lora":
        kind = {"algo": network.network_type}
    if network.conv_dim is not None:
        convolution = of_convolutions(network)
        kind |= {"conv_dim": convolution.rank, "conv_alpha": convolution.alpha}
    # as sd-scripts has them
    kind |= {name: p for name in ("rank_dropout", "module_dropout") if (p := getattr(network, name))}
    if ratios(network):
        kind["loraplus_lr_ratio"] = network.loraplus_lr_ratio
    if network.loraplus_text_encoder_lr_ratio is not None:
        kind["loraplus_text_encoder_lr_ratio"] = network.loraplus_text_encoder_lr_ratio
    arguments = {**kind, "trained_alpha": network.network_alpha, "layers": targets}
    return {
        "ss_base_weights": json.dumps([Path(path).name for path, _ in network.merged]) if network.merged else None,
        "ss_base_weights_multiplier": json.dumps([times for _, times in network.merged]) if network.merged else None,
        "ss_network_module": "monotile.lora" if network.network_type == "lora" else "lycoris.kohya",
        "ss_network_dim": network.network_dim,
        # in diffusers' layout alpha / rank is multiplied into B, so that the file's own alpha is its rank
        "ss_network_alpha": float(network.network_dim if baked else network.network_alpha),
        "ss_network_dropout": network.network_dropout,
        "ss_network_args": json.dumps({**arguments, "layer_settings": own} if own else arguments),
    }


def _data(cfg: Config, items: list[Item], buckets: Mapping[tuple[int, int], int]) -> dict[str, object]:
    directories: dict[bool, dict[str, dict[str, int]]] = {False: {}, True: {}}
    tags: dict[str, Counter[str]] = {}
    for item in items:
        folder = _folder_name(cfg, item)
        entry = directories[item.is_reg].setdefault(folder, {"n_repeats": item.repeats, "img_count": 0})
        entry["img_count"] += 1
        counted = tags.setdefault(folder, Counter())
        counted.update(tag.strip()[:_TAG_LETTERS] for tag in item.caption.split(",") if tag.strip())
    numbered = {
        str(number): {"resolution": list(size), "count": count}
        for number, (size, count) in enumerate(sorted(buckets.items()))
    }
    side = cfg.dataset.resolution
    reg = sum(item.repeats for item in items if item.is_reg)
    prior = {"ss_num_reg_images": reg, "ss_prior_loss_weight": cfg.loss.prior_loss_weight} if reg else {}
    if reg:
        prior["ss_reg_dataset_dirs"] = json.dumps(directories[True], ensure_ascii=False)
    changes = {
        "ss_shuffle_caption": cfg.captions.shuffle_caption,
        "ss_keep_tokens": cfg.captions.keep_tokens,
        "ss_caption_tag_dropout_rate": cfg.captions.caption_tag_dropout_rate,
        "ss_flip_aug": cfg.augmentation.flip_aug,
        "ss_random_crop": cfg.augmentation.random_crop,
        "ss_color_aug": cfg.augmentation.color_jitter > 0,
    }
    return {
        **{name: value for name, value in changes.items() if value},
        "ss_dataset_dirs": json.dumps(directories[False], ensure_ascii=False),
        **prior,
        "ss_tag_frequency": json.dumps(_bounded(tags), ensure_ascii=False),
        "ss_bucket_info": json.dumps({"buckets": numbered}),
        "ss_enable_bucket": True,
        "ss_min_bucket_reso": cfg.dataset.min_bucket_size,
        "ss_max_bucket_reso": cfg.dataset.max_bucket_size,
        "ss_resolution": f"({side}, {side})",
        "ss_num_train_images": sum(item.repeats for item in items if not item.is_reg),
        "ss_caption_dropout_rate": cfg.dataset.caption_dropout_rate,
        "ss_total_batch_size": cfg.dataset.batch_size,
    }


def _bounded(tags: Mapping[str, Counter[str]]) -> dict[str, dict[str, int]]:
    """The tags of each folder with their counts; beyond `_TAGS_BYTES` the rarest are left out."""
    kept: dict[str, dict[str, int]] = {folder: {} for folder in tags}
    most_common = sorted(
        ((count, folder, tag) for folder, counted in tags.items() for tag, count in counted.items()),
        key=lambda row: -row[0],
    )
    room = _TAGS_BYTES
    for count, folder, tag in most_common:
        # quotes, colon, comma and the count come with the tag
        room -= len(json.dumps(tag, ensure_ascii=False).encode("utf-8", "surrogatepass")) + len(str(count)) + 4
        if room < 0:
            break
        kept[folder][tag] = count
    return kept


def _folder_name(cfg: Config, item: Item) -> str:
    path = Path(item.path)
    roots = [Path(folder.path) for folder in cfg.dataset.folders]
    inside = [root for root in roots if root.name and root.name in (parent.name for parent in path.parents)]
    return inside[0].name if inside else path.parent.name


def _training(cfg: Config, step: int, steps: StepPlan, epoch: int, started: float) -> dict[str, object]:
    training, optimizer = cfg.training, cfg.optimizer
    return {
        "ss_output_name": cfg.saving.output_name,
        "ss_learning_rate": optimizer.learning_rate,
        "ss_unet_lr": optimizer.learning_rate,
        "ss_text_encoder_lr": _text_rate(cfg),
        "ss_optimizer": optimizer.optimizer,
        "ss_lr_scheduler": optimizer.lr_scheduler,
        "ss_lr_warmup_steps": warmup_steps(optimizer.lr_warmup, steps.steps),
        "ss_ema_decay": training.ema_decay if training.ema else None,
        "ss_scale_weight_norms": cfg.network.scale_weight_norms,
        "ss_max_grad_norm": optimizer.max_grad_norm,
        "ss_max_train_steps": steps.steps,
        "ss_num_epochs": math.ceil(steps.epochs),
        "ss_num_batches_per_epoch": steps.batches_per_epoch,
        "ss_steps": step,
        "ss_epoch": epoch,
        "ss_gradient_accumulation_steps": training.gradient_accumulation_steps,
        "ss_num_processes": training.num_processes if training.num_processes > 1 else None,
        "ss_gradient_checkpointing": training.gradient_checkpointing,
        "ss_mixed_precision": training.mixed_precision,
        "ss_seed": training.seed,
        "ss_guidance_scale": cfg.model.guidance_scale,
        "ss_timestep_sampling": cfg.timesteps.timestep_sampling,
        "ss_discrete_flow_shift": cfg.timesteps.discrete_flow_shift,
        "ss_weighting_scheme": cfg.timesteps.weighting_scheme,
        "ss_training_started_at": started,
        "ss_training_finished_at": time.time(),
    }


def _loss(cfg: Config, prediction: str) -> dict[str, object]:
    """How the loss is made, as sd-scripts says it; what only diffusion models have, where the model is one."""
    loss = cfg.loss
    fields: dict[str, object] = {"ss_loss_type": loss.loss_type}
    if loss.loss_type != "l2":
        fields |= {"ss_huber_c": loss.huber_c, "ss_huber_schedule": loss.huber_schedule}
    if prediction not in _PREDICTIONS:
        return fields
    return fields | {
        "ss_min_snr_gamma": loss.min_snr_gamma,
        "ss_debiased_estimation": loss.debiased_estimation,
        "ss_noise_offset": loss.noise_offset,
        "ss_multires_noise_iterations": loss.multires_noise_iterations,
        "ss_multires_noise_discount": loss.multires_noise_discount if loss.multires_noise_iterations else None,
        "ss_ip_noise_gamma": loss.ip_noise_gamma,
        "ss_zero_terminal_snr": loss.zero_terminal_snr,
    }


def _text_rate(cfg: Config) -> float | None:
    """Learning rate of the text encoders; None where they are not trained."""
    if not trains_text(cfg, family(cfg.model.family)):
        return None
    own = cfg.optimizer.text_encoder_lr
    return cfg.optimizer.learning_rate if own is None else own


def _modelspec(cfg: Config, architecture: str, prediction: str, expert: Side | None) -> dict[str, object]:
    saving, sides = cfg.saving, sides_of(cfg)
    least, highest = timestep_range(cfg, sides[0] if len(sides) == 1 else expert)
    side = cfg.dataset.resolution
    return {
        "modelspec.sai_model_spec": "1.0.1",
        "modelspec.architecture": architecture,
        "modelspec.implementation": "diffusers",
        "modelspec.implementation_version": SOFTWARE,
        "modelspec.title": (saving.metadata_title or saving.output_name) + (ENDINGS[expert] if expert else ""),
        "modelspec.resolution": f"{side}x{side}",
        "modelspec.date": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "modelspec.author": saving.metadata_author,
        "modelspec.description": saving.metadata_description,
        "modelspec.license": saving.metadata_license,
        "modelspec.tags": saving.metadata_tags,
        "modelspec.trigger_phrase": saving.metadata_trigger or cfg.dataset.trigger_word,
        "modelspec.prediction_type": _PREDICTIONS.get(prediction),
        "modelspec.timestep_range": f"{least:g},{highest:g}",
    }
