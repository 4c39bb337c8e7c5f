"""CUDA graphs of a denoiser's training pass: what Python launches kernel by kernel, recorded once a shape and replayed.

A LoRA's step launches thousands of small kernels, which on a fast card takes several times as long as running them. The
forward and the backward pass of each shape of inputs are recorded as they run, compiled blocks included. All recordings
share their memory: one step is done with it before the next begins. A recording serves only once its first replay has
given what the plain pass gave.
"""

from __future__ import annotations

import functools
import gc
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from backend.compile.worth import Trial, free_bytes

log = logging.getLogger(__name__)

Leaves = list[Any]
Tell = Callable[["Recorder"], object]

_ROOM = 1.3
"""Free memory that a further recording needs, in what those before keep: its shape's plain passes run beside them."""
_APART = 0.02
"""Most that a replay may differ from the plain pass, as a share of its length: flash attention's backward pass adds in
another order each time, which in bf16 is a thousandth; what a recording gets wrong is wrong altogether."""


def record(denoiser: nn.Module, tell: Tell = lambda recorder: None, trial: Trial | None = None) -> Recorder:
    """Have the denoiser's training passes recorded from now on; called when it has its LoRA."""
    denoiser._monotile_recorder = Recorder(denoiser, tell, trial)
    return denoiser._monotile_recorder


