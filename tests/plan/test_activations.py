"""Activations of a step: held against what autograd keeps at full size, and against what an H100 showed."""

from __future__ import annotations

import pytest

from backend.families.flux.facts import FACTS, MEMORY
from backend.plan.memory.activations import Format, Way, Work, block_bytes, forward_bytes, training_bytes
from backend.plan.memory.estimate import WORKSPACE
from backend.plan.memory.parts import Denoiser, denoiser_of, trained_layers
from tests.tiny.kept import empty_flux, kept_bytes

ATTENTION = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
MIXED = Format(2, 4)


def flux(double: int, single: int) -> Denoiser:
    return denoiser_of({name: tuple(p.shape) for name, p in empty_flux(double, single).named_parameters()}, FACTS)


def trained(denoiser: Denoiser, targets: tuple[str, ...]) -> dict[str, set[str]]:
    layers = trained_layers(denoiser, targets, ())
    return {
        block.name: {name.split(".", 2)[2] for name in layers if name.startswith(f"{block.attribute}.")}
        for block in FACTS.block_classes
    }


@pytest.mark.parametrize(
    ("double", "single", "side", "text", "batch", "rank", "targets", "control", "kind"),
    [
        (2, 1, 64, 512, 1, 32, FACTS.default_targets, False, "lora"),
        (1, 3, 32, 512, 2, 16, FACTS.default_targets, False, "lora"),
        (2, 2, 64, 128, 1, 64, ATTENTION, False, "lora"),
        (1, 2, 64, 512, 1, 16, FACTS.default_targets, True, "lora"),
        (2, 1, 64, 512, 1, 32, FACTS.default_targets, False, "dora"),
        (1, 2, 32, 512, 2, 16, ATTENTION, False, "dora"),
    ],
)
def test_what_is_kept_is_what_autograd_keeps(
    double: int,
    single: int,
    side: int,
    text: int,
    batch: int,
    rank: int,
    targets: tuple[str, ...],
    control: bool,
    kind: str,
) -> None:
    real = kept_bytes(
        double, single, side=side, text=text, batch=batch, rank=rank, targets=targets, control=control, kind=kind
    )
    denoiser = flux(double, single)
    way = Way(compiled=False, checkpointing="off")
    work = Work(batch, side * side * (2 if control else 1), text)
    estimation = training_bytes(
        denoiser, MEMORY, work, rank, trained(denoiser, targets), way, MIXED, 0, kind == "dora"
    ).kept
    assert estimation == pytest.approx(real, rel=0.10)


H100 = [
    # peaks in GB that an H100 showed: FLUX's width, 4 + 8 blocks, rank 32 on all linears, 4096 + 512 tokens, AdamW
    (Way(False, "block"), 6.79),
    (Way(True, "block"), 6.82),
    (Way(False, "off"), 13.7),
    (Way(True, "off"), 12.2),
    (Way(True, "off", budget=0.5), 9.8),
]


@pytest.mark.parametrize(("way", "measured"), H100)
def test_the_peak_of_a_step_is_what_an_h100_showed(way: Way, measured: float) -> None:
    denoiser = flux(4, 8)
    layers = trained_layers(denoiser, FACTS.default_targets, ())
    lora = sum(32 * (inner + outer) for inner, outer in layers.values())
    paths = trained(denoiser, FACTS.default_targets)
    held = training_bytes(denoiser, MEMORY, Work(1, 4096, 512), 32, paths, way, MIXED)
    copies = 2 * lora if way.checkpointing == "off" else 0
    estimation = denoiser.count * 2 + lora * 16 + copies + held.total + WORKSPACE
    assert estimation / 1e9 == pytest.approx(measured, rel=0.03)


def test_more_of_anything_is_more_memory() -> None:
    denoiser = flux(1, 1)
    layers = trained(denoiser, FACTS.default_targets)
    block, layer_facts = denoiser.blocks[0], MEMORY.blocks[0]

    def size(work: Work, rank: int = 16, paths: set[str] = layers["double"]) -> int:
        return block_bytes(block, layer_facts, work, rank, paths, MIXED)

    least = size(Work(1, 1024, 128))
    assert size(Work(2, 1024, 128)) > 2 * least * 0.95
    assert size(Work(1, 2048, 128)) > least and size(Work(1, 1024, 512)) > least
    assert size(Work(1, 1024, 128), rank=128) > least > size(Work(1, 1024, 128), paths=set())
    assert forward_bytes(denoiser, MEMORY, Work(1, 1024, 128), MIXED, compiled=False) < least


def test_checkpointing_keeps_inputs_and_offload_keeps_them_on_the_host() -> None:
    denoiser = flux(2, 2)
    layers = trained(denoiser, FACTS.default_targets)

    def held(kind: str):  # noqa: ANN202 - Held
        return training_bytes(denoiser, MEMORY, Work(1, 4096, 512), 16, layers, Way(False, kind), MIXED)

    whole, block, offloaded, half = (held(kind) for kind in ("off", "block", "offload", "selective"))
    assert whole.total > half.total > block.total > offloaded.total
    # 4608 tokens of 3072 numbers, and of 24 heads a float32 number each, of four blocks
    assert held("attention").total - block.total == 4 * 4608 * (3072 * 2 + 24 * 4)
    assert block.host == 0 and offloaded.host == 4 * 2**25, "28 MB each, pinned in powers of two"


def test_a_family_without_figures_is_still_planned_within_a_factor() -> None:
    denoiser = flux(2, 2)
    layers = trained(denoiser, FACTS.default_targets)
    way, work = Way(False, "off"), Work(1, 1024, 512)
    known = training_bytes(denoiser, MEMORY, work, 16, layers, way, MIXED).total
    rough = training_bytes(denoiser, None, work, 16, layers, way, MIXED).total
    assert 0.6 * known < rough < 1.6 * known
