"""Replays one shape's forward and backward pass as CUDA graphs, compared with the plain pass before first use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from backend.compile.cuda_graphs import capture

Leaves = list[Any]

_APART = 0.02
"""Most that a replay may differ from the plain pass, as a share of its length: flash attention's backward pass adds in
another order each time, which in bf16 is a thousandth; what a recording gets wrong is wrong altogether."""


class Recording:
    """A function's forward and backward pass on inputs of one shape, with the tensors that they read and write.

    leaves, form: the inputs as `tree_flatten` gives them. trained: weights whose gradients the backward pass writes to
    `made`. add: called after each backward pass with whether it reached each of them. pool: memory to record in.
    timed: find what a forward and backward pass takes, `plain_seconds` and replayed `replay_seconds`. RuntimeError
    where a replay does not give what the plain pass gave; besides what a capture raises.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: Leaves,
        form: TreeSpec,
        trained: Sequence[Tensor],
        made: Sequence[Tensor],
        add: Callable[[Sequence[bool]], None],
        pool: Any,
        timed: bool = False,
    ) -> None:
        self._function, self._form, self._trained, self._made, self._add = function, form, trained, made, add
        self._inputs = [
            leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        self._tensors = [leaf for leaf in self._inputs if isinstance(leaf, Tensor)]
        self._inner = [leaf for leaf in self._tensors if leaf.requires_grad]
        self._anchor = torch.zeros((), device=self._tensors[0].device, requires_grad=True)
        self._state = capture.random_state()
        with capture.aside():
            # A stream's first pass takes memory of its own, which would count.
            self.plain_seconds = self._seconds_of(self._run_once) if timed else 0.0
            outputs, inner, gradients = self._run_plainly()
        self._capture(pool)
        # So would the first replay, which brings the graph to the GPU.
        self.replay_seconds = self._seconds_of(self._replay_once) if timed else 0.0
        self._check(outputs, inner, gradients)

    @property
    def gain(self) -> float:
        """The part of a forward and backward pass that a replay saves, where both were timed."""
        return 1 - self.replay_seconds / self.plain_seconds if self.plain_seconds else 0.0

    def _run_once(self) -> None:
        outputs, _ = self._forward()
        self._backward(outputs, [out.detach() for out in outputs])

    def _replay_once(self) -> None:
        self._replay_forward()
        self._replay_backward()

    def _run_plainly(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Outputs, and the gradients of inputs and of weights for gradients that are the outputs themselves.

        Any would do, and these are of the size that they ought to be.
        """
        capture.set_random_state(self._state)
        outputs, _ = self._forward()
        kept = [out.detach().clone() for out in outputs]
        return kept, *self._parted(self._backward(outputs, list(kept)))

    def _seconds_of(self, run: Callable[[], Any]) -> float:
        """What a pass takes at its second time."""
        run()
        capture.wait()
        began = time.perf_counter()
        run()
        capture.wait()
        return time.perf_counter() - began

    def _forward(self) -> tuple[Leaves, TreeSpec]:
        arguments, named = tree_unflatten(self._inputs, self._form)
        with _without_cast_cache():
            return tree_flatten(self._function(*arguments, **named))

    def _backward(self, outputs: Leaves, gradients: Leaves) -> tuple[Tensor | None, ...]:
        # Blocks that are computed a second time cast again. A backward pass runs outside of autocast.
        with _without_cast_cache(), torch.autocast(self._anchor.device.type, enabled=False):
            return torch.autograd.grad(outputs, [*self._inner, *self._trained], gradients, allow_unused=True)

    def _parted(self, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
        """Those of inputs and those of weights, where there are any."""
        count = len(self._inner)
        return [g for g in gradients[:count] if g is not None], [g for g in gradients[count:] if g is not None]

    def _capture(self, pool: Any) -> None:
        self._replay_forward, (outputs, self._out_form) = capture.captured(pool, self._forward)
        self._douts = [torch.empty_like(out) for out in outputs]

        def backward() -> tuple[Tensor | None, ...]:
            gradients = self._backward(outputs, self._douts)
            inner, made = gradients[: len(self._inner)], gradients[len(self._inner) :]
            self._reached = [gradient is not None for gradient in made]
            torch._foreach_copy_(self._places(), [gradient for gradient in made if gradient is not None])
            # Those of weights are gone before the next recording, which then makes its own in the same memory.
            return inner

        self._replay_backward, self._made_inner = capture.captured(pool, backward)
        self._outputs = [out.detach() for out in outputs]

    def _places(self) -> list[Tensor]:
        return [place for place, is_reached in zip(self._made, self._reached, strict=True) if is_reached]

    def _check(self, outputs: list[Tensor], inner: list[Tensor], gradients: list[Tensor]) -> None:
        """Replay once on the inputs of the plain pass, which gave these."""
        capture.set_random_state(self._state)
        self._replay_forward()
        torch._foreach_copy_(self._douts, outputs)
        compare("outputs", self._outputs, outputs)
        self._replay_backward()
        compare("gradients of inputs", [gradient for gradient in self._made_inner if gradient is not None], inner)
        compare("gradients", self._places(), gradients)

    def __call__(self, leaves: Leaves) -> Any:
        """The function's result for inputs of this shape."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return tree_unflatten(list(_Replay.apply(self, self._anchor, *tensors)), self._out_form)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay the forward pass on these inputs."""
        torch._foreach_copy_(self._tensors, list(tensors))
        self._replay_forward()
        return tuple(out.detach() for out in self._outputs)

    def backward(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay the backward pass for these gradients of the outputs: those of the inputs that want one."""
        torch._foreach_copy_(self._douts, list(gradients))
        self._replay_backward()
        self._add(self._reached)
        return [None if gradient is None else gradient.clone() for gradient in self._made_inner]


class _Replay(torch.autograd.Function):
    """A recording as autograd sees it; gradients of weights are added by hand, so that they are no inputs of it."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        ctx.inner = [tensor.requires_grad for tensor in tensors]
        return recording.forward(tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        inner = iter(ctx.recording.backward(douts))
        return None, None, *(next(inner) if wanted else None for wanted in ctx.inner)


@contextmanager
def _without_cast_cache() -> Iterator[None]:
    """What autocast has cast before is no part of a recording, and what a recording casts is not for others."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def compare(what: str, recorded: Sequence[Tensor], plain: Sequence[Tensor]) -> None:
    """RuntimeError where a replay's tensors are not those of the plain pass."""
    if not plain:
        return
    size, apart = _length(plain), _length(torch._foreach_sub(list(recorded), list(plain)))
    # Where the plain pass overflowed, as fp16 does at its first steps, there is nothing to compare with.
    if math.isfinite(size) and not apart <= _APART * size:
        raise RuntimeError(f"replayed {what} are not those of the plain pass, but {apart:.2g} of {size:.2g} apart")


def _length(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm of all of them together, with one wait for the device."""
    return float(torch.stack(torch._foreach_norm(list(tensors), 2, dtype=torch.float32)).norm())
