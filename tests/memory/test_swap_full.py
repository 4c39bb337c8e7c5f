"""Trained weights under block swap: the unswapped run bit by bit, with evicted weights NaN, and state on the host."""

from __future__ import annotations

import copy
import io
from functools import cache

import pytest
import torch
from torch import Tensor

from backend.memory.swap_ring import Ring
from backend.optimizers.state import ExactState
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.swapping import DOUBLE, SINGLE, Training


def training(count: int, dtype: torch.dtype = torch.float32, optimizer: str = "adamw", **how: object) -> Training:
    model = make_tiny_denoiser(DOUBLE, SINGLE).to(dtype).train().requires_grad_(True)
    return Training(count, model=model, dtype=dtype, full=optimizer, **how)  # type: ignore[arg-type]


@cache
def unswapped(steps: int, dtype: torch.dtype, optimizer: str) -> tuple[list[float], dict[str, Tensor]]:
    torch.manual_seed(0)
    plain = training(0, dtype, optimizer)
    return plain.run(steps, validate_every=3), plain.weights()


def same(own: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return own.keys() == other.keys() and all(value.equal(other[name]) for name, value in own.items())


@pytest.mark.parametrize(
    ("count", "ring", "dtype", "optimizer", "checkpointing"),
    [
        (4, 2, torch.float32, "adamw", True),
        (5, 3, torch.bfloat16, "adamw", False),
        (5, 2, torch.bfloat16, "adafactor", True),
        (1, 2, torch.float32, "came", False),
    ],
)
def test_losses_and_weights_are_those_of_the_run_without(
    count: int, ring: int, dtype: torch.dtype, optimizer: str, checkpointing: bool
) -> None:
    """Validation in between, and rounding at random."""
    losses, weights = unswapped(4, dtype, optimizer)
    torch.manual_seed(0)
    swapped = training(count, dtype, optimizer, ring=ring, checkpointing=checkpointing)
    assert swapped.run(4, validate_every=3) == losses
    assert same(swapped.weights(), weights)
    assert swapped.swap is not None and swapped.swap.states is not None
    assert (swapped.swap.states.nbytes > 0) == (optimizer != "adafactor")
    # of the state's transfers too: what nobody counts would grow with each step
    swapped.swap.take_waits()
    assert not (swapped.swap.states.take_waits()())
    # what closing leaves are ordinary tensors with the same values
    swapped.swap.close()
    assert same({name: p.detach() for name, p in swapped.model.named_parameters()}, weights)


def test_compiled_blocks_have_the_same_graphs_and_none_twice() -> None:
    """One block class is compiled; addresses stay though weights change and move."""
    losses, _ = unswapped(4, torch.float32, "adamw")
    swapped = training(4, backend="aot_eager", compiled=("single",))
    assert swapped.run(4, validate_every=3) == pytest.approx(losses, rel=1e-5)
    assert (swapped.stats.graphs, swapped.stats.recompiles, swapped.stats.breaks) == (2, 0, 0)


def test_weights_that_do_not_go_back_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others rest on: a step that the host's memory does not get changes the run."""
    losses, _ = unswapped(4, torch.float32, "adamw")
    monkeypatch.setattr(Ring, "_store", lambda self, place: setattr(place, "changed", False))
    assert training(4).run(4, validate_every=3) != losses


def test_a_saved_state_continues_bit_by_bit_with_or_without_swap() -> None:
    """The optimizer's own state dict, through torch's file."""
    first = training(4)
    first.run(3)
    kept = io.BytesIO()
    torch.save(ExactState(first.optimizer).state_dict(), kept)
    weights = copy.deepcopy(first.weights())
    ends = []
    for count in (0, 4, 5):
        model = make_tiny_denoiser(DOUBLE, SINGLE)
        model.load_state_dict(weights)
        again = Training(count, model=model.train().requires_grad_(True), full="adamw")
        kept.seek(0)
        ExactState(again.optimizer).load_state_dict(torch.load(kept, weights_only=True))
        ends.append((again.run(3), again.weights()))
    (losses, plain), *others = ends
    assert all(own == losses and same(end, plain) for own, end in others)
    assert not same(plain, weights)
