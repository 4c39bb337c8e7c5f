"""Makes, finds and changes run folders: everything about a run is inside, and who has the folder sees the same run.

``config.toml`` (whole), ``run.json``, ``events.jsonl``, ``metrics.sqlite``, ``log.txt``, ``state/``, ``checkpoints/``,
``samples/``, ``control/``.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from backend.base.jsonable import jsonable
from backend.base.redact import redact_value
from backend.runs import record
from backend.runs.control import Control
from backend.runs.errors import RunBusy, RunError, RunNotFound
from backend.runs.events import read_events
from backend.runs.events.kinds import CheckpointEvent, SampleEvent
from backend.runs.liveness import is_alive, is_being_started, is_fresh, is_here, place
from backend.runs.paths import CONFIG, EVENTS, RECORD, RunPaths
from backend.runs.process import MARKER, START, ProcessId
from backend.runs.record import FINAL, FinalState
from backend.runs.samples import Sample, is_clip, is_sample, sheet_of
from backend.runs.state_folder import newest_state
from backend.runs.status import RunStatus
from backend.runs.status_reader import StatusReader

if TYPE_CHECKING:
    from backend.config.schema import Config

FileEvent = TypeVar("FileEvent", SampleEvent, CheckpointEvent)
_RESERVED = re.compile(r"^(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³])(\.|$)", re.IGNORECASE)
# Folder names end at 255 bytes; the time and a number follow.
_LONGEST_NAME = 120


@dataclass(frozen=True)
class Checkpoint:
    """One LoRA file of a run."""

    path: Path
    step: int | None
    """None when no event names the file."""
    size: int
    """Bytes."""
    t: float
    """The file's time in unix seconds."""
    role: str | None = None
    """best or average; None for the run's own saves."""


