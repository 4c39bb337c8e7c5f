"""CUDA graphs of a denoiser's training pass: what Python launches kernel by kernel, recorded once a shape and replayed.

A LoRA's step launches thousands of small kernels, which on a fast card takes several times as long as running them. The
forward and the backward pass of each shape of inputs are recorded as they run, compiled blocks included. All recordings
share their memory: one step is done with it before the next begins.
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

log = logging.getLogger(__name__)

Leaves = list[Any]


def record(denoiser: nn.Module, on_failure: Callable[[str], None] = lambda why: None) -> Recorder:
    """Have the denoiser's training passes recorded from now on; called when it has its LoRA."""
    denoiser._monotile_recorder = Recorder(denoiser, on_failure)
    return denoiser._monotile_recorder


def recorded(denoiser: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of `function`, the part of the denoiser's pass that is recorded where it has a recorder."""
    recorder = getattr(denoiser, "_monotile_recorder", None)
    return function if recorder is None else functools.partial(recorder, function)


class Recorder:
    """Calls functions that compute tensors from tensors and `module`'s weights, and records what they launch.

    A shape's first pass runs as it is, which compiles what has to be; its second is recorded, and those after it are
    replayed. The passes before one that is recorded must be done with, their losses gone. Passes without gradients are
    never recorded. Where recording fails, the run goes on without.

    A weight that lies elsewhere at a later pass, since it was not changed in place, makes all recordings void.
    on_failure: told why nothing is recorded any more, as is `failed`. made: gradients of `trained`, where the backward
    pass of every recording writes them.
    """

    def __init__(self, module: nn.Module, on_failure: Callable[[str], None]) -> None:
        self.on_failure = on_failure
        self._weights = list(module.parameters())
        self.trained = [weight for weight in self._weights if weight.requires_grad]
        self.recordings: dict[Hashable, _Recording] = {}
        self.failed = ""
        self._seen: set[Hashable] = set()
        self._places: tuple[int, ...] = ()
        self.made = [torch.zeros_like(weight) for weight in self.trained]
        self._gradients = [torch.zeros_like(weight) for weight in self.trained]
        self._pool: Any = None

    def __call__(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled() or self.failed:
            return function(*given, **named)
        leaves, form = tree_flatten((given, named))
        recording = self._recording(function, leaves, form)
        return function(*given, **named) if recording is None else recording(leaves)

    def _recording(self, function: Callable[..., Any], leaves: Leaves, form: TreeSpec) -> _Recording | None:
        """That of inputs of this shape, made where it is the second time; None for a pass that runs as it is."""
        key = _key(leaves, form)
        if key is None:
            return None
        self._check_places()
        if key not in self._seen:
            self._seen.add(key)
            return None
        if key not in self.recordings:
            self._record(key, function, leaves, form)
        return self.recordings.get(key)

    def _check_places(self) -> None:
        """Forget recordings of weights that have moved: they would read what lies there now."""
        places = tuple(weight.data_ptr() for weight in self._weights)
        if places != self._places:
            self.recordings.clear()
            self._places, self._pool = places, None

    def _record(self, key: Hashable, function: Callable[..., Any], leaves: Leaves, form: TreeSpec) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Passes that are not done with hold what leads to the weights' gradients, on the stream that they ran on.
        gc.collect()
        try:
            self.recordings[key] = _Recording(self, function, leaves, form, self._pool)
        except Exception as error:
            # Anything: each library refuses to be recorded in its own way, and the run can go on without.
            self.failed = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            self.recordings.clear()
            torch.cuda.synchronize()
            log.warning("CUDA graphs are left out, since recording failed: %s", self.failed)
            self.on_failure(self.failed)
        else:
            log.info("recorded CUDA graphs of shape %d", len(self.recordings))

    def add_gradients(self, reached: Sequence[bool]) -> None:
        """Add what a backward pass made to the gradients of the weights that it reached, as autograd would have."""
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        summed: tuple[list[Tensor], list[Tensor]] = ([], [])
        for weight, place, gradient, found in zip(self.trained, self._gradients, self.made, reached, strict=True):
            if not found:
                continue
            if weight.grad is None:
                # Not `made` itself: the next backward pass overwrites it.
                weight.grad = place
                kept[0].append(place)
                kept[1].append(gradient)
            else:
                summed[0].append(weight.grad)
                summed[1].append(gradient)
        if kept[0]:
            torch._foreach_copy_(*kept)
        if summed[0]:
            torch._foreach_add_(*summed)


def _key(leaves: Leaves, form: TreeSpec) -> Hashable | None:
    """What tells two shapes apart; None for inputs that can't be recorded: not on a card, or not plain values."""
    facts: list[Hashable] = [str(form)]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            if not leaf.is_cuda:
                return None
            facts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad))
        elif isinstance(leaf, bool | int | float | str | None) or callable(leaf):
            facts.append(leaf)
        else:
            return None
    return tuple(facts)


