"""Block swap on a card: a stream of its own, pinned memory, places that hold NaN until a late copy has filled them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backend.memory.block_swap import BlockSwap
from backend.memory.host_block import _pin, _unpin
from tests.tiny.blocks import Stack, lists
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.swapping import DOUBLE, SINGLE, Training

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["off", "auto", "block", "offload", "selective"])
@pytest.mark.parametrize("backend", [None, "aot_eager_decomp_partition"])
def test_the_loss_is_that_of_the_unswapped_run(backend: str | None, kind: str) -> None:
    """Copies begin ten milliseconds late: a kernel that does not wait for them computes NaN."""
    steps = 50 if kind == "off" and backend is None else 10
    plain = Training(0, device="cuda", backend=backend, kind=kind).run(steps, 2)
    swapped = Training(4, device="cuda", backend=backend, kind=kind)
    assert swapped.run(steps, 2) == pytest.approx(plain, rel=1e-5)
    assert swapped.swap is not None and swapped.swap.take_waits()() > 0
    if backend is not None:
        assert (swapped.stats.graphs, swapped.stats.recompiles, swapped.stats.breaks) == (4, 0, 0)


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
@pytest.mark.parametrize(("backend", "kind"), [(None, "off"), (None, "block"), ("aot_eager_decomp_partition", "auto")])
def test_trained_weights_go_back_and_come_again(backend: str | None, kind: str, optimizer: str) -> None:
    """Copies begin late both ways: a step on weights or state of before would change the run."""
    how = {"device": "cuda", "backend": backend, "kind": kind, "full": optimizer}
    plain = Training(0, model=make_tiny_denoiser(DOUBLE, SINGLE).train().requires_grad_(True), **how)
    losses = plain.run(10)
    swapped = Training(5, model=make_tiny_denoiser(DOUBLE, SINGLE).train().requires_grad_(True), **how)
    assert swapped.run(10) == pytest.approx(losses, rel=1e-4)
    weights = swapped.weights()
    assert all(torch.allclose(value, weights[name], rtol=1e-3, atol=1e-4) for name, value in plain.weights().items())


@pytest.mark.slow
def test_inductor_in_bf16() -> None:
    plain = Training(0, device="cuda", backend="inductor", dtype=torch.bfloat16).run(10, 2)
    swapped = Training(5, device="cuda", backend="inductor", dtype=torch.bfloat16, ring=3)
    assert swapped.run(10, 2) == pytest.approx(plain, rel=1e-3)


def test_a_copy_that_is_not_waited_for_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.memory.swap_ring import Ring

    monkeypatch.setattr(Ring, "wait", lambda self, index: None)
    losses = Training(5, device="cuda").run(3)
    assert any(loss != loss for loss in losses)


def large(blocks: int = 8, width: int = 2048) -> Stack:
    stack = Stack(count=0)
    stack.firsts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))
    return stack.requires_grad_(False)


def test_swapped_weights_are_pinned_and_never_on_the_card() -> None:
    """From the host, as the loader leaves them: the card holds the ring and nothing else, at any time."""
    stack = large()
    size = stack.firsts[0].weight.numel() * 4
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    swap = BlockSwap(stack, lists(stack), 8, torch.device("cuda"))
    facts = swap.facts
    assert facts.pinned == facts.host == 8 * size and facts.rate > 1e9
    # What is pinned can't be pinned again. (Tensor.is_pinned said no on a card whose copies ran at 54 GB/s.)
    assert not any(_pin(block.flat) for block in swap._held)
    with torch.no_grad():
        assert torch.isfinite(stack(torch.randn(4, 2048, device="cuda"))).all()
    assert torch.cuda.max_memory_allocated() - before < 2.5 * size
    swap.close()
    for block in swap._held:
        assert _pin(block.flat), "free of it"
        _unpin(block.flat)


def test_the_pinned_limit_holds_and_the_rest_is_told() -> None:
    stack = large()
    x = torch.randn(4, 2048)
    wanted = stack(x)
    size = stack.firsts[0].weight.numel() * 4
    swap = BlockSwap(stack, lists(stack), 8, torch.device("cuda"), pinned_limit_gb=3.5 * size / 1e9)
    assert swap.facts.pinned == 3 * size
    assert any("could not be pinned" in line for line in swap.facts.lines())
    for _ in range(2):
        torch.testing.assert_close(stack(x.cuda()).cpu(), wanted, rtol=1e-3, atol=1e-3)
    swap.close()
