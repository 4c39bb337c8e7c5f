"""Block swap gives the unswapped run bit by bit; evicted weights are NaN, so that a late copy can't pass unseen."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from backend.memory.block_swap import BlockSwap
from backend.memory.block_tracker import BlockTracker
from backend.memory.host_block import HostBlock, host_memory
from backend.plan.memory.swap import device_bytes, moved_per_batch, swapped_blocks
from tests.tiny.blocks import Counting, Stack
from tests.tiny.swapping import Training, sparse_lora

CPU = torch.device("cpu")


@cache
def unswapped(steps: int, accumulation: int) -> tuple[list[float], dict[str, torch.Tensor]]:
    plain = Training(0)
    return plain.run(steps, accumulation, validate_every=2), plain.lora()


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
@pytest.mark.parametrize(
    ("count", "ring", "steps", "accumulation"), [(4, 2, 6, 1), (5, 2, 3, 3), (3, 3, 3, 3), (1, 2, 3, 3)]
)
def test_eager_runs_are_equal_bit_by_bit(
    checkpointing: bool, count: int, ring: int, steps: int, accumulation: int
) -> None:
    """Losses of all batches, validations between, and the LoRA at the end."""
    losses, lora = unswapped(steps, accumulation)
    swapped = Training(count, ring=ring, checkpointing=checkpointing)
    assert swapped.run(steps, accumulation, validate_every=2) == losses
    assert all(torch.equal(tensor, lora[name]) for name, tensor in swapped.lora().items())


def test_compiled_runs_are_equal_and_have_the_same_graphs() -> None:
    """aot_eager saves weights, and views of them, for the backward graph, as inductor does.

    The swapped run calls the graphs of the other and needs no more; test_compile_health.py has both with checkpointing.
    """
    plain = Training(0, backend="aot_eager", model=sparse_lora())
    losses = plain.run(6, 1, validate_every=4)
    swapped = Training(4, backend="aot_eager", model=sparse_lora(), fresh=False)
    assert swapped.run(6, 1, validate_every=4) == losses
    assert (plain.stats.graphs, swapped.stats.graphs) == (4, 0)
    assert (swapped.stats.recompiles, swapped.stats.breaks) == (0, 0)
    assert all(torch.equal(tensor, plain.lora()[name]) for name, tensor in swapped.lora().items())


@pytest.mark.parametrize(("mode", "dynamic"), [("dynamic", "auto"), ("off", "auto")])
def test_no_shape_mode_makes_more_graphs(mode: str, dynamic: str) -> None:
    """Views at other offsets of one memory are no other inputs, fixed shapes or not. One block class is traced."""
    counts, counting = [], Counting()
    for count in (0, 4):
        how = {"backend": counting, "compiled": ("single",), "mode": mode, "dynamic": dynamic}
        Training(count, **how, model=sparse_lora(), fresh=not count).run(5, 1, validate_every=100)
        counts.append(len(counting.graphs))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("kind", ["attention", "offload", "selective"])
def test_other_kinds_of_checkpointing(kind: str) -> None:
    losses, lora = unswapped(3, 3)
    swapped = Training(4, kind=kind)
    assert swapped.run(3, 3, validate_every=2) == losses
    assert all(torch.equal(tensor, lora[name]) for name, tensor in swapped.lora().items())


@pytest.mark.slow
def test_inductor_is_equal_too() -> None:
    """One block class, its graphs that train: both classes, and those without gradients, are seen above.

    test_pipeline.py of the preview has inductor's without gradients.
    """
    eager = Training(0, model=sparse_lora()).run(4, 2)
    single = {"backend": "inductor", "compiled": ("single",)}
    plain = Training(0, **single, model=sparse_lora())
    losses = plain.run(4, 2)
    assert losses == pytest.approx(eager, rel=1e-4)
    swapped = Training(4, **single, model=sparse_lora(), fresh=False)
    assert swapped.run(4, 2) == losses
    assert (plain.stats.graphs, swapped.stats.graphs, swapped.stats.recompiles) == (1, 0, 0)


def test_linear_layers_left_out_train_the_same() -> None:
    """Breaks split the saved tensors over many small graphs; pieces made once a shape are no recompiles.

    One block class is compiled; auto, which leaves none out, is in test_swap_run.py.
    """
    losses = Training(0, model=sparse_lora()).run(4, validate_every=3)
    single = {"compiled": ("single",), "checkpointing": True}
    swapped = Training(4, backend=Counting(), linear="on", **single, model=sparse_lora())
    assert swapped.report is not None and swapped.report.disable_linear
    assert swapped.run(4, validate_every=3) == pytest.approx(losses, rel=1e-6)
    assert swapped.stats.breaks > 0


def test_a_backward_without_its_hook_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests rest on: weights that are not brought back make NaN, or the loss of other weights."""
    monkeypatch.setattr(BlockTracker, "_before_backward", lambda self, position, gradient: None)
    losses, _ = unswapped(3, 3)
    assert Training(4).run(3, 3, validate_every=2) != losses