class Run(RunPaths):
    """One run folder. Cheap to make; holds nothing open."""

    @classmethod
    def create(cls, cfg: Config, name: str | None = None, root: str | Path | None = None) -> Run:
        """Make a new run folder with its whole configuration; never uses a folder that exists.

        Args:
            cfg: the configuration, written to ``config.toml`` with every setting.
            name: what the folder's name begins with; the configuration's ``output_name`` when None.
            root: where run folders lie; the configuration's ``output_dir`` when None.

        Raises:
            WriteFailed, RunError: the folder or a file in it can't be made.
        """
        # Here and not above: whoever only reads runs needs no pydantic.
        from backend.base.paths import resolve
        from backend.config.toml_io import dump

        base = resolve(cfg.saving.output_dir) if root is None else Path(root)
        run = cls.create_empty(base, name or cfg.saving.output_name)
        dump(cfg, run.config_path, whole=True)
        return run

    @classmethod
    def create_empty(cls, root: str | Path, name: str) -> Run:
        """Make the folder ``<name>-<time>`` with its sub-folders and its record, but no configuration."""
        stem = f"{safe_name(name)}-{datetime.now():%Y%m%d-%H%M%S}"
        path, number = Path(root) / stem, 2
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
            while True:
                try:
                    path.mkdir()
                    break
                except FileExistsError:
                    path = Path(root) / f"{stem}-{number}"
                    number += 1
            run = cls(path)
            run.make_folders()
            record.update(run.record_path, lambda _: {"name": name, "created": time.time()})
        except OSError as error:
            why = getattr(error, "text", "") or f"{error.strerror or error}."
            raise RunError(
                f"The run's folder {path} can't be created: {why}",
                "Free some space there, or choose another output_dir.",
            ) from error
        return run

    def discard(self) -> None:
        """Remove the folder of a run that no process was ever started for; any other run stays."""
        if "start" not in self.record():
            shutil.rmtree(self.path, ignore_errors=True)

    def make_folders(self) -> None:
        """Make the folders inside of it, and itself, where they are missing."""
        for folder in (self.state_dir, self.checkpoints_dir, self.samples_dir, self.control_dir):
            folder.mkdir(parents=True, exist_ok=True)

    def record(self) -> dict:
        """What ``run.json`` holds; empty when it is missing."""
        return record.read(self.record_path)

    def process(self) -> ProcessId | None:
        """The identity of the run's newest trainer process, alive or not; None when it never had one."""
        return ProcessId.from_record(self.record())

    def is_alive(self, current: dict | None = None) -> bool:
        """True while the trainer process runs, here or elsewhere. current: its record, where that was just read."""
        current = self.record() if current is None else current
        return is_alive(current, self.alive_path)

    def is_at_work(self) -> bool:
        """True while a trainer works on it, or was just started and has not said so yet."""
        current = self.record()
        return current.get("state") not in FINAL and (self.is_alive(current) or is_being_started(current))

    def is_spawned(self) -> bool:
        """True in a trainer that `supervise.start` made for this run; False in one that was started by hand."""
        return os.environ.get(MARKER) == str(self.path) and START in os.environ

    def prepare_start(self, command: list[str]) -> str:
        """Forget the process before: for whoever is about to start a trainer. Old requests are taken back.

        Args:
            command: what will be run, kept for people to read; secrets in it are hidden.

        Returns:
            The word of this start, which its processes carry in `process.START`.

        Raises:
            RunBusy: a trainer is already at work on this run, or being started.
            RunNotFound: the folder was deleted.
        """
        word = secrets.token_hex(8)

        def change(current: dict) -> dict:
            self.refuse_second(current)
            # under the record's lock: a request that comes later is for the new process
            Control(self).clear_all()
            return record.without_process(current) | {
                "start": word,
                "starter": ProcessId.of(os.getpid()).to_record(),
                **place(),
                "started": time.time(),
                "command": redact_value(command),
                "events_offset": _size(self.events_path),
                "log_offset": _size(self.log_path),
            }

        if not self.path.is_dir():
            raise RunNotFound(
                f"The run's folder {self.path} does not exist any more.", "Start a new run from its settings."
            )
        self.control_dir.mkdir(exist_ok=True)
        record.update(self.record_path, change)
        return word

    def attach(self) -> None:
        """For the trainer itself, first thing, whoever started it: make this process the run's process.

        Raises:
            RunBusy: another live process already works on this run, or was started after this one.
        """
        if not self.is_spawned():
            os.environ[START] = self.prepare_start(sys.orig_argv)
            os.environ[MARKER] = str(self.path)
        if sys.platform == "win32":
            from backend.runs.windows_job import contain_descendants

            contain_descendants()
        word = os.environ[START]
        own = ProcessId.of(os.getpid()).to_record() | place() | {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}

        def change(current: dict) -> dict:
            self.refuse_second(current, word)
            if current.get("start", word) != word:
                raise RunBusy(f"The run {self.name} was started again by another process.", "Leave it to that process.")
            return current | own | {"start": word}

        record.update(self.record_path, change)

    def begin_generation(self, step: int = 0) -> int:
        """Count one more start of this run; return its generation (0 for the first), for the `MetricsWriter`.

        Args:
            step: the last step that stands, 0 for a start from the beginning.
        """
        changed = record.update(
            self.record_path,
            lambda current: current | {"generation": current.get("generation", -1) + 1, "generation_step": step},
        )
        return changed["generation"]

    def finish(self, state: FinalState, ended: float | None = None, start: str | None = None, **fields: object) -> None:
        """Write how the run ended; a second call changes fields but never an end that is already written.

        Only ``dead``, which others concluded from afar, gives way to what the trainer itself says.

        Args:
            state: ``done``, ``stopped``, ``failed`` or ``dead``.
            ended: unix seconds; now when None.
            start: the word of the start that has ended: nothing is written about a newer one. None: whichever it is.
            fields: the result (``step``, ``lora``, ``seconds`` ...), or ``error`` with text, cause and remedy.
        """
        if state not in FINAL:
            raise ValueError(f"{state!r} is no end of a run; known: {', '.join(sorted(FINAL))}")

        def change(current: dict) -> dict | None:
            if start is not None and current.get("start") != start:
                return None
            extra = redact_value(jsonable(fields))
            error = extra.pop("error", None)
            known = current.get("state") if current.get("state") in FINAL else None
            if known == "dead" and state != "dead":
                known, current = None, {key: value for key, value in current.items() if key not in ("ended", "error")}
            before = current.get("result")
            merged = current | {"state": known or state, "ended": current.get("ended") or ended or time.time()}
            merged["result"] = (before if isinstance(before, dict) else {}) | extra
            return merged | ({"error": error} if error else {})

        record.update(self.record_path, change)

    def status(self) -> RunStatus:
        """How the run stands now, compared with the live process. To look repeatedly, keep a `StatusReader`."""
        return StatusReader(self).read()

    def samples(self, events: Mapping[str, SampleEvent] | None = None) -> list[Sample]:
        """The samples that exist, in the order they were drawn. events: theirs by file name, where known."""
        events = self._by_file(SampleEvent) if events is None else events
        samples = [_sample(path, events.get(path.name)) for path in _files(self.samples_dir) if is_sample(path)]
        return sorted(samples, key=lambda s: (s.step is None, s.step or 0, s.prompt_index or 0, s.t, s.path.name))

    def checkpoints(self, events: Mapping[str, CheckpointEvent] | None = None) -> list[Checkpoint]:
        """The LoRA files that exist, oldest step first. events: theirs by file name, where known.

        Of files of one step, the run's own saves come last, so that the newest file is one of them.
        """
        events = self._by_file(CheckpointEvent) if events is None else events
        files = [
            _checkpoint(path, events.get(path.name))
            for path in _files(self.checkpoints_dir)
            if path.suffix == ".safetensors"
        ]
        return sorted(files, key=lambda c: (c.step is None, c.step or 0, c.role is None, c.t, c.path.name))

    def model_folders(self, events: Mapping[str, CheckpointEvent] | None = None) -> list[Checkpoint]:
        """Whole models that were saved as folders in diffusers layout, likewise."""
        events = self._by_file(CheckpointEvent) if events is None else events
        folders = [
            Checkpoint(
                path,
                events[path.name].step if path.name in events else None,
                sum(_size(file) for file in path.glob("*/*")),
                _time(path),
            )
            for path in _entries(self.checkpoints_dir)
            if not path.name.startswith(".") and any(path.glob("*/config.json"))
        ]
        return sorted(folders, key=lambda c: (c.step is None, c.step or 0, c.t, c.path.name))

    def has_state(self) -> bool:
        """True when there is something to resume from: a whole state, not one whose writing was cut off."""
        return newest_state(self.state_dir) is not None

    def _by_file(self, kind: type[FileEvent]) -> dict[str, FileEvent]:
        events, _ = read_events(self.events_path)
        return {Path(event.file).name: event for event in events if isinstance(event, kind)}

    def refuse_second(self, current: dict, start: str | None = None) -> None:
        """RunBusy when another process than this one works on the run, or is about to, by its record `current`.

        start: the word of the start that asks, which its own reservation does not stop.
        """
        process = ProcessId.from_record(current)
        if process is not None and not is_here(current) and is_fresh(self.alive_path):
            raise RunBusy(
                f"The run {self.name} is being trained on {current['host']}.", "Stop it there first, or wait."
            )
        if process is not None and is_here(current) and process.pid != os.getpid() and process.is_alive():
            raise RunBusy(
                f"The run {self.name} is already being trained by process {process.pid}.", "Stop it first, or wait."
            )
        if (start is None or current.get("start") != start) and is_being_started(current):
            raise RunBusy(f"The run {self.name} is already being started.", "Wait a moment, then try again.")


