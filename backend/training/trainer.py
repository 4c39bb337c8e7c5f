"""Trains: holds what a run needs while it trains, and does the parts of a step."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.scheduler import AcceleratedScheduler
from torch import Tensor, nn

from backend.config.sections.training import TrainingSection
from backend.families.spec import Geometry, Side
from backend.latents.loader import Batch, Loader
from backend.lora.max_norm import NormLimit
from backend.memory.devices import to_device, to_host
from backend.memory.seeds import generator
from backend.models.common.conditioning import ConditioningEncoder
from backend.objectives.base import Objective
from backend.optimizers.ema import Ema
from backend.optimizers.state import rate
from backend.optimizers.tensorwise import Tensorwise
from backend.optimizers.trained_weights import TrainedWeights
from backend.shapes.shape_runtime import ShapeRuntime
from backend.training.between_steps import BetweenSteps
from backend.training.expected_memory import ExpectedMemory
from backend.training.experts import Experts
from backend.training.monitor import Monitor
from backend.training.position import Position, PositionCounter
from backend.training.ranks.following import Following
from backend.training.ranks.group import COMPARE_STEPS, Ranks
from backend.training.requests import Requests, StopRequested
from backend.training.saver import Saver
from backend.training.step_log import NotFinite, StepLog

log = logging.getLogger(__name__)

_SNAPSHOT_STEPS = 50
"""Steps between two copies of what is trained to the host, for the case that loss or gradients are lost."""


@dataclass(kw_only=True, slots=True)
class Forward:
    """The denoiser as training, validation and samples call it: the same blocks under the same autocast."""

    accelerator: Accelerator
    denoiser: nn.Module
    family_predict: Callable[..., list[Tensor]]
    """`backend.models.family.Family.predict` of the run's family."""
    shapes: ShapeRuntime
    guidance: float
    """The embedded guidance trained with."""

    def __call__(
        self, noisy: list[Tensor], sigma: Tensor, text: Sequence[dict[str, Tensor]], guidance: float | None = None
    ) -> list[Tensor]:
        """What the denoiser predicts for each noisy latent (C, h, w) at the objective's level `sigma` (B,), float32."""
        value = self.guidance if guidance is None else guidance
        with self.accelerator.autocast():
            return self.family_predict(self.denoiser, noisy, sigma, text, value, self.shapes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What is trained before a step as a file has it, on its way to the host; good once that step's loss is finite."""

    step: int
    tensors: dict[str, Tensor]
    sides: Mapping[Side, dict[str, Tensor]] | None = None
    """The same of both experts, where both are trained; `tensors` is then that of the one in the model."""


@dataclass(kw_only=True, slots=True)
class Trainer:
    """A run that is ready to train. The methods are the parts of a step, in the order in which the loop calls them."""

    training: TrainingSection
    max_grad_norm: float
    """Length that gradients are shortened to; 0 leaves them."""
    accelerator: Accelerator
    forward: Forward
    weights: TrainedWeights
    optimizer: AcceleratedOptimizer
    scheduler: AcceleratedScheduler
    loader: Loader
    geometry: Geometry
    total_steps: int
    counter: PositionCounter
    """How far the run is; the trainer alone moves it."""
    step_log: StepLog
    saver: Saver | Following
    between_steps: BetweenSteps | Following
    requests: Requests
    monitor: Monitor
    objective: Objective
    conditioning: ConditioningEncoder
    prior_loss_weight: float = 1.0
    """What the loss of a regularization image counts."""
    expected: ExpectedMemory | None = None
    norms: NormLimit | None = None
    """Holds the LoRA to a norm, where that is set."""
    ema: Ema | None = None
    """The running mean that is used in place of what is trained, where that is set."""
    experts: Experts | None = None
    """Both experts of a model of two, where both are trained."""
    keeps_good: bool = True
    """Copies of what is trained are kept on the host; a whole model is too large for them."""
    ranks: Ranks = field(default_factory=Ranks)
    """The processes that train together."""
    good: Snapshot | None = None
    """The weights of the last step whose numbers are known to be finite, or of one a little before it."""
    torn: bool = False
    """True while the optimizer moves the weights, which are then of no whole step."""
    in_hand: Batch | None = None
    """The batch that is being worked on."""
    _fresh: deque[Snapshot] = field(default_factory=deque)
    _loss_sum: Tensor | None = None
    _grad_norm: Tensor | None = None
    _rate: float = 0.0
    _clock: float = 0.0
    _waited: float = 0.0

    def __post_init__(self) -> None:
        self.counter.start_clock()

    @property
    def position(self) -> Position:
        """How far the run is."""
        return self.counter.position

    @property
    def is_done(self) -> bool:
        """True after the last step, or after the one at which an early stop is due."""
        early = self.between_steps.ends_early if self.ranks.count == 1 else self.ranks.ended
        return self.position.step >= self.total_steps or early

    @property
    def stops(self) -> bool:
        """True where a stop is requested; of several processes, once all know, which is between two steps."""
        return self.requests.stop if self.ranks.count == 1 else self.ranks.stop

    def agree(self) -> None:
        """Let all processes know what the first one decides about the next step, and compare them at times."""
        if self.ranks.count == 1:
            return
        self.ranks.agree(self.requests.stop, self.between_steps.ends_early)
        if self.position.step % COMPARE_STEPS > 1:
            return
        self.monitor.write_places(self.ranks.gather(self.monitor.place()))
        if not self.ranks.compare(self.weights.parameters()):
            self.weights.publish()
            log.warning("The processes' weights differed at step %d: all take the first one's", self.position.step)

    def shape_words(self) -> str:
        """What is being worked on: pictures, their size, tokens."""
        if self.in_hand is None:
            return ""
        side, batch = self.geometry.downscale, self.in_hand
        sizes = {(latent.shape[-1] * side, latent.shape[-2] * side) for latent in batch.latents}
        sized = ", ".join(f"{width} x {height}" for width, height in sorted(sizes))
        lengths = sorted({latent.shape[1] for latent in batch.latents if latent.ndim == 4} - {1})
        frames, count = ", ".join(map(str, lengths)), len(batch.latents)
        # whole texts, as the page recognizes and translates them
        if frames:
            what = f"{count} clips of {sized} px and {frames} latent frames"
            what = f"1 clip of {sized} px and {frames} latent frames" if count == 1 else what
        else:
            what = f"1 picture of {sized} px" if count == 1 else f"{count} pictures of {sized} px"
        return f"step {self.position.step + 1}: {what}"

    def begin(self) -> None:
        """Stand where the position says; called once, before the first batch."""
        # accelerate counts batches by itself; a run resumed in the middle of an accumulation has to continue there
        self.accelerator.step = self.position.micro
        self._loss_sum = torch.tensor(self.position.loss_sum, device=self.accelerator.device)
        self.monitor.begin()
        self.agree()
        self.restart_clock()

    def restart_clock(self) -> None:
        """Begin to time a step: what came before (saving, samples, validation) is not part of it."""
        self.monitor.before_step()
        self._clock, self._waited = time.monotonic(), 0.0

    def next_batch(self) -> Batch:
        """The batch at the position; the time it took is a step's loader wait."""
        self.counter.begin_batch()
        if self.experts is not None:
            self.experts.take_turn(self.position.step)
        started = time.monotonic()
        place = self.position.after_batches(self.ranks.rank, self.counter.batches_per_epoch)
        batch = self.loader.batch(place.epoch, place.batch)
        self._waited += time.monotonic() - started
        self.in_hand = batch
        return batch

    def loss(self, batch: Batch) -> Tensor:
        """The objective's loss of a batch, shape (), on the device.

        Noise level and noise of a row come from (seed, number of the batch in the run, row), on the unpadded latent.
        """
        device, seed = self.accelerator.device, self.training.seed
        objective = self.objective
        # as if one process trained the batches of all, one after the other
        step, micro = self.position.step, self.position.micro * self.ranks.count + self.ranks.rank
        accumulation = self.training.batches_per_step
        number = step * accumulation + micro
        # LoRA dropout draws from torch's own generator, also inside compiled blocks: what a compile or a sample drew
        # before must not change it.
        torch.manual_seed(generator(seed, "dropout", number).initial_seed())
        rows = range(len(batch.latents))
        tokens = [math.prod(latent.shape[1:]) // self.geometry.patch**2 for latent in batch.latents]
        if self.experts is None:
            levels = objective.levels(tokens, seed, number)
        else:
            levels = self.experts.levels(tokens, seed, step, micro, accumulation)
        noises = [objective.noise(batch.latents[i].shape, seed, number, i) for i in rows]
        x0 = [to_device(latent, device) for latent in batch.latents]
        added, levels = [to_device(noise.added, device) for noise in noises], to_device(levels, device)
        wanted = [a if n.target is n.added else to_device(n.target, device) for n, a in zip(noises, added, strict=True)]
        text = self.conditioning(batch.text)
        predicted = self.forward([objective.noisy(x0[i], added[i], levels[i]) for i in rows], levels, text)
        targets = [objective.target(x0[i], wanted[i], levels[i]) for i in rows]
        cells = [None if weights is None else to_device(weights, device) for weights in batch.weights]
        losses = objective.losses(predicted, targets, levels, cells)
        if any(batch.is_reg) and self.prior_loss_weight != 1:
            weights = [self.prior_loss_weight if is_reg else 1.0 for is_reg in batch.is_reg]
            losses = losses * to_device(torch.tensor(weights), device)
        return losses.mean()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of `loss` to the step's; where the step is fused, weights move meanwhile."""
        self.torn = self._fused is not None
        self.accelerator.backward(loss)
        self.weights.collect_gradients()

    def clip_gradients(self) -> None:
        """Shorten the summed gradients to the longest that is allowed, and keep their length for the step's row.

        Of several processes, the mean of theirs.
        """
        self.ranks.average(self.weights.parameters())
        longest = self.max_grad_norm or math.inf
        if self._fused is not None:
            # each was shortened by itself, and used
            self._grad_norm = self._fused.grad_norm()
        else:
            self._grad_norm = self.accelerator.clip_grad_norm_(self.weights.parameters(), longest)
        self._rate = rate(self.optimizer)

    @property
    def _fused(self) -> Tensorwise | None:
        """The optimizer, where it moves weights in the backward pass."""
        inner = self.optimizer.optimizer
        return inner if isinstance(inner, Tensorwise) and inner.fused else None

    def update(self) -> None:
        """Step optimizer and schedule where a step's gradients are complete; accelerate leaves them alone before."""
        complete = self.accelerator.sync_gradients
        self.torn = complete
        if complete:
            self.ranks.seed_step(self.training.seed, self.position.step)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        if complete:
            if self.ema is not None and not self.optimizer.step_was_skipped:
                self.ema.update()
            self.counter.finish_step()
            self.torn = False

    def count_batch(self, loss: Tensor) -> None:
        """A batch is done: its loss joins the step's, and the position moves on."""
        assert self._loss_sum is not None
        self._loss_sum = self._loss_sum + loss.detach() / self.training.gradient_accumulation_steps
        self.counter.count_batch()

    def count_step(self) -> None:
        """A step is done: count it and hand its numbers to the step log, without waiting for them."""
        assert self._loss_sum is not None and self._grad_norm is not None
        self.counter.count_step()
        self.step_log.end_step(
            self.position.step,
            self.ranks.mean(self._loss_sum),
            self._grad_norm,
            {} if self.norms is None else self.norms.figures,
            lr=self._rate,
            s_per_step=time.monotonic() - self._clock,
            loader_wait=self._waited,
            epoch=self.position.epoch,
        )
        self._loss_sum = torch.zeros_like(self._loss_sum)
        self._note_good()
        self.monitor.after_step()

    def count_epochs(self) -> range:
        """Numbers, from 1, of the epochs that ended in the step that was just counted."""
        return self.counter.count_epochs()

    def count_time(self) -> None:
        """Bring the position's seconds up to now."""
        self.counter.count_time()

    def stop(self) -> Literal["stopped"]:
        """Save file and state as they are, also between two batches of a step. StopRequested before the first batch."""
        self.step_log.settle()
        if self.position.is_start:
            raise StopRequested
        assert self._loss_sum is not None
        self.counter.keep_loss(float(self._loss_sum))
        self.count_time()
        self.saver.save_stopped()
        return "stopped"

    def return_to_whole_step(self) -> int | None:
        """Bring the position to the last whole step and return it, 0 before the first.

        None where weights and optimizer are of no whole step, or their numbers are not finite.
        """
        try:
            self.step_log.settle()
            self._note_settled(self.position.step)
        except NotFinite:
            return None
        except Exception as error:  # noqa: BLE001 - a device that no longer answers; what is on it is tried next
            log.warning("The last step's numbers could not be read: %s", error)
        whole = self.counter.whole
        if whole is not None and whole.is_start:
            return 0
        if self.torn or self.ranks.torn or whole is None:
            return None
        self.counter.return_to_whole()
        self.optimizer.zero_grad()
        return self.position.step

    def _note_settled(self, step: int) -> None:
        """The numbers of `step` are finite: snapshots of the steps before it are good."""
        while self._fresh and step > self._fresh[0].step:
            self.good = self._fresh.popleft()

    def _note_good(self) -> None:
        """A snapshot is good once the step after it is settled; take a new one every few steps."""
        self._note_settled(self.position.step - 1)
        if not self.keeps_good:
            return
        every = _SNAPSHOT_STEPS if self.accelerator.device.type == "cuda" else 1
        if self.position.step % every == 0:
            self._fresh.append(self._snapshot())

    def _snapshot(self) -> Snapshot:
        def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: to_host(value) for name, value in tensors.items()}

        step = self.position.step
        if self.experts is None:
            return Snapshot(step=step, tensors=copies((self.weights if self.ema is None else self.ema).tensors()))
        sides = {side: copies(tensors) for side, tensors in self.experts.used_tensors().items()}
        return Snapshot(step=step, tensors=sides[self.experts.side], sides=sides)
