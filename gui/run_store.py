"""Finds runs, and turns names that a browser sends into files, without ever leaving a run."""

from __future__ import annotations

import json
import logging
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.base.files import write_atomic
from backend.base.paths import is_on_network, resolve
from backend.config.schema import by_path
from backend.runs.errors import RunError, RunNotFound
from backend.runs.folder import Run, is_run, list_runs
from gui import run_bin

log = logging.getLogger(__name__)

SAMPLES = {
    ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".mp4": "video/mp4",
}  # fmt: skip
"""Kinds of sample files that a browser may have, by ending."""
_ROOTS_KEPT = 20


class RunStore:
    """The folders that hold runs: the one that the form names now, the default one, and those that were started in.

    The last are kept in a file: a run continues, and must be seen and stopped, whatever the form names meanwhile.
    """

    def __init__(
        self, form_folder: Callable[[], str], record: Path, of_queue: Callable[[], Sequence[Path]] = tuple
    ) -> None:
        """form_folder: gives the form's runs folder, as typed. record: the file of the folders that were started in.

        of_queue: gives those that the queue trains in, which a terminal may have added.
        """
        self._form_folder = form_folder
        self._of_queue = of_queue
        self._record = record
        self._started = _read_record(record)

    def roots(self) -> list[Path]:
        """Folders that may hold runs, each once."""
        names = [self._form_folder(), by_path()["saving.output_dir"].default, *self._started]
        own = [resolve(name) for name in names if str(name).strip()]
        return list(dict.fromkeys([*own, *self._of_queue()]))

    def started_in(self, root: Path) -> None:
        """Keep in mind that a run was started in this folder, also beyond a restart of the page."""
        self._started = list(dict.fromkeys([str(root), *self._started]))[:_ROOTS_KEPT]
        try:
            self._record.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._record, json.dumps(self._started, ensure_ascii=False))
        except OSError as wrong:
            log.warning("The list of run folders could not be saved in %s: %s", self._record, wrong)

    def runs(self) -> list[Run]:
        """All runs of all roots, newest first within a root; of two with one name the first root's counts."""
        by_name: dict[str, Run] = {}
        for root in self.roots():
            try:
                for run in list_runs(root):
                    by_name.setdefault(run.name, run)
            except OSError as wrong:
                log.warning("The runs in %s can't be listed: %s", root, wrong)
        return list(by_name.values())

    def run(self, name: str) -> Run:
        """The run of exactly this name. RunNotFound otherwise; a name is never taken as a path."""
        for root in self.roots():
            for path in _entries(root):
                if path.name == name and os.path.isdir(path) and is_run(path):
                    return Run(path)
        raise RunNotFound(
            f"There is no run named {name!r}.", "It may have been deleted or renamed. Choose another one."
        )

    @staticmethod
    def trains_whole_model(run: Run) -> bool:
        """Whether its files are whole models, which nothing that reads LoRA files takes."""
        try:
            training = tomllib.loads(run.config_path.read_text(encoding="utf-8")).get("training")
        except (OSError, ValueError):
            return False
        return isinstance(training, dict) and training.get("kind") == "full"

    @staticmethod
    def sample(run: Run, name: str) -> Path | None:
        """A sample of a run by its file name, or None: no other kind of file, and none outside."""
        return _inside(run.samples_dir, name, SAMPLES)

    @staticmethod
    def lora(run: Run, name: str) -> Path | None:
        """A file that a run saved by its name, or None: no other kind of file, and none outside."""
        return _inside(run.checkpoints_dir, name, {".safetensors"})

    def delete(self, name: str) -> str:
        """Move a run to its root's bin; the token restores it. RunError when it is at work or can't be moved."""
        run = self.run(name)
        self.empty_bins()
        return run_bin.put(run)

    def restore(self, token: str) -> str:
        """Restore a run from the bin; its name. RunError when it is no longer there."""
        for root in self.roots():
            name = run_bin.take_back(root, token)
            if name is not None:
                return name
        raise RunError(
            "This run is no longer in the bin.", "Runs stay there for a week; it can't be restored any more."
        )

    def empty_bins(self) -> None:
        """Delete for good what has been in a bin for a week."""
        run_bin.empty(self.roots())


def _read_record(path: Path) -> list[str]:
    try:
        return [str(root) for root in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as wrong:
        log.warning("The list of run folders in %s can't be read: %s", path, wrong)
        return []


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _inside(folder: Path, name: str, endings: object) -> Path | None:
    """A plain file right inside ``folder``, or None.

    The name is compared with what the folder lists, never joined to a path: so no path can lead outside. A link
    that leads out of the folder is refused as well.
    """
    for path in _entries(folder):
        if path.name != name or path.name.startswith(".") or path.suffix.lower() not in endings:  # type: ignore[operator]
            continue
        real = Path(os.path.realpath(path))
        return path if real.is_file() and real.parent == Path(os.path.realpath(folder)) else None
    return None


def list_paths(prefix: str, kind: str, most: int = 100, typed: bool = True) -> list[dict[str, object]]:
    """Folders, and files that a setting can name, that continue what was typed so far; for the path fields.

    prefix: as typed; ``~`` and paths below the project are understood. kind: ``folder`` leaves files out. Hidden names
    are left out, contents are never read, and what can't be listed is empty. typed: a person typed it, so that another
    machine may be asked.
    """
    if "\x00" in prefix or len(prefix) > 4096 or (is_on_network(prefix) and not typed):
        return []
    typed = prefix or "~/"
    ends = typed.endswith(("/", os.sep)) or typed == "~"
    try:
        whole = resolve(typed)
        folder, start = (whole, "") if ends else (whole.parent, whole.name)
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name.lower())
    except (OSError, ValueError):
        return []
    listed: list[dict[str, object]] = []
    for entry in entries:
        if entry.name.startswith(".") or not entry.name.lower().startswith(start.lower()):
            continue
        try:
            is_folder = entry.is_dir()
        except OSError:
            continue
        if not is_folder and (kind == "folder" or not entry.name.lower().endswith((".safetensors", ".sft", ".toml"))):
            continue
        indexes = (os.path.join(entry.path, name) for name in ("model_index.json", "modular_model_index.json"))
        note = "base model" if is_folder and any(map(os.path.isfile, indexes)) else ""
        listed.append(
            {
                "name": entry.name,
                "path": str(folder / entry.name),
                "folder": is_folder,
                "separator": os.sep,
                "note": note,
            }
        )
        if len(listed) >= most:
            break
    return listed
