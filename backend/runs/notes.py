"""Keeps a person's tags and notes of a run in its folder, in ``notes.json``, so that they move with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from backend.base.files import locked, open_file, write_atomic
from backend.runs.errors import RunError
from backend.runs.folder import Run

FILE = "notes.json"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTES = 30, 60, 20_000
_LARGEST = 1_000_000


@dataclass(frozen=True)
class Notes:
    """What a person wrote about a run. Tags: each once, in the order they were given."""

    tags: tuple[str, ...] = ()
    text: str = ""


class NotesChanged(RunError):
    """Somebody else wrote notes since they were read."""


def read_notes(run: Run) -> Notes:
    """The run's notes; empty ones where there are none. RunError where the file can't be read: it is left alone."""
    path = run.path / FILE
    try:
        with open_file(path) as stream:
            data = json.loads(stream.read(_LARGEST).decode("utf-8"))
        tags, text = data.get("tags", []), data.get("notes", "")
        if not isinstance(text, str) or not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise ValueError("it holds something else")
    except FileNotFoundError:
        return Notes()
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise RunError(
            f"The notes of {run.name} can't be read: {error}.", f"Fix or remove {FILE} in the run's folder."
        ) from error
    return Notes(tags=tuple(tags), text=text)


def write_notes(run: Run, notes: Notes, before: Notes | None = None) -> Notes:
    """Write notes, cleaned by `cleaned`; return what is now in the file.

    before: what the person saw. NotesChanged where the file holds something else by now. RunError for too many or too
    long ones, and where the file that is there can't be read. WriteFailed where the disk refuses.
    """
    own = cleaned(notes)
    path = run.path / FILE
    with locked(path.with_name(path.name + ".lock")):
        now = read_notes(run)
        if before is not None and now not in (before, own):
            raise NotesChanged(
                f"The notes of {run.name} were changed elsewhere since you opened them.",
                "Look at them again; your text is still in the field.",
            )
        if now != own:
            content = {"v": 1, "tags": list(own.tags), "notes": own.text}
            write_atomic(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return own


def cleaned(notes: Notes) -> Notes:
    """Tags without spaces around them, `#` and empty ones, each once. RunError for what is too long or too much."""
    tags = tuple(_once(" ".join(tag.split()).lstrip("#").strip() for tag in notes.tags))
    longest = max(map(len, tags), default=0)
    if len(tags) > MOST_TAGS or longest > LONGEST_TAG:
        raise RunError(
            f"There are {len(tags)} tags, the longest of {longest} characters.",
            f"A run has at most {MOST_TAGS} tags of {LONGEST_TAG} characters. Write the rest into its notes.",
        )
    if len(notes.text) > LONGEST_NOTES:
        text = f"The notes have {len(notes.text):,} characters."
        raise RunError(text, f"Keep them to {LONGEST_NOTES:,}, or put them into a file of their own.")
    return Notes(tags=tags, text=notes.text.replace("\r\n", "\n").rstrip())


def _once(tags: Iterable[str]) -> Iterable[str]:
    """Each tag once, whatever its case."""
    names: dict[str, str] = {}
    for tag in filter(None, tags):
        names.setdefault(tag.casefold(), tag)
    return names.values()