def list_runs(root: str | Path) -> list[Run]:
    """All run folders in ``root``, newest first; a missing folder has none."""
    runs = [Run(path) for path in _entries(Path(root)) if os.path.isdir(path) and is_run(path)]
    return sorted(runs, key=lambda run: (_created(run), run.name), reverse=True)


def is_run(path: str | Path) -> bool:
    """True for a folder that holds a run's record or its configuration and events."""
    # os.path answers False where a folder may not be looked into; Path raises.
    have = (os.path.isfile(os.path.join(path, name)) for name in (RECORD, CONFIG, EVENTS))
    return next(have) or (next(have) and next(have))


def find(root: str | Path, name: str, paths: bool = False) -> Run:
    """Find a run by its name, by the beginning of its name, or ``latest``.

    Args:
        root: where run folders lie.
        name: the name; an exact one wins over a beginning.
        paths: also accept the path of a run folder anywhere (for the terminal, never for what a browser sends).

    Raises:
        RunNotFound: none, or several, have that name; the message lists the candidates.
    """
    if paths and is_run(name):
        return Run(name)
    runs = list_runs(root)
    if name == "latest" and runs:
        return runs[0]
    exact = [run for run in runs if run.name == name]
    matches = exact or [run for run in runs if name and run.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = ", ".join(run.name for run in matches[:5])
        raise RunNotFound(f"{len(matches)} runs begin with {name!r}: {listed}.", "Type more of the name.")
    names = [run.name for run in runs]
    near = get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
    remedy = f"Did you mean {' or '.join(near)}?" if near else f"There are no runs in {root} yet."
    raise RunNotFound(f"There is no run named {name!r}.", remedy)


def safe_name(name: str) -> str:
    """A folder name that every system takes, as near to ``name`` as can be."""
    text = re.sub(r'[\x00-\x1f\x7f<>:"/\\|?*\s]+', "-", name).strip("-. ")
    text = text.encode("utf-8")[:_LONGEST_NAME].decode("utf-8", "ignore").rstrip("-. ")
    return f"run-{text}" if not text or _RESERVED.match(text) else text


def _checkpoint(path: Path, event: CheckpointEvent | None) -> Checkpoint:
    step, role = (None, None) if event is None else (event.step, event.role)
    return Checkpoint(path, step, _size(path), _time(path), role)


def _sample(path: Path, event: SampleEvent | None) -> Sample:
    sheet = sheet_of(path) if is_clip(path) and sheet_of(path).is_file() else None
    if event is None:
        return Sample(path, None, None, None, _time(path), sheet)
    return Sample(path, event.step, event.prompt_index, event.prompt, _time(path), sheet)


def _created(run: Run) -> float:
    return record.created(run.record_path) or _time(run.path)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _files(folder: Path) -> list[Path]:
    # Names that begin with a dot are files still being written.
    with suppress(PermissionError):
        return [path for path in _entries(folder) if not path.name.startswith(".") and os.path.isfile(path)]
    return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
