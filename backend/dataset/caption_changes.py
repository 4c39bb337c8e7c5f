"""Changes caption files, many at once, with undo: all files or none, and what was there is kept first.

Before the first file is written, the bytes of all of them are in a journal (`caption_journal`). So changes that a
crash cut off can be undone as whole ones can, also after the page was closed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from backend.base.errors import Refused, WriteFailed
from backend.base.files import remove_abandoned, write_atomic
from backend.config.endings import CLIPS, PICTURES, UNREAD_PICTURES, WEIGHTS
from backend.dataset import captions
from backend.dataset.caption_journal import Journal, Kept
from backend.dataset.caption_rows import RowEdits, edit_json, edit_table
from backend.dataset.caption_sources import READ, captions_of_json
from backend.dataset.captions import BadCaption
from backend.dataset.items import count_of, name_files

Progress = Callable[[int, int], None]
"""Files done and files in all. What it raises ends the changes, and puts back what was written."""
Stopped = Callable[[], bool]
"""Whether the rest is to be left as it is."""

# Files that are written at the same time.
_AT_ONCE = 16
_BOM = b"\xef\xbb\xbf"
_NO_TEXT_FILES = PICTURES | UNREAD_PICTURES | CLIPS | WEIGHTS
_LOOK_AGAIN = "Nothing was written. Scan again, then look at the changes again."


@dataclass(frozen=True, slots=True)
class CaptionChange:
    """One caption in a file.

    path: of a text file, of a picture's own JSON file, or of a table or list. before, after: the caption, lines of a
    text file or several captions in JSON separated by line ends; None: there is no file, so that `after` None removes
    it. entry: in a table or list, the name of the picture's row (`Item.row`), which must be there.
    """

    path: Path
    before: str | None
    after: str | None
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """Changes that were made.

    id: undoes them; "" where nothing changed. files: how many were written. left: changed by others meanwhile. rest:
    how many were not come to, since it was stopped.
    """

    id: str
    files: int
    left: tuple[Path, ...] = ()
    rest: int = 0


@dataclass(frozen=True, slots=True)
class Undone:
    """Files that have their earlier bytes again, and those that were changed since and are left as they are."""

    files: tuple[Path, ...]
    left: tuple[Path, ...]


def text_of(path: Path, entry: str | None = None) -> str | None:
    """A caption as `CaptionChange.before` has it; None without file or row.

    OSError or BadCaption when it can't be read.
    """
    data = _bytes_at(path)
    if data is None:
        return None
    if entry is None:
        return _caption_in(path, data)
    edits = RowEdits({entry: ((), ())})
    edit_table(path.suffix.lower(), _table_text(data), edits)
    return "\n".join(edits.before[entry]) if entry in edits.before else None


def texts_of(places: Iterable[tuple[Path, str | None]]) -> dict[tuple[Path, str | None], str | None | BadCaption]:
    """`text_of` of many files and rows, each table read once; an error in place of what can't be read."""
    texts: dict[tuple[Path, str | None], str | None | BadCaption] = {}
    tables: dict[Path, list[str]] = {}
    for path, entry in places:
        if entry is not None:
            tables.setdefault(path, []).append(entry)
            continue
        try:
            texts[path, None] = text_of(path)
        except BadCaption as error:
            texts[path, None] = error
        except OSError as error:
            texts[path, None] = BadCaption(f"it can't be read ({error.strerror or error})")
    for path, entries in tables.items():
        edits = RowEdits(dict.fromkeys(entries, ((), ())))
        fault: BadCaption | None = None
        try:
            edit_table(path.suffix.lower(), _table_text(captions.read_bytes(path)), edits)
        except BadCaption as error:
            fault = error
        except OSError as error:
            fault = BadCaption(f"it can't be read ({error.strerror or error})")
        for entry in entries:
            rows = "\n".join(edits.before[entry]) if entry in edits.before else None
            texts[path, entry] = fault or rows
    return texts


