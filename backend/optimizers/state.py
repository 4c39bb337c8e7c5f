"""Saves and loads an optimizer's exact state, switches to the weights to use, and reads the rate really used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from backend.optimizers.tensorwise import Tensorwise

_SETTINGS = "chosen"
"""Key of a state that holds what the optimizer was made with."""

_PLAIN = (bool, int, float, str, tuple, list)


class ExactState:
    """An optimizer as the resume state sees it: what was saved comes back in the format it was saved in.

    torch casts state to the format of its weight while loading, which is not what an optimizer that keeps bf16 or 8-bit
    numbers for float32 weights had. What the settings changed since then stays so; rates are the schedule's.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._settings = {k: v for k, v in optimizer.defaults.items() if k != "lr" and isinstance(v, _PLAIN)}

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and its settings."""
        return {**self.optimizer.state_dict(), _SETTINGS: self._settings}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the optimizer to what `state_dict` gave. ValueError or KeyError when it belongs to other weights."""
        state_dict = dict(state_dict)
        before = state_dict.pop(_SETTINGS, self._settings)
        self.optimizer.load_state_dict(state_dict)
        changed = {name: value for name, value in self._settings.items() if before.get(name, value) != value}
        for group in self.optimizer.param_groups:
            group.update(changed)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        for parameter, number in zip(parameters, saved, strict=True):
            live = self.optimizer.state.get(parameter, {})
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor) and live[name].dtype != value.dtype:
                    live[name] = value.to(live[name].device, copy=True)
        own = self.optimizer.inner if isinstance(self.optimizer, Tensorwise) else self.optimizer
        if getattr(own, "is_paged", False):
            _page_again(own, parameters)


class ExactSchedule:
    """A schedule as the resume state sees it: at the saved step, with the rates that the settings say now.

    So a learning rate or a length that was changed before the resume holds from the first step on.
    """

    def __init__(self, scheduler: LRScheduler) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        """The schedule's own."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the step of `state_dict`; the optimizer's state must be loaded before."""
        scheduler = self.scheduler
        rates = list(scheduler.base_lrs)
        if isinstance(scheduler, LambdaLR) and "lr_lambdas" not in state_dict:
            # saved by a class that the settings named before: only its step means anything here
            own = scheduler.state_dict()
            state_dict = own | {name: state_dict[name] for name in ("last_epoch", "_step_count") if name in state_dict}
        scheduler.load_state_dict(state_dict)
        saved = list(scheduler.base_lrs)
        scheduler.base_lrs = rates
        for number, group in enumerate(scheduler.optimizer.param_groups):
            if isinstance(scheduler, LambdaLR):
                group["lr"] = rates[number] * scheduler.lr_lambdas[number](scheduler.last_epoch)
            elif rates[number] != saved[number]:
                # other classes continue from the rate before, step by step
                group["lr"] *= rates[number] / saved[number] if saved[number] else 0.0
            group["initial_lr"] = rates[number]


def _page_again(optimizer: Any, parameters: Sequence[Tensor]) -> None:
    """Give the loaded state of a paged bitsandbytes optimizer memory that may leave the GPU; loading takes it away."""
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        for name in ("state1", "state2"):
            loaded = state.get(name)
            if not isinstance(loaded, Tensor) or not loaded.is_cuda:
                continue
            # by the size of the state: what Tensorwise gives for a weight in bf16 is empty between steps
            paged = optimizer.get_state_buffer(torch.empty_like(loaded), dtype=loaded.dtype)
            # the new memory is cleared by a kernel, and written from the host
            torch.cuda.synchronize(parameter.device)
            state[name] = paged.copy_(loaded)


def has_two_points(optimizer: Optimizer) -> bool:
    """True for schedule-free optimizers: the weights they train at are not those to use (Defazio, arXiv 2405.15682)."""
    return callable(getattr(optimizer, "eval", None)) and callable(getattr(optimizer, "train", None))


@contextmanager
def weights_to_use(
    optimizer: Optimizer,
    parameters: Sequence[Tensor],
    changed: Callable[[], object] = lambda: None,
    mean: Sequence[Tensor] | None = None,
) -> Iterator[None]:
    """Within the block, the weights that files, validation and samples take; mostly those that are trained.

    Afterwards the trained ones are back bit by bit, so that training does not depend on how often it was looked at.
    changed: called whenever values of `parameters` were set. mean: of the `parameters` over the steps, where that is
    what is used.
    """
    two_points = has_two_points(optimizer)
    if mean is None and not two_points:
        yield
        return
    kept = [parameter.detach().clone() for parameter in parameters]
    if two_points:
        optimizer.eval()
    if mean is not None:
        _set(parameters, mean)
    changed()
    try:
        yield
    finally:
        if two_points:
            optimizer.train()
        _set(parameters, kept)
        changed()


@torch.no_grad()
def _set(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)


def rate(optimizer: Optimizer) -> float:
    """The learning rate of the next step; Prodigy's own estimate (``d``) multiplied in where there is one."""
    group = optimizer.param_groups[0]
    own = group.get("d", 1.0)
    return float(group["lr"]) * (own if isinstance(own, int | float) else 1.0)