class _Recording:
    """The forward and the backward pass of one shape, with the tensors that they read and write."""

    def __init__(
        self, recorder: Recorder, function: Callable[..., Any], leaves: Leaves, form: TreeSpec, pool: Any
    ) -> None:
        self.recorder = recorder
        self.inputs = [
            leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        self._tensors = [leaf for leaf in self.inputs if isinstance(leaf, Tensor)]
        self._inner = [leaf for leaf in self._tensors if leaf.requires_grad]
        self._anchor = torch.zeros((), device=self._tensors[0].device, requires_grad=True)
        wanted = [*self._inner, *recorder.trained]

        def forward() -> tuple[Leaves, TreeSpec]:
            # What autocast has cast before is not part of a recording, and what a recording casts is not for others.
            torch.clear_autocast_cache()
            given, named = tree_unflatten(self.inputs, form)
            out = tree_flatten(function(*given, **named))
            torch.clear_autocast_cache()
            return out

        def backward(outputs: Leaves, gradients: Leaves) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

        # Libraries make what they need on a stream at their first call there, which can't be recorded.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs, _ = forward()
            backward(outputs, [torch.zeros_like(out) for out in outputs])
            del outputs
        torch.cuda.current_stream().wait_stream(stream)

        # Threads of ours read the card's memory meanwhile: only this thread is held to what can be recorded.
        how = {"pool": pool, "capture_error_mode": "thread_local"}
        self.forward, self.backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.forward, **how):
            outputs, self.form = forward()
        self.douts = [torch.empty_like(out) for out in outputs]
        with torch.cuda.graph(self.backward, **how):
            gradients = backward(outputs, self.douts)
            self.made_inner, made = gradients[: len(self._inner)], gradients[len(self._inner) :]
            self.reached = [gradient is not None for gradient in made]
            places = [place for place, found in zip(recorder.made, self.reached, strict=True) if found]
            torch._foreach_copy_(places, [gradient for gradient in made if gradient is not None])
            # Gone before the next recording, which then makes its own in the same memory.
            del gradients, made
        self.outputs = [out.detach() for out in outputs]

    def __call__(self, leaves: Leaves) -> Any:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        outputs = _Replay.apply(self, self._anchor, *tensors)
        return tree_unflatten(list(outputs), self.form)

    def read(self, tensors: Sequence[Tensor]) -> None:
        """Take the values of this pass's inputs."""
        with torch.no_grad():
            torch._foreach_copy_(self._tensors, list(tensors))


class _Replay(torch.autograd.Function):
    """A recording as autograd sees it; gradients of weights are added by hand, so that they are no inputs of it."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, anchor: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        ctx.inner = [tensor.requires_grad for tensor in tensors]
        recording.read(tensors)
        recording.forward.replay()
        return tuple(out.detach() for out in recording.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *douts: Tensor) -> tuple[Tensor | None, ...]:
        recording = ctx.recording
        torch._foreach_copy_(recording.douts, list(douts))
        recording.backward.replay()
        recording.recorder.add_gradients(recording.reached)
        inner = iter(recording.made_inner)
        passed = (next(inner) if wanted else None for wanted in ctx.inner)
        return None, None, *(None if gradient is None else gradient.clone() for gradient in passed)