def apply(
    changes: Iterable[CaptionChange],
    what: str = "Captions changed",
    *,
    folder: Path | None = None,
    progress: Progress | None = None,
    stopped: Stopped | None = None,
) -> Applied:
    """Make `changes` and return the id that undoes them. Changes without an effect are left out.

    Every file is compared with `before` first: when one differs, Refused names it, and nothing is written. Each file
    is written whole; when one can't be written, the others are put back. what: for the list of
    changes. folder: of the journal, that of the page by default. stopped: asked between some files and the next; once
    it is true the rest is left as it is, and what is written can be undone as always.

    Raises:
        Refused: files that hold something else by now, are no text, or can't hold the caption.
        WriteFailed: a file, or the journal, can't be written. Nothing has changed then.
    """
    planned = _plan([change for change in changes if change.before != change.after])
    if not planned:
        return Applied("", 0)
    journal = Journal.at(folder)
    with journal.locked():
        name = journal.begin(what, planned)
        try:
            left, tried = _left_by(_write, planned, progress, stopped)
        except BaseException:
            _left_by(_restore, planned)
            journal.drop(name)
            raise
        if not tried:
            journal.drop(name)
            return Applied("", 0, rest=len(planned))
        if tried < len(planned):
            journal.shorten(name, what, planned[:tried])
        journal.end(name, "applied")
    return Applied(name, tried - len(left), tuple(left), len(planned) - tried)


def undo(name: str, *, folder: Path | None = None, progress: Progress | None = None) -> Undone:
    """Put the files of earlier changes back, byte by byte, and remove those that they made.

    A file that was changed since is left as it is and named in the answer. Refused when the changes are not known (any
    more). WriteFailed when files can't be read or written: all others are restored, and another call tries these again.
    """
    journal = Journal.at(folder)
    with journal.locked():
        files = journal.read(name)
        failed: list[tuple[Path, Exception]] = []

        def restore(kept: Kept) -> bool:
            try:
                return _restore(kept)
            except (OSError, WriteFailed) as error:
                failed.append((kept.path, error))
                return True

        left, _ = _left_by(restore, files, progress)
        if failed:
            raise _not_restored(failed)
        _remove_abandoned(kept.path.parent for kept in files)
        journal.end(name, "undone")
    left_paths = frozenset(left)
    return Undone(tuple(kept.path for kept in files if kept.path not in left_paths), tuple(left))


def _plan(changes: list[CaptionChange]) -> list[Kept]:
    """The bytes before and after of each file. Refused with every file that can't be changed."""
    by_path: dict[Path, list[CaptionChange]] = {}
    for change in dict.fromkeys(changes):
        by_path.setdefault(Path(os.path.realpath(change.path)), []).append(change)
    planned, stale, faults = [], [], []
    for path, own in by_path.items():
        try:
            before = _bytes_at(path)
            after = _bytes_after(path, before, own)
        except _Stale:
            stale.append(path)
        except BadCaption as error:
            faults.append(f"{path}: {error}")
        except OSError as error:
            faults.append(f"{path}: it can't be read ({error.strerror or error})")
        else:
            planned.append(Kept(path, before, after))
    if stale:
        names = name_files([str(path) for path in stale])
        raise Refused(f"{count_of(len(stale), 'caption file')} changed meanwhile: {names}", _LOOK_AGAIN)
    if faults:
        text = f"{count_of(len(faults), 'caption file')} can't be changed: {name_files(faults)}"
        raise Refused(text, "Nothing was written. Correct the files, or leave their images out of the change.")
    return planned


class _Stale(Exception):
    """A file does not hold what a change replaces."""


def _bytes_after(path: Path, data: bytes | None, changes: list[CaptionChange]) -> bytes | None:
    rows = {change.entry: change for change in changes if change.entry is not None}
    if rows:
        return _table_after(path, data, rows)
    if len(changes) > 1:
        raise BadCaption("two images use it, and would change it in different ways")
    change = changes[0]
    now = None if data is None else _caption_in(path, data)
    if now != change.before:
        raise _Stale
    if change.after is None:
        return None
    if path.suffix.lower() == ".json":
        lines = change.after.split("\n")
        text = edit_json("{}" if data is None else captions.decode_whole(data)[0], lines)
        return _with_bom(data, text)
    return _text_after(data, change.after)


