"""When and where a run's LoRA files and its resume state are written, and what happens when the disk is full."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
from torch import Tensor

from backend.base.errors import WriteFailed
from backend.base.files import unused_path
from backend.config.sections.saving import SavingSection
from backend.lora.inject import Lora
from backend.lora.keys import Names
from backend.lora.save import LoraNotFinite, file_tensors, write_lora
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.training.checkpoint import Fingerprint, Position, Stateful, save_state
from backend.training.step_log import NotFinite

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""Seconds until a save that failed in the middle of training is tried again."""

WAIT_S = 600.0
"""Seconds that the end of a run waits for room on the disk."""


@dataclass
class Saver:
    """Writes LoRA files into ``checkpoints/`` and the resume state into ``state/``; never overwrites a file.

    metadata: step -> what the file says about itself. names: what its layers are called. parts: what the state holds
    beside the LoRA. flush: brings the rows of all steps so far to the disk, so that a state never knows more steps than
    the metrics. wait_s: how long an end that can't be saved waits for somebody to free space before it gives up.
    to_use: holds the LoRA at the weights that files take, while the state keeps those that are trained.
    """

    run: Run
    events: EventWriter
    settings: SavingSection
    lora: Lora
    position: Position
    parts: dict[str, Stateful]
    fingerprint: Fingerprint
    names: Names
    metadata: Callable[[int], dict[str, str]]
    flush: Callable[[], object]
    wait_s: float = field(default_factory=lambda: WAIT_S)
    to_use: Callable[[], AbstractContextManager[None]] = nullcontext
    final: Path | None = None
    _again_at: float | None = None
    _saved_step: int | None = None

    def save(self) -> Path | None:
        """Write LoRA and state of the present step; None when the disk has no room.

        Then a warning is told, the run goes on, and `owed` turns True after a while.
        """
        step = self.position.step
        if self._saved_step == step:
            return None
        name = f"{self.settings.output_name}-step{step:08d}.safetensors"
        try:
            path = self._write(name)
        except WriteFailed as error:
            self._again_at = time.monotonic() + AGAIN_S
            remedy = f"{error.remedy} Training goes on, and the save is tried again every {AGAIN_S:.0f} seconds."
            self.events.write("warning", text=f"Step {step} could not be saved. {error.text}", remedy=remedy)
            log.warning("Step %d could not be saved: %s", step, error)
            return None
        self._again_at, self._saved_step = None, step
        self._keep_last()
        return path

    @property
    def owed(self) -> bool:
        """True when a save failed and it is time to try again."""
        return self._again_at is not None and time.monotonic() >= self._again_at

    def save_stopped(self) -> Path | None:
        """`save` before a stop, also in the middle of an accumulation: waits for room on the disk."""
        if self._saved_step == self.position.step and not self.position.micro:
            return None
        name = f"{self.settings.output_name}-step{self.position.step:08d}.safetensors"
        path = self._insist(name)
        self._keep_last()
        return path

    def save_final(self) -> Path:
        """Write the finished LoRA under the run's own name; waits for room on the disk."""
        self.final = self._insist(f"{self.settings.output_name}.safetensors")
        return self.final

    def save_rescued(self, tensors: dict[str, Tensor], step: int) -> Path:
        """Write LoRA values of an earlier step, after training went wrong: ``<name>-step…-last-good``."""
        self.lora.restore(tensors)
        name = f"{self.settings.output_name}-step{step:08d}-last-good.safetensors"
        return self._write_lora(name, step)

    def newest(self) -> tuple[int, Path | None]:
        """The latest step with a LoRA file, and the file; (0, None) when there is none."""
        return max(self._files(), default=(0, None))

    def _files(self) -> list[tuple[int, Path]]:
        """Files saved on the way, by step."""
        found = ((_step(path), path) for path in self.run.checkpoints_dir.glob("*.safetensors"))
        return sorted((step, path) for step, path in found if step is not None)

    def _insist(self, name: str) -> Path:
        deadline, told = time.monotonic() + self.wait_s, False
        while True:
            try:
                return self._write(name)
            except WriteFailed as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    wait = f"The run waits {self.wait_s / 60:.0f} minutes for it."
                    self.events.write("warning", text=error.text, remedy=f"{error.remedy} {wait}")
                    log.warning("%s %s", error, wait)
                    told = True
                time.sleep(min(2.0, max(0.05, self.wait_s / 20)))

    def _write(self, name: str) -> Path:
        self.events.write("phase", phase="save", done=self.position.step, total=None, eta_s=None)
        # The LoRA first: a state without its file would make a resume believe that it was written.
        try:
            with self.to_use():
                path = self._write_lora(name, self.position.step)
        except (WriteFailed, NotFinite):
            raise
        except Exception:
            # no room on the disk would help: what was trained must not go down with a file that can't be made
            self._keep_state()
            raise
        if self.settings.save_state:
            self._write_state()
        return path

    def _write_state(self) -> None:
        self.flush()
        save_state(self.run.state_dir, self.position, self.lora, self.parts, self.fingerprint)
        self.events.write("state", step=self.position.step)

    def _keep_state(self) -> None:
        """Write the resume state, whatever the settings, since no LoRA file can be made."""
        self._write_state()
        text = f"The LoRA file of step {self.position.step} can't be made; its resume state is kept"
        remedy = "Correct what the error names, then resume the run."
        self.events.write("warning", text=text, remedy=remedy)
        log.warning("%s %s", text, remedy)

    def _write_lora(self, name: str, step: int) -> Path:
        try:
            tensors = file_tensors(self.lora, self.settings.save_precision, self.names, self.settings.save_layout)
        except LoraNotFinite as error:
            raise NotFinite(step, "LoRA", math.nan) from error
        path = self.run.checkpoints_dir / name
        if path.exists() and _holds(path, tensors):
            return path
        path = unused_path(path)
        write_lora(path, tensors, self.metadata(step))
        self.events.write("checkpoint", step=step, file=path.relative_to(self.run.path).as_posix())
        return path

    def _keep_last(self) -> None:
        if self.settings.save_last_n is None:
            return
        for _, path in self._files()[: -self.settings.save_last_n]:
            log.info("Removing %s: save_last_n keeps %d", path.name, self.settings.save_last_n)
            path.unlink(missing_ok=True)


def _step(path: Path) -> int | None:
    """The step in the name of a file saved on the way; None for the finished LoRA and a rescued one."""
    match = re.fullmatch(r".+-step(\d{8})(-\d+)?", path.stem)
    return int(match[1]) if match else None


def _holds(path: Path, tensors: dict[str, Tensor]) -> bool:
    """True when the file has exactly these tensors: a run resumed from there would write it a second time."""
    try:
        there = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError):
        return False
    return there.keys() == tensors.keys() and all(there[key].equal(value) for key, value in tensors.items())
