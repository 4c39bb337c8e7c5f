"""The estimate of full fine-tuning: the denoiser in float32, gradients and optimizer state of all its weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backend.config.schema import Config
from backend.config.tensor_steps import moves_stored
from backend.families.files.base_model import BaseModelFiles
from backend.families.flux.facts import FACTS as FLUX
from backend.models.family_classes import load_family
from backend.optimizers.adafactor import Adafactor
from backend.optimizers.build import make_optimizer
from backend.optimizers.from_settings import optimizer_of
from backend.plan.memory.activations import Work
from backend.plan.memory.estimate import estimate
from backend.plan.memory.machine import named_gpu
from backend.plan.memory.nearest import Search
from backend.plan.memory.parts import Parts, denoiser_of, read_parts
from backend.plan.memory.settings import memory_settings
from backend.plan.memory.work import RunWork
from tests.tiny.kept import empty_flux
from tests.tiny.memory_plans import WORK, flux_dev, settings

FULL = {"kind": "full", "gradient_checkpointing": True}


def parts_of(**changes: dict[str, Any]) -> dict[str, int]:
    training = {**FULL, **changes.pop("training", {})}
    estimation = estimate(settings(training=training, **changes), WORK, named_gpu(180), parts=flux_dev())
    assert estimation is not None
    return dict(estimation.stage("train").parts)


def test_weights_gradients_and_state_are_those_of_the_whole_denoiser() -> None:
    count = flux_dev().denoiser.count
    parts = parts_of(optimizer={"optimizer": "adamw"}, training={"ema": True})
    assert parts["weights"] == parts["gradients"] == parts["ema"] == 4 * count and parts["lora"] == 0
    assert parts["optimizer"] == 8 * count
    # autocast's copies of the weights, where no graph makes them block by block
    eager = parts_of(compile={"compile": False})["activations"] - parts_of(compile={"compile": True})["activations"]
    assert eager > 1.5 * count


def test_trained_weights_stay_while_samples_are_decoded() -> None:
    huge = replace(WORK, sample_pixels=4096 * 4096)
    estimation = estimate(settings(training=FULL), huge, named_gpu(80), parts=flux_dev())
    assert (
        estimation is not None
        and estimation.settings is not None
        and not estimation.settings.turns
        and estimation.settings.tiled_decode
    )
    assert estimation.stage("decode_samples").parts["weights"] == 4 * flux_dev().denoiser.count
    assert "denoiser_while_decoding" not in estimation.ram


def test_16_bit_weights_and_freed_gradients_are_counted() -> None:
    """What FLUX needs in 24 GB: weights in bf16, gradients of a block, a state of rows and columns."""
    count = flux_dev().denoiser.count
    parts = parts_of(training={"full_weight_dtype": "bf16"}, optimizer={"optimizer": "adafactor"})
    assert parts["weights"] == parts["gradients"] == 2 * count and parts["optimizer"] < count / 50
    fused = parts_of(
        training={"full_weight_dtype": "bf16"}, optimizer={"optimizer": "adafactor", "fused_backward": True}
    )
    assert 0 < fused["gradients"] < count / 15


@pytest.mark.parametrize(("compiled", "measured"), [(True, 6.30e9), (False, 7.41e9)])
def test_what_a_step_works_with_depends_on_its_being_compiled(compiled: bool, measured: float) -> None:
    """4 + 8 blocks of FLUX's width in bf16, against the peaks on an H200 (docs/benchmarks.md, flux-full)."""
    shapes = {name: tuple(p.shape) for name, p in empty_flux(4, 8).named_parameters()}
    parts = Parts(denoiser_of(shapes, FLUX), shapes, {}, 0, 128)
    own: dict[str, Any] = {"training": {**FULL, "full_weight_dtype": "bf16", "mixed_precision": "bf16"}}
    own["optimizer"] = {"optimizer": "adafactor", "fused_backward": True}
    cfg = settings(**own, compile={"compile": compiled})
    estimation = estimate(cfg, RunWork(WORK.training, 0), named_gpu(80), parts=parts)
    assert estimation is not None and measured < estimation.stage("train").allocated < 1.12 * measured


def test_copies_of_a_tensor_that_is_moved_are_those_of_its_optimizer() -> None:
    def copies(compiled: bool = True, on_gpu: bool = True, dtype: str = "bf16", **optimizer: Any) -> int:
        training = {**FULL, "full_weight_dtype": dtype}
        cfg = settings(training=training, optimizer=optimizer, compile={"compile": compiled})
        assert moves_stored(cfg.optimizer) == can_step_stored(cfg)
        return memory_settings(cfg, on_gpu).step_copies

    def can_step_stored(cfg: Config) -> bool:
        optimizer = optimizer_of(cfg.optimizer, [nn.Parameter(torch.zeros(2, 2))])
        return isinstance(optimizer, Adafactor) and optimizer.can_step_stored(optimizer.param_groups[0])

    adafactor: dict[str, Any] = {"optimizer": "adafactor"}
    assert copies(**adafactor) == copies(dtype="fp32", fused_backward=True, **adafactor) == 1
    assert copies(compiled=False, **adafactor) == copies(on_gpu=False, **adafactor) == 6
    assert copies(optimizer_args={"maximize": True}, **adafactor) == copies(optimizer="adamw") == 4
    assert copies(dtype="fp32", **adafactor) == copies(dtype="fp32", optimizer="adamw") == 2


