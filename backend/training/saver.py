"""Saves a run's LoRA files and its resume state; says what is on the disk when one of them can't be written."""

from __future__ import annotations

import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from backend.base.errors import WriteFailed
from backend.base.files import atomic_path, in_words, unused_path
from backend.config.experts import ENDINGS, SIDES, expert_file
from backend.config.sections.saving import SavingSection
from backend.families.spec import Side
from backend.lora.comfyui_keys import LayerNames
from backend.lora.inject import Lora
from backend.lora.save import LoraNotFinite, file_tensors, write_lora
from backend.runs.events import EventWriter
from backend.runs.events.kinds import CheckpointEvent, PhaseEvent, StateEvent, WarningEvent
from backend.runs.folder import Run
from backend.training.checkpoint import Fingerprint, Stateful, save_state
from backend.training.experts import Experts, other_side
from backend.training.position import CurrentPosition
from backend.training.step_log import NotFinite

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""Seconds until a save that failed in the middle of training is tried again."""

WAIT_S = 600.0
"""Seconds that the end of a run waits for room on the disk."""

STATE_EVERY_S = 600.0
"""Seconds of training that are lost at most when the process is killed: the state is also kept that often."""


@dataclass(kw_only=True, slots=True)
class Saver:
    """Writes LoRA files into ``checkpoints/`` and the resume state into ``state/``.

    A file's name stands for the newest of its step, and nothing is overwritten: what a name stood for before is kept
    under another one.
    """

    run: Run
    events: EventWriter
    settings: SavingSection
    lora: Lora
    position: CurrentPosition
    parts: dict[str, Stateful]
    """What the state holds besides the LoRA."""
    fingerprint: Fingerprint
    names: LayerNames
    """Of the LoRA's layers in files."""
    metadata: Callable[[int, Side | None], dict[str, str]]
    """Step, and the expert that the file is of, or None -> what the file says about itself."""
    flush: Callable[[], object]
    """Brings the rows of all steps so far to the disk, so that a state never knows more steps than the metrics."""
    wait_s: float = field(default_factory=lambda: WAIT_S)
    """How long an end that can't be saved waits for somebody to free space before it gives up."""
    to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    """Holds the LoRA at the weights that files take, while the state keeps those that are trained."""
    experts: Experts | None = None
    """Both experts, where both are trained: a save then writes a file for each, the one for high noise last."""
    final: Path | None = None
    """The finished LoRA, once it is written; of two, that for high noise."""
    file: tuple[int, Path] | None = None
    """Step and path of the LoRA file written last."""
    state_at: tuple[int, int] | None = None
    """Step and batches of the state that is on the disk."""
    _again_at: float | None = None
    _saved_step: int | None = None
    _state_time: float = field(default_factory=time.monotonic)

    def save(self) -> Path | None:
        """Write LoRA and state of the present step; None when the disk has no room.

        Then a warning is written, the run continues, and `owed` turns True after a while.
        """
        step = self.position().step
        if self._saved_step == step:
            return None
        try:
            path = self._write(self._name_on_the_way())
        except WriteFailed as error:
            self._again_at = time.monotonic() + AGAIN_S
            remedy = f"{error.remedy} Training continues, and the save is tried again every {AGAIN_S:.0f} seconds."
            self.events.write(WarningEvent(text=f"Step {step} could not be saved. {error.text}", remedy=remedy))
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
        """Write the finished LoRA under the run's own name; waits for room on the disk."""
        return self._insist(lambda: self._write(self._final_name))

    def save_rescued(
        self, tensors: dict[str, Tensor], step: int, sides: Mapping[Side, dict[str, Tensor]] | None = None
    ) -> Path:
        """Write LoRA values of an earlier step, after training went wrong: ``<name>-step…-last-good``.

        sides: the values of both experts, where both are trained.
        """
        if self.experts is not None and sides is not None:
            tensors = sides[self.experts.side]
            self.experts.put_aside(sides[other_side(self.experts.side)])
        try:
            self.lora.restore(tensors)
        except RuntimeError as error:
            # the device is gone, and the values are on the host
            log.warning("The device takes no values any more (%s): they are written from the host", error)
            self.lora.take_over(tensors)
        name = f"{self.settings.output_name}-step{step:08d}-last-good.safetensors"
        return self._insist(lambda: self._write_files(name, step))

    def save_elsewhere(self, folder: Path) -> Path:
        """Write LoRA and state of the present step below `folder`, laid out as in the run's own; return where.

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

    def newest(self) -> tuple[int, Path | None]:
        """The latest step with a LoRA file, and the file; (0, None) when there is none."""
        return max(self._files(), default=(0, None))

    def kept(self, step: int) -> str:
        """What is on the disk of `step`, in sentences; "" where nothing is."""
        state = self.state_at is not None and self.state_at[0] == step
        if self.file is None or self.file[0] != step:
            without = "and the LoRA file could not be written. Resume continues from there"
            return f"The resume state of step {step} is kept, {without}, with other settings too." if state else ""
        path = self.file[1].relative_to(self.run.path).as_posix()
        if self.experts is not None:
            path = f"{path} and {expert_file(self.file[1], 'low').name}"
        what = "The finished LoRA is kept" if self.file[1] == self.final else f"The LoRA of step {step} is kept"
        if state:
            return f"{what} in {path}. Resume continues from there, with other settings too."
        if not self.settings.save_state:
            return f"{what} in {path}."
        before = "The resume state is that of an earlier save." if self.run.has_state() else "There is no resume state."
        return f"{what} in {path}. {before}"

    @property
    def _final_name(self) -> str:
        return f"{self.settings.output_name}.safetensors"

    def _name_on_the_way(self) -> str:
        return f"{self.settings.output_name}-step{self.position().step:08d}.safetensors"

    def _files(self) -> list[tuple[int, Path]]:
        """Files saved on the way, by step."""
        files = ((_step(path), path) for path in self.run.checkpoints_dir.glob("*.safetensors"))
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
        """LoRA and state, of which neither may cost the other: what failed first is raised once both were tried."""
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
            # whatever the settings say: where no LoRA file can be made the state is all that was trained
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
        save_state(self.run.state_dir, position, self.lora, self.parts, self.fingerprint)
        self.state_at, self._state_time = here, time.monotonic()
        self.events.write(StateEvent(step=position.step))

    def _write_files(
        self, name: str, step: int, to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Path:
        """Write the LoRA, or that of each expert under names that end in its own; the path, of the last one."""
        if self.experts is None:
            with to_use():
                return self._write_lora(self.lora, name, step, None)
        path = self.run.checkpoints_dir / name
        for side in reversed(SIDES):
            with self.experts.trained(side) as lora, to_use():
                path = self._write_lora(lora, _of_side(name, side), step, side)
        return path

    def _write_lora(self, lora: Lora, name: str, step: int, side: Side | None) -> Path:
        try:
            tensors = file_tensors(lora, self.settings.save_precision, self.names, self.settings.save_layout)
        except LoraNotFinite as error:
            raise NotFinite(step, "LoRA", math.nan) from error
        path = self.run.checkpoints_dir / name
        there = path.exists() and _holds(path, tensors)
        if not there:
            path = self._free(path)
            write_lora(path, tensors, self.metadata(step, side))
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
        before = _trained_steps(path)
        kept = path
        if before is not None and _step(path) is None:
            kept = path.with_stem(f"{path.stem}-step{before:08d}-final")
        if kept == path or not (kept.exists() and _same_bytes(kept, path)):
            kept = unused_path(kept)
            try:
                _copy(path, kept)
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
            kept = sorted({step for step, _ in files})[-self.settings.save_last_n :]
            # names of one step that are not of two experts are files of their own
            older = files[: -self.settings.save_last_n] if self.experts is None else files
            for _, path in (each for each in older if self.experts is None or each[0] not in kept):
                log.info("Removing %s: save_last_n keeps %d", path.name, self.settings.save_last_n)
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("An older file could not be removed: %s", error)


def _step(path: Path) -> int | None:
    """The step in the name of a file saved on the way; None for the finished LoRA and a rescued one."""
    match = re.fullmatch(r".+-step(\d{8})(?:_(?:high|low)_noise)?(-\d+)?", path.stem)
    return int(match[1]) if match else None


def _of_side(name: str, side: Side) -> str:
    """The name of a file of one expert."""
    path = Path(name)
    return f"{path.stem}{ENDINGS[side]}{path.suffix}"


def _trained_steps(path: Path) -> int | None:
    """How many steps a LoRA file was trained, by its metadata; None where it says nothing."""
    try:
        with safetensors.safe_open(path, "pt") as opened:
            return int((opened.metadata() or {})["ss_steps"])
    except (OSError, KeyError, ValueError, safetensors.SafetensorError):
        return None


def _copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the disk knows one name a file. WriteFailed when neither works."""
    try:
        os.link(source, target)
    except OSError:
        with atomic_path(target) as temporary:
            shutil.copyfile(source, temporary)


def _same_bytes(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b) or a.read_bytes() == b.read_bytes()
    except OSError:
        return False


def _holds(path: Path, tensors: dict[str, Tensor]) -> bool:
    """True when the file has exactly these tensors: a run resumed from there would write it a second time."""
    try:
        there = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError):
        return False
    return there.keys() == tensors.keys() and all(there[key].equal(value) for key, value in tensors.items())