def _text_after(data: bytes | None, caption: str) -> bytes:
    """A text file with another caption, in UTF-8; line ends and the last of them as the file had them."""
    text = caption.strip()
    if data is None:
        return text.encode()
    if b"\r\n" in data:
        text = text.replace("\n", "\r\n")
    last = re.search(rb"\r?\n\Z", data)
    return _with_bom(data, text) + (last[0] if last else b"")


def _with_bom(before: bytes | None, text: str) -> bytes:
    """`text` in UTF-8, with the mark at its start that the file had."""
    return (_BOM if before is not None and before.startswith(_BOM) else b"") + text.encode()


def _table_after(path: Path, data: bytes | None, rows: dict[str, CaptionChange]) -> bytes:
    if data is None:
        raise _Stale
    split = {name: (_lines(change.before), _lines(change.after)) for name, change in rows.items()}
    edits = RowEdits(split)
    text = edit_table(path.suffix.lower(), _table_text(data), edits)
    if any(edits.before.get(name) != before for name, (before, _) in split.items()):
        raise _Stale
    return _with_bom(data, text)


def _lines(caption: str | None) -> tuple[str, ...]:
    return tuple(line for line in (caption or "").split("\n") if line.strip())


def _caption_in(path: Path, data: bytes) -> str:
    """The caption of a file of one picture. BadCaption when that is no text, or a table."""
    if path.suffix.lower() == ".json":
        return "\n".join(captions_of_json(data))
    if path.suffix.lower() in READ:
        raise BadCaption("it is a table, and the row is not named")
    if path.suffix.lower() in _NO_TEXT_FILES or not captions.is_text(data):
        raise BadCaption("it is not a text file, so no caption is written over it")
    return "\n".join(captions.decode_lines(data)[0])


def _table_text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadCaption("it is not text in UTF-8") from None


def _bytes_at(path: Path) -> bytes | None:
    try:
        return captions.read_bytes(path)
    except FileNotFoundError:
        return None


def _left_by(
    write: Callable[[Kept], bool],
    files: Sequence[Kept],
    progress: Progress | None = None,
    stopped: Stopped | None = None,
) -> tuple[list[Path], int]:
    """The files for which `write` is false, and how many it was called with: fewer than all once it was `stopped`.

    Many at a time: each waits for the disk, and a disk takes them together.
    """
    left: list[Path] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="captions") as pool:
        for first in range(0, len(files), _AT_ONCE * 4):
            if stopped is not None and stopped():
                return left, first
            part = files[first : first + _AT_ONCE * 4]
            results = zip(part, list(pool.map(write, part)), strict=True)
            left += [kept.path for kept, is_written in results if not is_written]
            if progress is not None:
                progress(first + len(part), len(files))
    return left, len(files)


def _write(kept: Kept) -> bool:
    """Write a file if it still is as it was planned."""
    if _bytes_at(kept.path) != kept.before:
        return False
    _set(kept.path, kept.after)
    return True


def _restore(kept: Kept) -> bool:
    """Give a file its earlier bytes; False when it holds neither these nor those that were written."""
    try:
        now = _bytes_at(kept.path)
    except BadCaption:
        # a folder by now, say
        return False
    if now == kept.after != kept.before:
        _set(kept.path, kept.before)
        return True
    return now == kept.before


def _not_restored(failed: Sequence[tuple[Path, Exception]]) -> WriteFailed:
    names = name_files(sorted(str(path) for path, _ in failed))
    first = failed[0][1]
    why = (first.strerror or str(first)) if isinstance(first, OSError) else str(first)
    remedy = "All other files are restored. When these can be written, undo the changes again."
    return WriteFailed(f"{count_of(len(failed), 'caption file')} can't be restored: {names}. {why}", remedy)


def _remove_abandoned(folders: Iterable[Path]) -> None:
    """Remove what a crash left half-written beside captions."""
    for folder in set(folders):
        with contextlib.suppress(OSError):
            if any(path.name.endswith(".part") for path in folder.iterdir()):
                remove_abandoned(folder)


def _set(path: Path, data: bytes | None) -> None:
    if data is not None:
        write_atomic(path, data)
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WriteFailed(
            f"{path} can't be removed: {error.strerror or error}.", "Close programs that use it."
        ) from None
