"""Steps an optimizer one tensor at a time: within the backward pass, and on 16-bit weights with stochastic rounding.

Rounding at random, up as often as the value is near the upper neighbour, keeps steps that are smaller than the format
can show in the mean (Gupta et al., arXiv 1502.02551; Zamirai et al., arXiv 2010.06192).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from backend.optimizers.compiled_step import CompiledStep, store


class StateKeeper(Protocol):
    """What keeps the state of some weights elsewhere, such as `backend.memory.state_stream.StateStream`."""

    def attach(self, state_of: Callable[[nn.Parameter], dict[str, Any]]) -> None:
        """Told how to get at the optimizer's state of a weight."""
        ...

    def keeps(self, weight: nn.Parameter) -> bool:
        """Whether the state of `weight` is kept elsewhere."""
        ...

    def lend(self, weight: nn.Parameter, state: dict[str, Any]) -> None:
        """Called before `weight` is stepped: `state` has to be on its device."""
        ...

    def take_back(self, weight: nn.Parameter, state: dict[str, Any]) -> None:
        """Called after it was stepped."""
        ...

    def forget(self) -> None:
        """Called when other state was loaded."""
        ...


class Tensorwise(Optimizer):
    """An optimizer whose tensors are moved one by one.

    make: gives the optimizer over groups of parameters; it may keep any state of a tensor, and numbers of a group that
    change once a step, but nothing that one tensor tells of another. groups: of the weights. Of those in bf16 a float32
    copy is made for the moment of their step, and rounded into them afterwards: the optimizer's state is float32.
    fused: each tensor is moved as soon as its gradient is there, which is then let go of; `step` ends the step.
    longest: length that each tensor's gradient is shortened to while fused, 0 for none: the length of all is not known
    before they are used. keeper: keeps state elsewhere between the steps of its weights. compiled: what is done to a
    tensor is compiled; rounding at random then draws other numbers.
    """

    def __init__(
        self,
        make: Callable[[Sequence[dict[str, Any]]], Optimizer],
        groups: Iterable[dict[str, Any]],
        *,
        fused: bool,
        longest: float = 0.0,
        keeper: StateKeeper | None = None,
        compiled: bool = False,
    ) -> None:
        self.fused, self.longest, self._keeper, self.compiled = fused, longest, keeper, compiled
        self._live: dict[nn.Parameter, nn.Parameter] = {}
        self._squares: list[Tensor] = []
        self._numbers: dict[int, dict[str, Any]] = {}
        shadows = [{**group, "params": [self._shadow(p) for p in group["params"]]} for group in groups]
        self.inner = make(shadows)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.state = self.inner.state
        self._shadows = {live: shadow for shadow, live in self._live.items()}
        if keeper is not None:
            keeper.attach(lambda weight: self.inner.state.get(self._shadows[weight], {}))
        if fused:
            for shadow, live in self._live.items():
                live.register_post_accumulate_grad_hook(lambda weight, own=shadow: self._arrived(own, weight))

    def _shadow(self, weight: nn.Parameter) -> nn.Parameter:
        """What the optimizer is given for a weight: itself, or a float32 parameter that is empty between steps."""
        own = weight
        if weight.dtype != torch.float32 or self._is_kept(weight):
            own = nn.Parameter(torch.empty(0, dtype=torch.float32, device=weight.device))
        self._live[own] = weight
        return own

    def _is_kept(self, weight: nn.Parameter) -> bool:
        return self._keeper is not None and self._keeper.keeps(weight)

    def _arrived(self, shadow: nn.Parameter, weight: nn.Parameter) -> None:
        assert weight.grad is not None
        length = torch.linalg.vector_norm(weight.grad, dtype=torch.float32)
        self._squares.append(length.square())
        if self.longest:
            weight.grad.mul_(torch.clamp(self.longest / (length + 1e-6), max=1.0))
        self._move(shadow, weight)
        weight.grad = None

    @torch.no_grad()
    def _move(self, shadow: nn.Parameter, weight: nn.Parameter) -> None:
        """Step one weight, its state on its device meanwhile."""
        state = self.inner.state
        kept = self._keeper is not None and shadow in state and self._is_kept(weight)
        if kept:
            self._keeper.lend(weight, state[shadow])
        try:
            group = self.param_groups[self._group_of[shadow]]
            if self.compiled and _steps_stored(self.inner, group):
                self.inner.step_stored(group, weight.detach(), weight.grad, state[shadow])
            else:
                self._move_shadow(shadow, weight)
        finally:
            if kept:
                self._keeper.take_back(weight, state[shadow])

    def _move_shadow(self, shadow: nn.Parameter, weight: nn.Parameter) -> None:
        """Step one weight by the optimizer's own `step`. Numbers of its group that change count once all had it."""
        number = self._group_of[shadow]
        inner, group = self.inner, self.param_groups[number]
        if shadow is not weight:
            shadow.data = weight.detach().float()
            shadow.grad = weight.grad.float()
        own = {**group, "params": [shadow]}
        inner.param_groups = [own]
        try:
            inner.step()
        finally:
            inner.param_groups = self.param_groups
        self._numbers[number] = {name: value for name, value in own.items() if name != "params"}
        if shadow is not weight:
            if weight.dtype != torch.float32:
                self._store(weight.detach(), shadow.data)
            elif shadow.data_ptr() != weight.data_ptr():
                weight.copy_(shadow.data)
            shadow.grad = None
            shadow.data = torch.empty(0, dtype=torch.float32, device=weight.device)

    def _store(self, weight: Tensor, value: Tensor) -> None:
        """Set `weight` to `value`, rounded at random."""
        (_compiled_store() if self.compiled else store)(weight, value)

    @property
    def _group_of(self) -> dict[nn.Parameter, int]:
        """Parameter -> number of its group."""
        if not hasattr(self, "_places"):
            self._places = {p: n for n, group in enumerate(self.param_groups) for p in group["params"]}
        return self._places

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """End a step; where it is not fused, move every weight that has a gradient first."""
        assert closure is None, "an optimizer of single tensors takes no closure"
        if not self.fused:
            for shadow, weight in self._live.items():
                if weight.grad is not None:
                    self._move(shadow, weight)
        for number, values in self._numbers.items():
            self.param_groups[number].update(values)
        self._numbers.clear()

    def grad_norm(self) -> Tensor:
        """Length of all gradients of the step, before any was shortened, (); of a fused step, once it is done."""
        squares, self._squares = self._squares, []
        return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let go of all gradients."""
        for weight in self._live.values():
            weight.grad = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set the optimizer to what `state_dict` gave. State that is kept elsewhere stays on the host."""
        kept = {shadow: weight for shadow, weight in self._live.items() if self._is_kept(weight)}
        for shadow in kept:
            # optimizers bring state to where its parameter is
            shadow.data = torch.empty(0, dtype=torch.float32)
        self.inner.load_state_dict(state_dict)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state
        for shadow, weight in kept.items():
            shadow.data = torch.empty(0, dtype=torch.float32, device=weight.device)
            group = self.param_groups[self._group_of[shadow]]
            numbers = bool(group.get("fused") or group.get("capturable"))
            rest_to(weight, self.state.get(shadow, {}), numbers)
        if self._keeper is not None:
            self._keeper.forget()


def _steps_stored(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether the optimizer can step a tensor as it is stored, as `backend.optimizers.adafactor.Adafactor` does."""
    can = getattr(optimizer, "can_step_stored", None)
    return can is not None and can(group)


@functools.cache
def _compiled_store() -> CompiledStep:
    return CompiledStep(store, own_graphs=False)


def rest_to(weight: nn.Parameter, state: dict[str, Any], numbers: bool) -> None:
    """Bring to the device of `weight` what is not kept elsewhere: all but tensors as large as a weight of two or more
    dimensions. numbers: single numbers too, which kernels of fused optimizers read there."""
    for name, value in state.items():
        if not isinstance(value, Tensor):
            continue
        wanted = numbers if value.ndim == 0 else weight.ndim < 2 or value.numel() < weight.numel()
        if wanted:
            state[name] = value.to(weight.device)
