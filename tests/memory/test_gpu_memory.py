"""Memory on a real card: a real out-of-memory under a cap, and the estimate of a step against its peak."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.families.flux.facts import FACTS, MEMORY
from backend.memory.exclusive_device import offloaded
from backend.models.family_classes import load_family
from backend.plan.memory.activations import Format, Way, Work, training_bytes
from backend.plan.memory.estimate import WORKSPACE
from backend.plan.memory.parts import denoiser_of, trained_layers
from backend.training.expected_memory import limit
from backend.training.trainer import Trainer
from tests.tiny.training import config, events, lora_of, same, train_here

pytestmark = pytest.mark.gpu


@pytest.fixture
def card() -> Any:
    """The first card, without a cap afterwards."""
    yield torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def test_a_full_card_keeps_the_last_whole_step(
    card: torch.device, tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, code = train_here(config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 5}))
    assert code == 0
    plain, calls = Trainer.loss, []

    def hungry(self: Trainer, batch: Any) -> Any:
        calls.append(batch)
        if len(calls) == 4:
            torch.empty(3 * 2**30, dtype=torch.uint8, device=card)
        return plain(self, batch)

    cfg = config(tiny_flux, image_folder, tmp_path, training={"max_train_steps": 5}, memory={"vram_limit_gb": 2})
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "loss", hungry)
        run, code = train_here(cfg)
    assert code == 1
    (error,) = events(run, "error")
    assert error["error_kind"] == "cuda_oom" and "3.0 GB more were needed" in error["text"], error
    assert "step 4" in error["text"] and "The LoRA of step 3 is kept" in error["text"]
    run, code = train_here(cfg, run=run, resume=True)
    assert code == 0 and same(lora_of(run), lora_of(whole))


def test_a_limit_is_the_allocators(card: torch.device) -> None:
    limit(2, card)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * 2**30, dtype=torch.uint8, device=card)
    torch.empty(2**30, dtype=torch.uint8, device=card)


def test_weights_that_are_away_leave_the_card(card: torch.device) -> None:
    model = torch.nn.Linear(4096, 4096, device=card, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(2, 4096, device=card, dtype=torch.bfloat16)
    before, held = model(x), torch.cuda.memory_allocated(card)
    with offloaded(model, card):
        assert torch.cuda.memory_allocated(card) <= held - 2 * 4096 * 4096
    assert torch.equal(model(x), before)


@pytest.mark.parametrize(
    ("double", "single", "side", "batch", "rank", "checkpointing"),
    [(2, 2, 48, 2, 16, False), (2, 2, 64, 1, 64, True), (1, 4, 64, 2, 16, True)],
)
def test_the_estimate_of_a_step_is_its_peak_within_15_percent(
    card: torch.device, double: int, single: int, side: int, batch: int, rank: int, checkpointing: bool
) -> None:
    from backend.lora.inject import find_targets, inject
    from backend.shapes import attention_routes
    from backend.shapes.shape_runtime import ShapeRuntime
    from tests.tiny.kept import empty_flux

    gc.collect()
    torch.cuda.empty_cache()
    model = empty_flux(double, single).to_empty(device=card)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    denoiser = denoiser_of({name: tuple(p.shape) for name, p in model.named_parameters()}, FACTS)
    targets = find_targets(model, FACTS.default_targets)
    lora = inject(model, targets, rank=rank, alpha=rank, dropout=0, seed=0, cast=False)
    if checkpointing:
        model.enable_gradient_checkpointing()
    optimizer = torch.optim.AdamW(lora.parameters(), fused=True)
    shapes = ShapeRuntime("off", None, None, 512, attention_routes.choose_route("sdpa", card, torch.bfloat16))
    words = {
        "prompt_embeds": torch.zeros(512, 4096, device=card, dtype=torch.bfloat16),
        "pooled": torch.zeros(768, device=card, dtype=torch.bfloat16),
    }
    latents = [torch.randn(16, 2 * side, 2 * side, device=card) for _ in range(batch)]
    torch.cuda.reset_peak_memory_stats(card)
    for _ in range(2):
        sigma = torch.full((batch,), 0.5, device=card)
        with torch.autocast("cuda", torch.bfloat16):
            out = load_family("flux").predict(model.train(), latents, sigma, [words] * batch, 1.0, shapes)
        torch.stack([x.square().mean() for x in out]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated(card)
    layers = trained_layers(denoiser, FACTS.default_targets, ())
    numbers = sum(rank * (inner + outer) for inner, outer in layers.values())
    paths = {
        block.name: {name.split(".", 2)[2] for name in layers if name.startswith(f"{block.attribute}.")}
        for block in FACTS.block_classes
    }
    way = Way(False, "block" if checkpointing else "off")
    held = training_bytes(denoiser, MEMORY, Work(batch, side * side, 512), rank, paths, way, Format())
    copies = 0 if checkpointing else 2 * numbers
    estimation = denoiser.count * 2 + numbers * 16 + copies + held.total + WORKSPACE
    assert estimation == pytest.approx(peak, rel=0.15), f"estimated {estimation / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB"
