"""Activations of the UNets, held against what autograd keeps at full size."""

from __future__ import annotations

from typing import Any

import pytest

from backend.config.load import parse
from backend.families.sd15.facts import FACTS as SD15
from backend.families.sdxl.facts import FACTS as SDXL
from backend.families.table import family
from backend.memory.block_swap import swapped_paths
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, convolutions_kept, training_bytes
from backend.plan.memory.estimate import estimate
from backend.plan.memory.estimate_result import Estimate
from backend.plan.memory.machine import named_gpu
from backend.plan.memory.parts import Parts, denoiser_of, place_of, trained_layers
from backend.plan.memory.settings import memory_settings
from backend.plan.memory.work import RunWork
from tests.tiny.kept import empty_unet, unet_kept_bytes, unet_peak_bytes

SDXL_CONFIG: dict[str, Any] = {
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "attention_head_dim": [5, 10, 20],
    "block_out_channels": [320, 640, 1280],
    "cross_attention_dim": 2048,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "projection_class_embeddings_input_dim": 2816,
    "transformer_layers_per_block": [1, 2, 10],
    "use_linear_projection": True,
}
# Fewer layers a level where what they keep beside others is the point, since each takes a tenth of a second.
SHALLOW: dict[str, Any] = {**SDXL_CONFIG, "transformer_layers_per_block": [1, 1, 3]}
SD15_CONFIG: dict[str, Any] = {
    "attention_head_dim": 8,
    "block_out_channels": [320, 640, 1280, 1280],
    "cross_attention_dim": 768,
    "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
}


@pytest.mark.parametrize(
    ("facts", "memory", "config", "side", "batch", "targets", "kind"),
    [
        (SDXL, SDXL.memory, SHALLOW, 128, 1, SDXL.default_targets, "lora"),
        (SDXL, SDXL.memory, SHALLOW, 64, 2, ("attn1.to_q", "attn2.to_out.0"), "lora"),
        (SD15, SD15.memory, SD15_CONFIG, 64, 1, SD15.default_targets, "lora"),
        (SDXL, SDXL.memory, SHALLOW, 128, 1, SDXL.default_targets + SDXL.conv_targets, "lora"),
        (SDXL, SDXL.memory, SHALLOW, 128, 1, SDXL.default_targets + SDXL.conv_targets, "dora"),
    ],
)
def test_what_is_kept_is_what_autograd_keeps(
    facts: Any, memory: Any, config: dict[str, Any], side: int, batch: int, targets: tuple[str, ...], kind: str
) -> None:
    model = empty_unet(config)
    denoiser = denoiser_of({name: tuple(p.shape) for name, p in model.named_parameters()}, facts)
    real = unet_kept_bytes(model, side=side, batch=batch, rank=16, targets=targets, kind=kind)
    paths: dict[str, set[str]] = {}
    layers = trained_layers(denoiser, targets, ())
    for name in layers:
        place = place_of(name, facts)
        if place is not None:
            paths.setdefault(place[0], set()).add(place[3])
    cell = 2 ** (len(config["block_out_channels"]) - 1)
    work = Work(batch, (side // cell) ** 2, 77)
    convolutions = convolutions_kept(denoiser, memory, dict.fromkeys(layers, 16), kind == "dora")
    way = Way(False, "off")
    estimation = training_bytes(denoiser, memory, work, 16, paths, way, Format(), convolutions, kind == "dora").kept
    assert estimation == pytest.approx(real, rel=0.12)


def test_the_peak_of_a_checkpointed_step_is_the_estimates() -> None:
    """Gradients come as what is kept goes."""
    model = empty_unet(SHALLOW)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    denoiser = denoiser_of(shapes, SDXL)
    layers = trained_layers(denoiser, SDXL.default_targets, ())
    gradients = 4 * sum(16 * (inner + outer) for inner, outer in layers.values())
    paths: dict[str, set[str]] = {}
    for place in filter(None, (place_of(name, SDXL) for name in layers)):
        paths.setdefault(place[0], set()).add(place[3])
    held = training_bytes(denoiser, SDXL.memory, Work(1, 32 * 32, 77), 16, paths, Way(False), Format())
    real = unet_peak_bytes(model, side=128, rank=16, targets=SDXL.default_targets)
    assert held.beside(gradients) + gradients == pytest.approx(real, rel=0.15)


@pytest.mark.parametrize("gigabytes", [24, 8])
def test_what_auto_records_is_counted_where_there_is_room_for_it(gigabytes: int) -> None:
    shapes = {path: tuple(p.shape) for path, p in empty_unet(SDXL_CONFIG).named_parameters()}
    parts = Parts(denoiser_of(shapes, SDXL), shapes, {}, 0, 128)
    work = RunWork(Work(1, 32 * 32, 77), 1024 * 1024)

    def of(how: str, card: int) -> Estimate:
        settings = {"model": {"family": "sdxl"}, "compile": {"shape_mode": "off", "cuda_graphs": how}}
        estimation = estimate(parse(settings).config, work, named_gpu(card), parts=parts)
        assert estimation is not None
        return estimation

    auto, on, off = (of(how, gigabytes) for how in ("auto", "on", "off"))
    assert auto.peak.parts == (on if gigabytes == 24 else off).peak.parts
    # Peaks of real runs at rank 16 on an H200: 6.1 GB, and 8.9 with recordings.
    assert off.peak.allocated / 2**30 == pytest.approx(6.1, rel=0.15)
    assert on.peak.allocated / 2**30 == pytest.approx(8.9, rel=0.15)


@pytest.mark.parametrize(("name", "config"), [("sdxl", SDXL_CONFIG), ("sd15", SD15_CONFIG)])
def test_the_estimate_swaps_the_blocks_that_the_trainer_swaps(name: str, config: dict[str, Any]) -> None:
    """Levels differ in width and alternate on the way up: blocks picked class by class would weigh something else."""
    model = empty_unet(config)
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    parts = Parts(denoiser_of(shapes, family(name)), shapes, {}, 0, 128)
    order = load_family(name).running_order(model)
    for count in range(1, len(order["block"])):
        cfg = parse(
            {"model": {"family": name}, "compile": {"shape_mode": "off"}, "memory": {"blocks_to_swap": count}}
        ).config
        assert cfg is not None
        blocks = [model.get_submodule(path) for path in swapped_paths(model, order, count)]
        real = [sum(2 * p.numel() for p in block.parameters() if p.dim() == 2) for block in blocks]
        assert memory_settings(cfg, on_gpu=True).swap(parts) == (
            sum(real),
            2 * max(real) if count > 1 else real[0],
        ), count