def recorded(denoiser: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of `function`, the part of the denoiser's pass that is recorded where it has a recorder."""
    recorder = getattr(denoiser, "_monotile_recorder", None)
    return function if recorder is None else functools.partial(recorder, function)


class Recorder:
    """Calls functions that compute tensors from tensors and `module`'s weights, and records what they launch.

    A shape's first pass runs as it is, which compiles what has to be; its second is recorded, and those after it are
    replayed. The passes before one that is recorded must be done with, their losses gone. Passes without gradients are
    never recorded. Where recording fails, or gives something else than the plain pass, the run goes on without.

    A weight that lies elsewhere at a later pass, since it was not changed in place, makes all recordings void.
    tell: called whenever something below has changed. trial: what finds out first whether recording pays.
    failed: why nothing is recorded any more, nor replayed. full: why further shapes are not recorded. seconds: spent
    recording. kept: bytes of the device that only recordings use. made: gradients of `trained`, where the backward pass
    of every recording writes them.
    """

    def __init__(self, module: nn.Module, tell: Tell, trial: Trial | None = None) -> None:
        self.tell = tell
        self.trial = trial
        self._weights = list(module.parameters())
        self.trained = [weight for weight in self._weights if weight.requires_grad]
        self.recordings: dict[Hashable, _Recording] = {}
        self.failed = ""
        self.full = ""
        self.seconds = 0.0
        self.kept = 0
        self._seen: set[Hashable] = set()
        self._places: tuple[int, ...] = ()
        self.made: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._pool: Any = None

    def __call__(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled() or self.failed or (self.trial is not None and self.trial.against):
            return function(*given, **named)
        leaves, form = tree_flatten((given, named))
        key = _key(leaves, form)
        if key is None:
            return function(*given, **named)
        self._check_places()
        if key not in self._seen or (self.full and key not in self.recordings):
            self._seen.add(key)
            return self._plain(function, *given, **named)
        if self.trial is not None and not self.trial.decided:
            return self._try(self.trial, function, *given, **named)
        if key not in self.recordings:
            self._record(key, function, leaves, form)
        recording = self.recordings.get(key)
        return self._plain(function, *given, **named) if recording is None else recording(leaves)

    def _plain(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """A pass as it is; where memory runs out beside the recordings, they go first."""
        try:
            return function(*given, **named)
        except torch.OutOfMemoryError:
            if not self.recordings:
                raise
        self._give_up("memory ran out beside them")
        return function(*given, **named)

    def _check_places(self) -> None:
        """Forget recordings of weights that have moved: they would read what lies there now."""
        places = tuple(weight.data_ptr() for weight in self._weights)
        if places != self._places:
            self._forget()
            self._places = places

    def _forget(self) -> None:
        self.recordings.clear()
        self._pool, self.kept = None, 0

    def _try(self, trial: Trial, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        out = trial(function, *given, **named)
        self.seconds += time.perf_counter() - started
        if trial.decided:
            log.info("CUDA graphs: %s", trial.words)
            self.tell(self)
        return out

    def _record(self, key: Hashable, function: Callable[..., Any], leaves: Leaves, form: TreeSpec) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # What recordings keep is free for no other, although torch counts it so.
        free = free_bytes() - self.kept
        if free < _ROOM * self.kept:
            self.full = f"{free / 1e9:.1f} GB of the card are free beside {len(self.recordings)} recorded shapes"
            log.info("CUDA graphs: further shapes run as they are: %s", self.full)
            self.tell(self)
            return
        self._make_places()
        # Passes that are not done with hold what leads to the weights' gradients, on the stream that they ran on.
        gc.collect()
        started, state = time.perf_counter(), torch.cuda.get_rng_state()
        try:
            self.recordings[key] = _Recording(self, function, leaves, form, self._pool)
        except Exception as error:
            # Anything: each library refuses to be recorded in its own way, and the run can go on without.
            why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        else:
            why = ""
        # What this pass drops is what it would have dropped without a recording.
        torch.cuda.set_rng_state(state)
        self.seconds += time.perf_counter() - started
        if why:
            self._give_up(why)
            return
        self.kept = _kept(self._pool)
        log.info("recorded CUDA graphs of shape %d", len(self.recordings))
        self.tell(self)

    def _give_up(self, why: str) -> None:
        self.failed = why
        log.warning("CUDA graphs are left out: %s", why)
        self._forget()
        self.made, self._gradients = [], []
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.tell(self)

    def _make_places(self) -> None:
        if not self.made:
            self.made = [torch.zeros_like(weight) for weight in self.trained]
            self._gradients = [torch.zeros_like(weight) for weight in self.trained]

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


@contextmanager
def _casting_anew() -> Iterator[None]:
    """What autocast has cast before is no part of a recording, and what a recording casts is not for others."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def _kept(pool: Any) -> int:
    """Bytes of the device that a pool of recordings keeps, less what torch counts as allocated there."""
    segments = torch.cuda.memory_snapshot(pool, include_traces=False)
    return sum(segment["total_size"] - segment["allocated_size"] for segment in segments)


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


def _compare(what: str, found: list[Tensor], plain: list[Tensor]) -> None:
    """RuntimeError where a replay's tensors are not those of the plain pass."""
    apart = _length([got.double() - want.double() for got, want in zip(found, plain, strict=True)])
    size = _length(plain)
    # Where the plain pass overflowed, as fp16 does at its first steps, there is nothing to hold it against.
    if math.isfinite(size) and not apart <= _APART * size:
        raise RuntimeError(f"replayed {what} are not those of the plain pass, but {apart:.2g} of {size:.2g} apart")


def _length(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm of all of them together."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))


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
            given, named = tree_unflatten(self.inputs, form)
            with _casting_anew():
                return tree_flatten(function(*given, **named))

        def backward(outputs: Leaves, gradients: Leaves) -> tuple[Tensor | None, ...]:
            # Blocks that are computed a second time cast again.
            with _casting_anew():
                return torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)

        # Libraries make what they need on a stream at their first call there, which can't be recorded.
        stream, state = torch.cuda.Stream(), torch.cuda.get_rng_state()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outputs, _ = forward()
            # Any gradients do for a comparison, and these are of the size that they ought to be.
            plain = [out.detach().clone() for out in outputs]
            plain += [found for found in backward(outputs, list(plain)) if found is not None]
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
        torch.cuda.set_rng_state(state)
        self._check(plain, places)

    def _check(self, plain: list[Tensor], places: list[Tensor]) -> None:
        """Replay once on the inputs of the plain pass. RuntimeError where it does not give the same."""
        count = len(self.outputs)
        self.forward.replay()
        torch._foreach_copy_(self.douts, plain[:count])
        found = [out.clone() for out in self.outputs]
        self.backward.replay()
        found += [inner for inner in self.made_inner if inner is not None] + places
        _compare("outputs", found[:count], plain[:count])
        _compare("gradients", found[count:], plain[count:])

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
