"""Records a denoiser's training passes as CUDA graphs, one recording a shape, and replays them.

A LoRA's step launches thousands of small kernels, which on a fast GPU takes several times as long as running them. The
forward and the backward pass of each shape of inputs are recorded as they run, compiled blocks included. All recordings
share their memory: one step is done with it before the next begins. A recording serves only once its first replay has
given what the plain pass gave.
"""

from __future__ import annotations

import functools
import gc
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten

from backend.compile.cuda_graphs import capture
from backend.compile.cuda_graphs.graph_trial import ROOM, Trial
from backend.compile.cuda_graphs.replay import Leaves, Recording

log = logging.getLogger(__name__)

Tell = Callable[["Recorder"], object]

_MOST = 64
"""Recorded shapes: each keeps its graphs, and a run with more sizes than that sees each of them seldom."""

_MOVES = 3
"""How often weights may move and all be recorded again: something that moves them again and again would cost more."""


def record(denoiser: nn.Module, tell: Tell = lambda recorder: None, trial: Trial | None = None) -> Recorder:
    """Have the denoiser's training passes recorded from now on; called when it has its LoRA."""
    denoiser._monotile_recorder = Recorder(denoiser, tell, trial)
    return denoiser._monotile_recorder


def recorded(denoiser: nn.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """What to call in place of `function`, the part of the denoiser's pass that is recorded where it has a recorder."""
    recorder = getattr(denoiser, "_monotile_recorder", None)
    return function if recorder is None else functools.partial(recorder, function)


def forget(denoiser: nn.Module) -> bool:
    """Have what was recorded of the denoiser give its memory back, to be recorded again; whether there was any."""
    recorder = getattr(denoiser, "_monotile_recorder", None)
    if recorder is None or not recorder.recordings:
        return False
    recorder.forget()
    capture.release()
    return True


class Recorder:
    """Calls functions that compute tensors from tensors and `module`'s weights, and records what they launch.

    The first pass of all runs as it is, and shows what memory a pass needs. From then on a shape is recorded where it
    is first seen: the plain pass that its recording is compared with compiles what has to be. The passes before one
    that is recorded must be done with, their losses gone. Passes without gradients are never recorded. Where recording
    fails, or gives something else than the plain pass, the run continues without.

    A weight or buffer that lies elsewhere at a later pass, since it was not changed in place, makes recordings void.
    tell: called whenever something below has changed. trial: what finds out first whether recording pays.
    failed: why nothing is recorded any more, nor replayed. full: why further shapes are not recorded. seconds: spent
    recording. kept: bytes of the GPU that only recordings use. made: gradients of `trained`, where the backward pass
    of every recording writes them. plain_seconds, replay_seconds: of a forward and backward pass of the shape that was
    recorded first. compiled_seconds: gives the seconds of all compiles so far, which `seconds` leaves out.
    """

    def __init__(self, module: nn.Module, tell: Tell, trial: Trial | None = None) -> None:
        self.tell = tell
        self.trial = trial
        self.trained = [weight for weight in module.parameters() if weight.requires_grad]
        self.recordings: dict[Hashable, Recording] = {}
        self.failed = ""
        self.full = ""
        self.seconds = 0.0
        self.kept = 0
        self.made: list[Tensor] = []
        self.plain_seconds = self.replay_seconds = 0.0
        self.compiled_seconds: Callable[[], float] = float
        self._held = [*module.parameters(), *module.buffers()]
        self._gradients: list[Tensor] = []
        self._seen: set[Hashable] = set()
        self._largest = 0
        self._beside = 0
        self._places: tuple[int, ...] = ()
        self._moves = 0
        self._pool: Any = None

    def __call__(self, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled() or self.failed or (self.trial is not None and self.trial.against):
            return function(*inputs, **named)
        leaves, form = tree_flatten((inputs, named))
        key = self._shape(leaves, form)
        if key is None:
            return function(*inputs, **named)
        if key in self.recordings:
            return self.recordings[key](leaves)
        is_first = not self._seen
        more = 1.0 if key in self._seen else self._make_room(leaves)
        is_new = key not in self._seen
        self._seen.add(key)
        if is_first or self.failed or self.full or not self._has_room(more):
            return self._plain(function, *inputs, **named)
        if self.trial is not None and not self.trial.decided:
            self._try(self.trial, is_new, function, *inputs, **named)
        if self.trial is None or not self.trial.against:
            self._record(key, function, leaves, form)
        recording = self.recordings.get(key)
        return self._plain(function, *inputs, **named) if recording is None else recording(leaves)

    def _shape(self, leaves: Leaves, form: TreeSpec) -> Hashable | None:
        """What tells a pass's shape from others; None where it can't be recorded, which on a GPU is said."""
        if not _on_gpu(leaves):
            return None
        key = _key(leaves, form)
        if key is None:
            kinds = sorted({type(leaf).__name__ for leaf in leaves if not _plain_value(leaf)})
            self._give_up(f"a pass that is given a {' and a '.join(kinds)} can't be recorded")
        else:
            self._check_places()
        return None if self.failed else key

    def _try(self, trial: Trial, is_new: bool, function: Callable[..., Any], *inputs: Any, **named: Any) -> None:
        """Time forward passes and drop what they gave; what they draw, the pass itself draws again."""
        started, state = self._clock(), capture.random_state()
        with torch.random.fork_rng(devices=[]):
            if is_new:
                self._plain(function, *inputs, **named)  # it compiles
            while not trial.decided:
                self._plain(trial, function, *inputs, **named)
        capture.set_random_state(state)
        self.seconds += self._clock() - started
        log.info("CUDA graphs: %s", trial.words)
        self.tell(self)

    def _plain(self, function: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        """A pass as it is; where memory runs out beside the recordings, they go first."""
        try:
            return function(*inputs, **named)
        except torch.OutOfMemoryError:
            if not self.recordings:
                raise
        self._give_up("memory ran out")
        return function(*inputs, **named)

    def _check_places(self) -> None:
        """Forget recordings of weights that have moved: they would read what lies there now."""
        places = tuple(tensor.data_ptr() for tensor in self._held)
        if places == self._places:
            return
        self._places = places
        self._moves += bool(self.recordings)
        self.forget()
        if self._moves > _MOVES:
            self._give_up("weights move between passes, which makes recordings void")

    def forget(self) -> None:
        """Let go of all recordings; the next pass of each shape is recorded again."""
        self.recordings.clear()
        self._pool, self._beside, self.kept = None, 0, 0

    def _make_room(self, leaves: Leaves) -> float:
        """Before the first pass of a shape: how many times as much as any before it may need, which has to be free.

        It runs beside the recordings, and may be the largest.
        """
        size = sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))
        more = max(1.0, size / self._largest) if self._largest else 1.0
        self._largest = max(self._largest, size)
        free = capture.free_bytes() - self.kept
        if self.recordings and free < more * capture.passing_bytes():
            self._give_up(f"a new picture size needs a plain pass, and {_gb(free)} of the GPU's memory are free")
        return more

    def _has_room(self, more: float = 1.0) -> bool:
        """Whether a shape can be recorded, with a plain pass beside all recordings; else says why not, for good.

        more: how many times as large as all before it the shape is; what a larger one needs is known after it ran.
        """
        free, needed = capture.free_bytes() - self.kept, more * capture.passing_bytes()
        needed = int(needed * (ROOM - 1 if self.recordings else ROOM)) + 3 * _bytes(self.trained)
        needed += 0 if self.trial is None else self.trial.spare
        if len(self.recordings) >= _MOST:
            self.full = f"{_MOST} shapes are recorded"
        elif free < needed:
            self.full = f"{_gb(needed)} of the GPU's memory must be free for it, and {_gb(free)} are"
        if self.full and more > 1:
            self.full = ""
            return False
        if self.full and not self.recordings:
            self._give_up(self.full)
        elif self.full:
            log.info("CUDA graphs: further shapes run as they are: %s", self.full)
            self.tell(self)
        return not self.full

    def _record(self, key: Hashable, function: Callable[..., Any], leaves: Leaves, form: TreeSpec) -> None:
        started, outside = self._clock(), capture.outside_bytes()
        if self._pool is None:
            self._pool = capture.new_pool()
        if not self.made:
            self.made, self._gradients = ([torch.zeros_like(weight) for weight in self.trained] for _ in range(2))
        # Passes that are not done with hold what leads to the weights' gradients, on the stream that they ran on.
        gc.collect()
        state = capture.random_state()
        try:
            recording = Recording(
                function, leaves, form, self.trained, self.made, self.add_gradients, self._pool, self._is_untimed
            )
        except torch.OutOfMemoryError:
            recording, why = None, "memory ran out"
        except Exception as error:
            # Anything: each library refuses to be recorded in its own way, and the run can continue without.
            recording, why = None, f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        # What this pass drops is what it would have dropped without a recording.
        capture.set_random_state(state)
        self.seconds += self._clock() - started
        if recording is None:
            self._give_up(why)
            return
        if self._asks_for_gain and not self.trial.pays(recording.gain):
            del recording
            self._end()
            return
        if self._is_untimed:
            self.plain_seconds, self.replay_seconds = recording.plain_seconds, recording.replay_seconds
        self.recordings[key] = recording
        self._beside += max(0, capture.outside_bytes() - outside)
        self.kept = capture.pool_bytes(self._pool) + self._beside
        log.info("recorded CUDA graphs of shape %d", len(self.recordings))
        self.tell(self)

    def _clock(self) -> float:
        return time.perf_counter() - self.compiled_seconds()

    @property
    def _is_untimed(self) -> bool:
        return not self.plain_seconds

    @property
    def _asks_for_gain(self) -> bool:
        """The first recording says whether it pays; what others take by chance changes nothing any more."""
        return self.trial is not None and self.trial.gain is None

    def _give_up(self, why: str) -> None:
        self.failed = why
        log.warning("CUDA graphs are left out: %s", why)
        self._end()

    def _end(self) -> None:
        """Give back what recordings keep, once nothing is recorded any more."""
        self.forget()
        self.made, self._gradients = [], []
        capture.release()
        self.tell(self)

    def add_gradients(self, reached: Sequence[bool]) -> None:
        """Add what a backward pass made to the gradients of the weights that it reached, as autograd would have."""
        kept: tuple[list[Tensor], list[Tensor]] = ([], [])
        summed: tuple[list[Tensor], list[Tensor]] = ([], [])
        for weight, place, gradient, has_one in zip(self.trained, self._gradients, self.made, reached, strict=True):
            if not has_one:
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


def _gb(size: int) -> str:
    return f"{size / 2**30:.1f} GB"


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _on_gpu(leaves: Leaves) -> bool:
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return bool(tensors) and all(tensor.device.type == capture.DEVICE for tensor in tensors)


def _plain_value(leaf: Any) -> bool:
    return isinstance(leaf, Tensor | bool | int | float | str | None) or callable(leaf)


def _key(leaves: Leaves, form: TreeSpec) -> Hashable | None:
    """What tells two shapes apart; None for inputs of a kind that a recording can't take."""
    if not all(map(_plain_value, leaves)):
        return None
    return str(form), *(
        (leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else leaf
        for leaf in leaves
    )
