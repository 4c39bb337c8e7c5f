"""Converts settings of another program into ours, and says of every name of theirs what became of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.base.problems import Problem
from backend.config.file_kinds import DATA_SETS
from backend.config.load import Loaded
from backend.config.schema import by_path
from backend.importers.checked import checked
from backend.importers.combined import (
    NotOffered,
    read_family,
    read_length,
    read_lora,
    read_swap,
    read_text_encoders,
    read_trackers,
)
from backend.importers.experts import read_pair
from backend.importers.names import read_name
from backend.importers.notes import Fate, Note
from backend.importers.optimizers import read_optimizer
from backend.importers.pictures import read_data_set, read_folder, read_lines, read_masks
from backend.importers.programs import note_unread, read_by_paths
from backend.importers.prompts import bring_prompts
from backend.importers.source import Source
from backend.importers.timesteps import read_timesteps
from backend.importers.unsaid import take_unsaid
from backend.importers.whole_model import leave_lora, read_whole_model, trains_whole_model
from backend.importers.work import Work

_RULING = ("unet_lr", "lr_scheduler_type")
"""Names that rule over the common one, wherever they stand."""


@dataclass
class Converted:
    """loaded: our settings, checked. notes: one a name of theirs, in their order. title: what the file is."""

    title: str
    loaded: Loaded
    notes: list[Note] = field(default_factory=list)

    def with_fate(self, *fates: Fate) -> list[Note]:
        """The notes of these kinds."""
        return [note for note in self.notes if note.fate in fates]


def convert(source: Source, dataset: Source | None = None, family: str = "") -> Converted:
    """Bring a file over. dataset: the data set file that belongs to it, where it is one of its own. family: the model
    family, for a file that tells none.

    What can't be taken is in the notes; `loaded.config` is None only where the files themselves can't be read.
    """
    problems = [*source.problems, *(dataset.problems if dataset else ())]
    if dataset is not None and not dataset.problems and dataset.kind not in DATA_SETS:
        remedy = "Choose the file that names the image folders, such as a .toml file with [[datasets]]"
        problems.append(Problem(None, None, f"the second file is not a data set: it contains {dataset.title}", remedy))
    known = by_path()["model.family"].choices or ()
    if family and family not in known:
        problems.append(Problem(None, None, f"there is no model family {family}", f"Choose one of {', '.join(known)}"))
    if source.kind == "monotile":
        remedy = "It needs no import: use it with launcher.py train FILE, or Import on the page"
        problems.append(Problem(None, None, "the file already contains settings of Monotile", remedy))
    if problems or source.kind is None:
        return Converted("", Loaded(None, problems))
    work = Work.of(source, dataset, family)
    try:
        _settings(work)
    except NotOffered as error:
        return Converted(source.title, Loaded(None, [error.problem]))
    return Converted(source.title, checked(work), work.notes)


def _settings(work: Work) -> None:
    """Everything that the file says, without what is a LoRA's where it trains a whole model."""
    _read(work)
    if work.full:
        leave_lora(work)


def _read(work: Work) -> None:
    """Name by name, then what takes more than one, then what no file says; notes in the order of the file."""
    arguments = work.kind not in DATA_SETS
    if not arguments and work.wanted:
        work.take("model.family", work.wanted, "--family")
    if read_by_paths(work):
        return
    note_unread(work)
    if arguments:
        read_family(work)
        special = read_whole_model(work) if trains_whole_model(work.source) else frozenset()
        for key, value in sorted(work.values.items(), key=lambda item: item[0] in _RULING):
            if key not in special:
                read_name(work, key, value)
        read_pair(work)
        read_length(work)
        if not work.full:
            read_text_encoders(work)
            read_lora(work)
        read_swap(work)
        read_trackers(work)
        bring_prompts(work)
        read_folder(work)
    read_data_set(work)
    read_lines(work)
    read_masks(work)
    take_unsaid(work)
    if arguments:
        read_optimizer(work)
        if work.family not in ("sdxl", "sd15"):
            read_timesteps(work)
