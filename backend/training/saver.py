"""Saves a run's LoRA or model files and its resume state; says what is on the disk when one can't be written."""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import Tensor

from backend.base.errors import WriteFailed
from backend.base.files import in_words, unused_path
from backend.config.experts import ENDINGS, SIDES, expert_file
from backend.config.sections.saving import SavingSection
from backend.families.spec import Side
from backend.optimizers.trained_weights import TrainedWeights
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent, PhaseEvent, StateEvent, WarningEvent
from backend.runs.folder import Run
from backend.runs.state_folder import STATE_EVERY_S
from backend.training.checkpoint import Fingerprint, Stateful, save_state
from backend.training.experts import Experts, other_side
from backend.training.position import CurrentPosition
from backend.training.saved_files import LoraFiles, SavedFiles, WeightsNotFinite
from backend.training.step_log import NotFinite

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""Seconds until a save that failed in the middle of training is tried again."""

WAIT_S = 600.0
"""Seconds that the end of a run waits for room on the disk."""


@dataclass(kw_only=True, slots=True)
class Saver:
    """Writes LoRA or model files into ``checkpoints/`` and the resume state into ``state/``.

    A file's name stands for the newest of its step, and nothing is overwritten: what a name stood for before is kept
    under another one. Only files beside the run's own (`write_beside`) give way to what takes their place.
    """

    run: Run
    events: EventWriter
    settings: SavingSection
    weights: TrainedWeights
    files: SavedFiles
    """What `weights` become in files."""
    position: CurrentPosition
    parts: dict[str, Stateful]
    """What the state holds besides the weights."""
    fingerprint: Fingerprint
    metadata: Callable[[int, Side | None], dict[str, str]]
    """Step, and the expert that the file is of, or None -> what the file says about itself."""
    flush: Callable[[], object]
    """Brings the rows of all steps so far to the disk, so that a state never knows more steps than the metrics."""
    wait_s: float = field(default_factory=lambda: WAIT_S)
    """How long an end that can't be saved waits for somebody to free space before it gives up."""
    to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    """Holds what is trained at the weights that files take, while the state keeps those that are trained."""
    protected: Callable[[Collection[int]], set[int]] = lambda steps: set()
    """Of the steps with a file, those whose files stay whatever save_last_n says."""
    experts: Experts | None = None
    """Both experts, where both are trained: a save then writes a file for each, the one for high noise last."""
    final: Path | None = None
    """The finished file, once it is written; of two, that for high noise."""
    file: tuple[int, Path] | None = None
    """Step and path of the file written last."""
    state_at: tuple[int, int] | None = None
    """Step and batches of the state that is on the disk."""
    _again_at: float | None = None
    _saved_step: int | None = None
    _state_time: float = field(default_factory=time.monotonic)

    def save(self) -> Path | None:
        """Write file and state of the present step; None when the disk has no room.

        Then a warning is written, the run continues, and `owed` turns True after a while.
        """
        step = self.position().step
        if self._saved_step == step:
            return None
        try:
            path = self._write(self._name_on_the_way())
        except WriteFailed as error:
            self._again_at = time.monotonic() + AGAIN_S
            again = f"Training continues, and the save is tried again every {AGAIN_S:.0f} seconds."
            text = f"Step {step} could not be saved. {error.text}"
            self.events.write(WarningEvent(text=text, remedy=f"{error.remedy} {again}"))
            log.warning("Step %d could not be saved: %s", step, error)
            return None
        self._again_at, self._saved_step = None, step
        self._keep_last()
        return path

    def save_state_in_time(self) -> bool:
        """Write the state alone where the last one is `STATE_EVERY_S` old; True when it was written.

        A disk that refuses it costs a warning; it is tried again after as long.
        """
        if not self.settings.save_state or not self.state_is_old:
            return False
        try:
            self._write_state()
        except OSError as error:
            failure = in_words(error, self.run.state_dir)
            assert isinstance(failure, WriteFailed)
            self._state_time = time.monotonic()
            text = f"The resume state of step {self.position().step} could not be saved. {failure.text}"
            self.events.write(WarningEvent(text=text, remedy=failure.remedy))
            log.warning("%s %s", text, failure.remedy)
            return False
        return True

    @property
    def state_is_old(self) -> bool:
        """True when the last state is older than may be lost."""
        return time.monotonic() - self._state_time >= STATE_EVERY_S

    @property
    def owed(self) -> bool:
        """True when a save failed and it is time to try again."""
        return self._again_at is not None and time.monotonic() >= self._again_at

    def save_stopped(self) -> Path | None:
        """`save` before a stop, also in the middle of an accumulation: waits for room on the disk."""
        if self._saved_step == self.position().step and not self.position().micro:
            return None
        at_end = self.final is not None and self.file == (self.position().step, self.final)
        name = self._final_name if at_end else self._name_on_the_way()
        path = self._insist(lambda: self._write(name))
        self._keep_last()
        return path

    def save_final(self) -> Path:
        """Write the finished file under the run's own name; waits for room on the disk."""
        return self._insist(lambda: self._write(self._final_name))

    def save_rescued(
        self, tensors: dict[str, Tensor], step: int, sides: Mapping[Side, dict[str, Tensor]] | None = None
    ) -> Path:
        """Write values of an earlier step, after training went wrong: ``<name>-step…-last-good``.

        sides: the values of both experts, where both are trained.
        """
        if self.experts is not None and sides is not None:
            tensors = sides[self.experts.side]
            self.experts.put_aside(sides[other_side(self.experts.side)])
        try:
            self.weights.restore(tensors)
        except RuntimeError as error:
            # the device is gone, and the values are on the host
            log.warning("The device takes no values any more (%s): they are written from the host", error)
            self.weights.take_over(tensors)
        name = f"{self.settings.output_name}-step{step:08d}-last-good{self.files.ending}"
        return self._insist(lambda: self._write_files(name, step))

    def save_elsewhere(self, folder: Path) -> Path:
        """Write file and state of the present step below `folder`, laid out as in the run's own; return where.

        OSError when it has no room either.
        """
        run, place = self.run, Run(folder / self.run.name)
        for each in (place.checkpoints_dir, place.state_dir):
            each.mkdir(parents=True, exist_ok=True)
        events, self.run, self.state_at = self.events, place, None
        # the run's own events name its own files alone
        self.events = EventWriter(os.devnull)
        try:
            self._write(self._name_on_the_way())
        finally:
            self.run, self.events, self.file, self.state_at = run, events, None, None
        return place.path

    def write_beside(self, path: Path, step: int, more: Mapping[str, str]) -> None:
        """Write what is in the model now to `path`, in place of what is there; no save of the run's own.

        more: metadata besides the usual. WeightsNotFinite, Refused or WriteFailed where it can't be written.
        """
        self.files.content().write(path, {**self.metadata(step, None), **more})

    def newest(self) -> tuple[int, Path | None]:
        """The latest step with a file, and the file; (0, None) when there is none."""
        return max(self._files(), default=(0, None))

    def kept(self, step: int) -> str:
        """What is on the disk of `step`, in sentences; "" where nothing is."""
        state = self.state_at is not None and self.state_at[0] == step
        if self.file is None or self.file[0] != step:
            without = (
                f"The resume state of step {step} is kept, and the {self.files.noun} file could not be written. Resume "
                "continues from there, with other settings too."
            )
            return without if state else ""
        path = self.file[1].relative_to(self.run.path).as_posix()
        if self.experts is not None:
            path = f"{path} and {expert_file(self.file[1], 'low').name}"
        noun = self.files.noun
        what = f"The {noun} of step {step} is kept in {path}."
        if self.file[1] == self.final:
            what = f"The finished {noun} is kept in {path}."
        if state:
            resume = "Resume continues from there, with other settings too."
        elif not self.settings.save_state:
            resume = ""
        else:
            earlier = "The resume state is that of an earlier save."
            resume = earlier if self.run.has_state() else "There is no resume state."
        return f"{what} {resume}".rstrip()

    def saved(self) -> dict[int, Path]:
        """Step -> the file saved on the way at it."""
        return dict(self._files())

    @property
    def _final_name(self) -> str:
        return f"{self.settings.output_name}{self.files.ending}"

    def _name_on_the_way(self) -> str:
        return f"{self.settings.output_name}-step{self.position().step:08d}{self.files.ending}"

    def _files(self) -> list[tuple[int, Path]]:
        """Files saved on the way, by step."""
        files = ((self._step(path), path) for path in self.files.listed(self.run.checkpoints_dir))
        return sorted((step, path) for step, path in files if step is not None)

    def _insist(self, write: Callable[[], Path]) -> Path:
        deadline, warned = None, False
        while True:
            try:
                return write()
            except WriteFailed as error:
                # from the first failure on: a slow disk may take long to say that it is full
                deadline = time.monotonic() + self.wait_s if deadline is None else deadline
                if time.monotonic() >= deadline:
                    raise
                if not warned:
                    wait = f"The run waits {self.wait_s / 60:.0f} minutes for it."
                    self.events.write(WarningEvent(text=error.text, remedy=f"{error.remedy} {wait}"))
                    log.warning("%s %s", error, wait)
                    warned = True
                time.sleep(min(2.0, max(0.05, self.wait_s / 20)))

    def _write(self, name: str) -> Path:
        """File and state, of which neither may cost the other: what failed first is raised once both were tried."""
        self.events.write(PhaseEvent(phase="save", done=self.position().step, total=None, eta_s=None))
        failure: Exception | None = None
        path = self.run.checkpoints_dir / name
        try:
            path = self._write_files(name, self.position().step, self.to_use)
        except NotFinite:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the state is worth more
            failure = in_words(error, path)
            log.warning("%s could not be written: %s", path, failure)
        try:
            # whatever the settings say: where no file can be made the state is all that was trained
            if self.settings.save_state or failure is not None:
                self._write_state()
        except Exception as error:  # noqa: BLE001 - what failed first is raised below
            log.warning("The resume state could not be written: %s", error)
            failure = failure or in_words(error, self.run.state_dir)
        if failure is not None:
            raise failure
        return path

    def _write_state(self) -> None:
        position = self.position()
        here = (position.step, position.micro)
        if self.state_at == here:
            return
        self.flush()
        save_state(self.run.state_dir, position, self.weights, self.parts, self.fingerprint)
        self.state_at, self._state_time = here, time.monotonic()
        self.events.write(StateEvent(step=position.step))

    def _write_files(
        self, name: str, step: int, to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Path:
        """Write the file, or that of each expert under names that end in its own; the path, of the last one."""
        if self.experts is None:
            with to_use():
                return self._write_file(self.files, name, step, None)
        assert isinstance(self.files, LoraFiles)
        path = self.run.checkpoints_dir / name
        for side in reversed(SIDES):
            with self.experts.trained(side) as lora, to_use():
                path = self._write_file(replace(self.files, lora=lora), _of_side(name, side), step, side)
        return path

    def _write_file(self, files: SavedFiles, name: str, step: int, side: Side | None) -> Path:
        path = self.run.checkpoints_dir / name
        try:
            content = files.content()
            there = path.exists() and content.is_in(path)
            if not there:
                path = self._free(path)
                content.write(path, self.metadata(step, side))
        except WeightsNotFinite as error:
            raise NotFinite(step, files.noun, math.nan) from error
        self.file = (step, path)
        final = self._final_name if side is None else _of_side(self._final_name, side)
        self.final = path if name == final else self.final
        if not there:
            self.events.write(CheckpointEvent(step=step, file=path.relative_to(self.run.path).as_posix()))
        return path

    def _free(self, path: Path) -> Path:
        """`path`, once what is there now has a second name; another path where that can't be done."""
        if not path.exists():
            return unused_path(path)
        before = self.files.steps_of(path)
        kept = path
        if before is not None and self._step(path) is None:
            kept = path.with_name(f"{self._stem(path)}-step{before:08d}-final{self.files.ending}")
        if kept == path or not (kept.exists() and self.files.is_same(kept, path)):
            kept = unused_path(kept)
            try:
                self.files.copy(path, kept)
            except WriteFailed as error:
                log.warning("%s stays, and the new file has another name: %s", path.name, error)
                return unused_path(path)
        log.info("%s of before is kept as %s", path.name, kept.name)
        self.events.write(CheckpointEvent(step=before, file=kept.relative_to(self.run.path).as_posix()))
        return path

    def _keep_last(self) -> None:
        if self.settings.save_last_n is None:
            return
        try:
            files = self._files()
            kept = set(sorted({step for step, _ in files})[-self.settings.save_last_n :])
            stay = self.protected([step for step, _ in files])
            # names of one step that are not of two experts are files of their own
            older = files[: -self.settings.save_last_n] if self.experts is None else files
            for step, path in (each for each in older if self.experts is None or each[0] not in kept):
                if step in stay:
                    continue
                log.info("Removing %s: save_last_n keeps %d", path.name, self.settings.save_last_n)
                self.files.remove(path)
        except OSError as error:
            log.warning("An older file could not be removed: %s", error)

    def _stem(self, path: Path) -> str:
        return path.name.removesuffix(self.files.ending)

    def _step(self, path: Path) -> int | None:
        """The step in the name of a file saved on the way; None for the finished file and a rescued one."""
        match = re.fullmatch(r".+-step(\d{8})(?:_(?:high|low)_noise)?(-\d+)?", self._stem(path))
        return int(match[1]) if match else None


def _of_side(name: str, side: Side) -> str:
    """The name of a file of one expert."""
    path = Path(name)
    return f"{path.stem}{ENDINGS[side]}{path.suffix}"