def test_parts_that_are_not_trained_have_no_gradients() -> None:
    some = parts_of(network={"targets_include": ["transformer_blocks.0"]})
    assert some["weights"] == 4 * flux_dev().denoiser.count and 0 < some["gradients"] < some["weights"] / 20


@pytest.mark.parametrize(
    ("name", "family"),
    [("adamw", "flux"), ("adafactor", "flux"), ("adafactor", "sdxl"), ("sgd", "flux"), ("lion", "flux")],
)
def test_state_is_that_of_the_optimizer_itself(name: str, family: str, request: pytest.FixtureRequest) -> None:
    """Of vectors and embeddings too, which a LoRA has none of, and of kernels."""
    base: Path = request.getfixturevalue(f"tiny_{family}")
    parts = read_parts(load_family(family).facts, BaseModelFiles.at(base))
    cfg = settings(training=FULL, optimizer={"optimizer": name}, model={"family": family})
    estimation = estimate(cfg, RunWork(Work(1, 16, 16), 64 * 64), named_gpu(24), parts=parts)
    assert estimation is not None
    empty = load_family(family).empty_denoiser(base)
    weights = [nn.Parameter(torch.zeros(p.shape)) for p in empty.parameters()]
    usual = {"learning_rate": 1e-3, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
    optimizer = make_optimizer(name, weights, **usual)  # type: ignore[arg-type]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    state = sum(
        value.nbytes
        for each in optimizer.state.values()
        for value in each.values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    assert estimation.stage("train").parts["optimizer"] == pytest.approx(state, rel=0.01)
    assert estimation.stage("train").parts["weights"] == sum(weight.nbytes for weight in weights)


def test_trained_text_encoders_are_counted_whole(tiny_sdxl: Path) -> None:
    from backend.families.sdxl.facts import FACTS as SDXL

    parts = read_parts(SDXL, BaseModelFiles.at(tiny_sdxl))
    assert parts is not None
    own: dict[str, Any] = {"model": {"family": "sdxl"}, "training": FULL, "optimizer": {"optimizer": "adamw"}}
    without, beside = (
        estimate(
            settings(**own, network={"train_text_encoder": on}), RunWork(Work(1, 16, 77), 64 * 64), None, parts=parts
        )
        for on in (False, True)
    )
    assert without is not None and beside is not None
    count = sum(math.prod(shape) for shapes in parts.texts.values() for shape in shapes.values())
    was, now = without.stage("train").parts, beside.stage("train").parts
    assert now["text_encoders"] == now["gradients"] - was["gradients"] == 4 * count
    assert now["optimizer"] - was["optimizer"] == 8 * count and now["weights"] == was["weights"]


def test_what_a_trained_base_can_not_be_is_not_advised() -> None:
    search = Search(settings(training=FULL, optimizer={"optimizer": "adamw"}), WORK, named_gpu(24), flux_dev())
    nearest = search.nearest()
    advised = {path for change in (nearest.changes if nearest else ()) for path in change.values}
    assert not advised & {"memory.base_quantization", "memory.blocks_to_swap", "network.network_dim"}


def test_swapped_blocks_take_their_optimizer_state_to_ram() -> None:
    """Weights and state on the GPU shrink by what RAM gets, but for a ring of two blocks each."""
    own: dict[str, Any] = {"training": {**FULL, "full_weight_dtype": "bf16"}}
    own["optimizer"] = {"optimizer": "adamw", "fused_backward": True}
    parts = flux_dev()
    before, after = (
        estimate(settings(**own, memory={"blocks_to_swap": count}), WORK, named_gpu(180), parts=parts)
        for count in (0, 40)
    )
    assert before is not None and after is not None and after.settings is not None
    weights, states = after.settings.swapped(parts), after.settings.swapped_state(parts)
    assert len(weights) == 40 and states == [4 * size for size in weights]
    assert (after.ram["swapped_weights"], after.ram["swapped_state"]) == (sum(weights), sum(states))
    was, now = before.stage("train").parts, after.stage("train").parts
    assert was["weights"] - now["weights"] == sum(weights) and now["swap_ring"] == 2 * max(weights)
    assert was["optimizer"] - now["optimizer"] == sum(states) - 2 * max(states)
    # of one block that stays, what is trained has its state on the GPU
    one: dict[str, Any] = {"network": {"targets_include": ["transformer_blocks.0"]}, "memory": {"blocks_to_swap": 40}}
    some = estimate(settings(**own, **one), WORK, named_gpu(180), parts=parts)
    assert some is not None and some.stage("train").parts["optimizer"] > 8 * 100_000_000
    # a step of single weights is advised with swap, where it is on
    search = Search(settings(**own), WORK, named_gpu(24), flux_dev())
    nearest = search.nearest()
    assert nearest is not None and "memory.blocks_to_swap" in {p for change in nearest.changes for p in change.values}
