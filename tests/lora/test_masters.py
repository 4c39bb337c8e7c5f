"""LoRA weights in bf16: float32 masters are trained, saved and resumed, and lose nothing to the rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.lora.inject import Lora, find_targets, inject
from backend.training.requests import Requests
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here


def made(weight_dtype: torch.dtype) -> Lora:
    model = make_tiny_denoiser(1, 1)
    targets = find_targets(model, ["attn.to_q"])
    return inject(model, targets, rank=4, alpha=4, dropout=0.0, seed=1, weight_dtype=weight_dtype)


def test_the_forward_sees_bf16_and_everybody_else_float32() -> None:
    narrow, wide = made(torch.bfloat16), made(torch.float32)
    assert same(narrow.tensors(), wide.tensors()), "the masters start where a float32 LoRA starts"
    for path in narrow.layers:
        for live, master in zip(narrow.live(path), narrow.pair(path), strict=True):
            assert live.dtype == torch.bfloat16 and torch.equal(live, master.bfloat16())
    assert all(p.dtype == torch.float32 and p.requires_grad and p.is_leaf for p in narrow.parameters())


def test_steps_below_bf16_add_up_and_gradients_are_summed_in_float32() -> None:
    lora = made(torch.bfloat16)
    path = next(iter(lora.layers))
    live, master = lora.live(path)[0], lora.pair(path)[0]
    before, rounded = master.detach().clone(), live.detach().clone()
    optimizer = torch.optim.SGD(lora.parameters(), lr=1.0)
    for _ in range(3):
        live.grad = torch.full_like(live, 1e-6)
        lora.collect_gradients()
        assert live.grad is None
    torch.testing.assert_close(master.grad, torch.full_like(master, 3 * torch.tensor(1e-6).bfloat16().item()))
    optimizer.step()
    lora.publish()
    assert (live == rounded).float().mean() > 0.8 and (master < before).float().mean() > 0.8
    for _ in range(2000):
        optimizer.step()
    lora.publish()
    assert torch.equal(live, master.bfloat16()) and not torch.equal(live, rounded)


def test_strength_and_restore_reach_the_forward() -> None:
    lora = made(torch.bfloat16)
    path = next(iter(lora.layers))
    kept = {name: torch.full_like(value, 0.3) for name, value in lora.tensors().items()}
    lora.restore(kept)
    b = lora.live(path)[1]
    assert torch.equal(b, torch.full_like(b, 0.3))
    with lora.scaled(0.5):
        assert (b == torch.tensor(0.3).bfloat16() * 0.5).all() and same(lora.tensors(), kept)
    assert torch.equal(b, torch.full_like(b, 0.3))


def test_a_run_follows_the_float32_one_and_goes_on_bit_by_bit(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cfg(dtype: str) -> object:
        return config(
            tiny_flux, image_folder, tmp_path,
            network={"lora_weight_dtype": dtype, "network_dropout": 0.2, "targets_include": ["attn.to_q", "ff.net.2"]},
            training={"max_train_steps": 5, "gradient_accumulation_steps": 2},
        )  # fmt: skip

    wide, code = train_here(cfg("fp32"))
    assert code == 0, events(wide, "error")
    straight, code = train_here(cfg("bf16"))
    assert code == 0, events(straight, "error")
    losses = [[row["loss"] for row in rows(run)] for run in (wide, straight)]
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=5e-3)
    assert same(lora_of(straight), {key: value.float() for key, value in lora_of(straight).items()})
    assert any(not torch.equal(value, value.bfloat16().float()) for value in lora_of(straight).values())

    looks: list[int] = []

    def stop(self: Requests) -> bool:
        looks.append(1)
        return len(looks) > 7

    monkeypatch.setattr(Requests, "stop", property(stop))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    run, code = train_here(cfg("bf16"))
    monkeypatch.undo()
    assert code == 0 and run.status().state == "stopped", events(run, "error")
    _, code = train_here(cfg("bf16"), run, resume=True)
    assert code == 0, events(run, "error")
    assert same(lora_of(run), lora_of(straight)) and same(state_of(run), state_of(straight))
