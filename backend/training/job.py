"""Everything that a training run holds while it runs, and the parts of a step."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from backend.config.schema import Config
from backend.dataset.items import count_of
from backend.families.spec import Geometry
from backend.latents.loader import Batch, Loader
from backend.lora.inject import Lora
from backend.lora.max_norm import NormLimit
from backend.memory.devices import to_device, to_host
from backend.memory.seeds import generator
from backend.models.common.conditioning import Teller
from backend.objectives.base import Objective
from backend.optimizers.ema import Ema
from backend.optimizers.state import rate
from backend.training.between_steps import Duties
from backend.training.checkpoint import Position
from backend.training.expected_memory import Expected
from backend.training.monitor import Watch
from backend.training.requests import Asks, StopAsked
from backend.training.saver import Saver
from backend.training.step_log import StepRecords

log = logging.getLogger(__name__)

_SNAPSHOT_STEPS = 50
"""Steps between two copies of the LoRA to the host, for the case that loss or gradients are lost."""


@dataclass
class Forward:
    """The denoiser as training, validation and samples call it: the same blocks under the same autocast.

    predict: the family's own. guidance: the embedded guidance trained with.
    """

    accelerator: Accelerator
    denoiser: nn.Module
    family_predict: Callable[..., list[Tensor]]
    shapes: Any
    guidance: float

    def __call__(
        self, noisy: list[Tensor], sigma: Tensor, text: Sequence[dict[str, Tensor]], guidance: float | None = None
    ) -> list[Tensor]:
        """What the denoiser predicts for each noisy latent (C, h, w) at the objective's level `sigma` (B,), float32."""
        value = self.guidance if guidance is None else guidance
        with self.accelerator.autocast():
            return self.family_predict(self.denoiser, noisy, sigma, text, value, self.shapes)


@dataclass
class Snapshot:
    """The LoRA before a step as a file has it, on its way to the host; good once that step's loss is finite."""

    step: int
    tensors: dict[str, Tensor]