def test_a_forward_without_its_hook_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockTracker, "_before", lambda self, *_: None)
    assert all(loss != loss for loss in Training(5, ring=2).run(2))


def test_transfers_are_the_planned_ones() -> None:
    """One load a block and pass, and none at the turns, where the ring already holds what comes first."""
    training = Training(4)
    training.run(3, validate_every=100)
    assert training.swap is not None
    before = training.swap.loads
    training.run(2, validate_every=100)
    assert training.swap.loads - before == 2 * 2 * (4 - 2)
    sizes = [block.nbytes for block in training.swap._held]
    assert training.swap.facts.moved == moved_per_batch(sizes, 2) == sum(sizes[2:]) + sum(sizes[:2])


def test_waits_are_counted_anew() -> None:
    training = Training(4)
    training.run(1)
    assert training.swap is not None
    waited = training.swap.take_waits()
    assert waited() > 0 and training.swap.take_waits()() == 0.0


def test_close_gives_the_weights_back() -> None:
    plain = Training(0).model.state_dict()
    training = Training(5)
    assert training.swap is not None
    training.swap.close()
    state = training.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.items())
    assert not any(block._forward_pre_hooks for stack in training.lists.values() for block in stack)


def test_nothing_of_an_evicted_block_stays_on_the_device() -> None:
    """Every swapped weight is a view into the ring: saved tensors can keep nothing else alive."""
    training = Training(5)
    assert training.swap is not None
    places = {place.flat.untyped_storage().data_ptr() for place in training.swap._ring.places}
    for stack in training.lists.values():
        for name, parameter in stack.named_parameters():
            inside = parameter.untyped_storage().data_ptr() in places
            assert inside != parameter.requires_grad, name


def test_blocks_are_spread_evenly() -> None:
    assert swapped_blocks({"double": 4, "single": 8}, 6) == {"double": [1, 3], "single": [1, 3, 5, 7]}
    assert swapped_blocks({"double": 2, "single": 3}, 5) == {"double": [0, 1], "single": [0, 1, 2]}
    assert swapped_blocks({"double": 2, "single": 3}, 1) == {"double": [], "single": [2]}
    for count in range(58):
        assert sum(map(len, swapped_blocks({"double": 19, "single": 38}, count).values())) == count
    with pytest.raises(ValueError, match="58 blocks .* has 57"):
        swapped_blocks({"double": 19, "single": 38}, 58)
    assert device_bytes([3, 5, 4], 2) == 10 and moved_per_batch([3, 5], 2) == 0


class Mixed(nn.Module):
    """A block as a quantised one is built: frozen tensors of several formats and strides, parameters and buffers."""

    def __init__(self, shared: nn.Parameter) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(6, 4).t(), requires_grad=False)
        self.bytes = nn.Parameter(torch.randint(-128, 127, (5, 3), dtype=torch.int8), requires_grad=False)
        self.register_buffer("scale", torch.rand(5, dtype=torch.float32))
        self.register_buffer("eighth", torch.rand(4, 4).to(torch.float8_e4m3fn), persistent=False)
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("none", torch.empty(0))
        self.same = self.turned
        self.shared = shared
        self.trained = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.bytes[:4].float().sum() * self.scale.sum() + self.eighth.float().sum() + self.count
        return x @ self.turned @ self.same.t() * weight * self.trained + self.shared


def test_any_format_stride_and_sharing() -> None:
    torch.manual_seed(0)
    shared = nn.Parameter(torch.randn(4), requires_grad=False)
    model = nn.ModuleList(Mixed(shared) for _ in range(4))
    x = torch.randn(2, 4)

    def outputs() -> tuple[torch.Tensor, list[torch.Tensor]]:
        y = x
        for block in model:
            y = block(y).tanh()
        y.sum().backward()
        grads = [block.trained.grad for block in model]
        for block in model:
            block.trained.grad = None
        return y.detach(), grads

    wanted = outputs()
    strides = [block.turned.stride() for block in model]
    swap = BlockSwap(nn.ModuleDict({"stack": model}), {"mixed": model}, 4, CPU, poison=True)
    for _ in range(2):
        results = outputs()
        assert torch.equal(results[0], wanted[0])
        assert all(torch.equal(a, b) for a, b in zip(results[1], wanted[1], strict=True))
    assert [block.turned.stride() for block in model] == strides
    assert all(block.same is block.turned and block.shared is shared for block in model)
    places = {place.flat.untyped_storage().data_ptr() for place in swap._ring.places}
    assert shared.untyped_storage().data_ptr() not in places


def test_host_memory_has_its_pages_for_itself() -> None:
    flat = host_memory(10_000)
    assert flat.data_ptr() % 4096 == 0 and flat.numel() == 12_288


def test_a_block_is_one_aligned_piece() -> None:
    block = HostBlock("first block 0", Stack().requires_grad_(False).firsts[0])
    assert all(piece.offset % 256 == 0 for piece in block._pieces) and block.nbytes == 768 + 32
