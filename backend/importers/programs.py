"""Lists the programs that are read by paths, and what reads their data sets where these are files of their own."""

from __future__ import annotations

from collections.abc import Callable

from backend.config.file_kinds import Kind
from backend.importers import ai_toolkit, diffusion_pipe, onetrainer, onetrainer_data, simpletuner
from backend.importers.notes import Note
from backend.importers.program import Fields, Program, read_program
from backend.importers.source import Source
from backend.importers.work import Work

_PROGRAMS: dict[Kind, tuple[Program, str]] = {
    "onetrainer": (onetrainer.PROGRAM, "OneTrainer"),
    "ai-toolkit": (ai_toolkit.PROGRAM, "ai-toolkit"),
    "simpletuner": (simpletuner.PROGRAM, "SimpleTuner"),
    "diffusion-pipe": (diffusion_pipe.PROGRAM, "diffusion-pipe"),
}


def read_by_paths(work: Work) -> bool:
    """Read a file of one of these programs; False for a file of another."""
    if work.kind in _PROGRAMS:
        read_program(work, *_PROGRAMS[work.kind])
        kind = None if work.dataset is None else work.dataset.kind
        if work.dataset is not None and kind == "onetrainer-concepts" and work.kind == "onetrainer":
            _concepts(work, work.dataset)
        elif kind is not None and kind != f"{work.kind}-dataset":
            _unread(work)
        return True
    reader = _DATA_SETS.get(work.kind)
    if reader is None or work.dataset is None:
        return False
    reader(work, work.dataset)
    return True


def _concepts(work: Work, dataset: Source) -> None:
    """A list of concepts, which is read as the part of the settings that it may be too."""
    values = {f"concepts{path}": value for path, value in dataset.values.items()}
    lines = {f"concepts{path}": line for path, line in dataset.lines.items()}
    inner = Work(Source(dataset.kind, values, lines), work.kind, values, ours=work.ours, origin=work.origin)
    fields = Fields(inner)
    onetrainer_data.read_concepts(fields, "concepts")
    rest = {key: value for key, value in values.items() if key not in fields.read}
    for key, value in rest.items():
        onetrainer.PROGRAM.left(inner, key, fields.bare(key), value)
    work.notes += inner.notes


def _directories(work: Work, dataset: Source) -> None:
    diffusion_pipe.read_directories(work, dataset.values, dataset.lines)


def _backends(work: Work, dataset: Source) -> None:
    simpletuner.read_backends(work, dataset.values[""], dataset.lines)


_DATA_SETS: dict[Kind, Callable[[Work, Source], None]] = {
    "onetrainer-concepts": _concepts,
    "diffusion-pipe-dataset": _directories,
    "simpletuner-dataset": _backends,
}


def note_unread(work: Work) -> None:
    """Say that a data set of another program can't go with this file, where there is one."""
    if work.dataset is not None and work.dataset is not work.source and work.dataset.kind != "dataset":
        _unread(work)


def _unread(work: Work) -> None:
    assert work.dataset is not None
    why = f"{work.dataset.title} can't be used with {work.source.title}; import it alone"
    work.notes.append(Note("data set", "not offered", why))