@dataclass
class Job:
    """A run that is ready to train. The methods are the parts of a step, in the order in which the loop calls them.

    whole: the position after the last whole step, the present one between two steps. torn: while the optimizer moves
    the weights, which are then of no whole step. in_hand: the batch that is being worked on.
    """

    cfg: Config
    accelerator: Accelerator
    forward: Forward
    lora: Lora
    optimizer: Any
    scheduler: Any
    loader: Loader
    geometry: Geometry
    total_steps: int
    position: Position
    records: StepRecords
    saver: Saver
    duties: Duties
    asks: Asks
    watch: Watch
    objective: Objective
    tell: Teller
    expected: Expected | None = None
    norms: NormLimit | None = None
    ema: Ema | None = None
    good: Snapshot | None = None
    whole: Position | None = None
    torn: bool = False
    in_hand: Batch | None = None
    _fresh: deque[Snapshot] = field(default_factory=deque)
    _loss_sum: Tensor | None = None
    _grad_norm: Tensor | None = None
    _rate: float = 0.0
    _clock: float = 0.0
    _waited: float = 0.0
    _mark: float = field(default_factory=time.monotonic)

    def count_time(self) -> None:
        """Add the time since the last call to the position's seconds, which run over all starts of a run."""
        now = time.monotonic()
        self.position.seconds, self._mark = self.position.seconds + now - self._mark, now

    def shape_words(self) -> str:
        """What is being worked on: pictures, their size, tokens."""
        if self.in_hand is None:
            return ""
        side, batch = self.geometry.downscale, self.in_hand
        sizes = {(latent.shape[2] * side, latent.shape[1] * side) for latent in batch.latents}
        sized = ", ".join(f"{width} x {height} px" for width, height in sorted(sizes))
        return f"step {self.position.step + 1}: {count_of(len(batch.latents), 'picture')} of {sized}"

    def begin(self) -> None:
        """Stand where the position says; called once, before the first batch."""
        # accelerate counts batches by itself; a run resumed in the middle of an accumulation has to go on there
        self.accelerator.step = self.position.micro
        self._loss_sum = torch.tensor(self.position.loss_sum, device=self.accelerator.device)
        self.watch.begin()
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begin to time a step: what came before (saving, samples, validation) is not part of it."""
        self.watch.before_step()
        self._clock, self._waited = time.monotonic(), 0.0

    def next_batch(self) -> Batch:
        """The batch at the position; the time it took is a step's loader wait."""
        started = time.monotonic()
        if not self.position.micro:
            self.whole = replace(self.position)
        batch = self.loader.batch(self.position.epoch, self.position.batch)
        self._waited += time.monotonic() - started
        self.in_hand = batch
        return batch

    def loss(self, batch: Batch) -> Tensor:
        """The objective's loss of a batch, shape (), on the device.

        Noise level and noise of a row come from (seed, number of the batch in the run, row), on the unpadded latent.
        """
        device, seed = self.accelerator.device, self.cfg.training.seed
        objective = self.objective
        number = self.position.step * self.cfg.training.gradient_accumulation_steps + self.position.micro
        # LoRA dropout draws from torch's own generator, also inside compiled blocks: what a compile or a sample drew
        # before must not change it.
        torch.manual_seed(generator(seed, "dropout", number).initial_seed())
        rows = range(len(batch.latents))
        tokens = [math.prod(latent.shape[1:]) // self.geometry.patch**2 for latent in batch.latents]
        levels = objective.levels(tokens, seed, number)
        noises = [objective.noise(batch.latents[i].shape, seed, number, i) for i in rows]
        x0 = [to_device(latent, device) for latent in batch.latents]
        added, levels = [to_device(noise.added, device) for noise in noises], to_device(levels, device)
        wanted = [a if n.target is n.added else to_device(n.target, device) for n, a in zip(noises, added, strict=True)]
        text = self.tell(batch.text)
        predicted = self.forward([objective.noisy(x0[i], added[i], levels[i]) for i in rows], levels, text)
        targets = [objective.target(x0[i], wanted[i], levels[i]) for i in rows]
        return objective.losses(predicted, targets, levels).mean()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss` to the step's."""
        self.accelerator.backward(loss)
        self.lora.collect_gradients()

    def clip_gradients(self) -> None:
        """Shorten the summed gradients to max_grad_norm (0 = leave them), and keep their length for the step's row."""
        most = self.cfg.optimizer.max_grad_norm or math.inf
        self._grad_norm = self.accelerator.clip_grad_norm_(self.lora.parameters(), most)
        self._rate = rate(self.optimizer)

    def update(self) -> None:
        """Step optimizer and schedule where a step's gradients are complete; accelerate leaves them alone before."""
        complete = self.accelerator.sync_gradients
        self.torn = complete
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        if complete:
            if self.ema is not None and not self.optimizer.step_was_skipped:
                self.ema.update()
            # whatever fails from here on, this step is whole
            self.whole = self._after_this_batch(step=self.position.step + 1, micro=0, loss_sum=0.0)
            self.torn = False

    def _after_this_batch(self, **changes: Any) -> Position:
        """The position behind the batch in hand."""
        epoch, batch = self.position.epoch, self.position.batch + 1
        if batch >= self.loader.batches_per_epoch:
            epoch, batch = epoch + 1, 0
        return replace(self.position, epoch=epoch, batch=batch, **changes)

    def count_batch(self, loss: Tensor) -> None:
        """A batch is done: its loss joins the step's, and the position moves on."""
        assert self._loss_sum is not None
        self._loss_sum = self._loss_sum + loss.detach() / self.cfg.training.gradient_accumulation_steps
        position, after = self.position, self._after_this_batch()
        position.micro, position.epoch, position.batch = position.micro + 1, after.epoch, after.batch

    def count_step(self) -> None:
        """A step is done: count it and hand its numbers to the records, without waiting for them."""
        assert self._loss_sum is not None and self._grad_norm is not None
        position = self.position
        position.step, position.micro, position.loss_sum = position.step + 1, 0, 0.0
        self.count_time()
        self.records.end_step(
            self._loss_sum,
            self._grad_norm,
            {} if self.norms is None else self.norms.figures,
            lr=self._rate,
            s_per_step=time.monotonic() - self._clock,
            loader_wait=self._waited,
            epoch=position.epoch,
        )
        self._loss_sum = torch.zeros_like(self._loss_sum)
        self._note_good()
        self.whole = position
        self.watch.after_step()

    def stop(self) -> str:
        """Save LoRA and state as they are, also between two batches of a step. StopAsked before the first batch."""
        self.records.settle()
        if not self.position.step and not self.position.micro:
            raise StopAsked
        assert self._loss_sum is not None
        self.position.loss_sum = float(self._loss_sum)
        self.count_time()
        self.saver.save_stopped()
        return "stopped"

    def note_settled(self, step: int) -> None:
        """The numbers of `step` are finite: snapshots of the steps before it are good."""
        while self._fresh and step > self._fresh[0].step:
            self.good = self._fresh.popleft()

    def _note_good(self) -> None:
        """A snapshot is good once the step after it is settled; take a new one every few steps."""
        self.note_settled(self.position.step - 1)
        every = _SNAPSHOT_STEPS if self.accelerator.device.type == "cuda" else 1
        if self.position.step % every == 0:
            used = self.lora if self.ema is None else self.ema
            copies = {name: to_host(value) for name, value in used.tensors().items()}
            self._fresh.append(Snapshot(self.position.step, copies))
