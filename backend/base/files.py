"""Writes whole files or none: every file that a person may rely on is written here.

A file is written under a temporary name in its own folder, flushed to the disk, and then renamed over the old one. A
crash, a kill or a full disk at any point leaves either the old file or the new one, never half of one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import psutil

from backend.base.errors import DiskFull, WriteFailed

log = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_FULL_WINDOWS = {39, 112}  # ERROR_HANDLE_DISK_FULL, ERROR_DISK_FULL
_FULL_WORDS = re.compile(
    r"no space left on device|not enough space on the disk|os error (28|112|122)\b|disk quota exceeded|disk is full",
    re.IGNORECASE,
)
# How safetensors and torch say that the system refused to write; the first names the system's number.
_REFUSED_WORDS = re.compile(
    r"I/O error.*?\(os error (?P<number>\d+)\)|file write failed|PytorchStreamWriter failed|unexpected pos",
    re.IGNORECASE | re.DOTALL,
)
_TEMPORARY = re.compile(r"^\..+\.(\d+)-[0-9a-f]{8}\.part$")
NAME_BYTES = 255
"""Bytes in UTF-8 that a file name may have on nearly every file system; see `longest_name`."""


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write ``data`` to ``path`` so that the file is whole at any moment.

    Args:
        path: the file; its folder must exist. A link is followed, so that the file it points at is replaced.
        data: bytes, or text that is written as UTF-8 with the line ends it has.

    Raises:
        DiskFull: there is no room; the old file, if any, is untouched.
        WriteFailed: any other reason, named; the old file, if any, is untouched.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with atomic_path(path, expected_bytes=len(payload)) as temporary, open(temporary, "wb") as stream:
        stream.write(payload)


@contextlib.contextmanager
def atomic_path(path: str | Path, expected_bytes: int | None = None) -> Iterator[Path]:
    """Give a temporary path to write to; on leaving, flush it and rename it to ``path``.

    For libraries that want a file name: ``with atomic_path(target) as temporary: save_file(tensors, temporary)``.
    If the body raises, the temporary file is removed and ``path`` stays as it was.

    Args:
        path: the file to replace or make; its folder must exist.
        expected_bytes: the size of what will be written, for the message when it does not fit.

    Raises:
        DiskFull: the body or the flush found no room, in whatever words the library said it.
        WriteFailed: the operating system refused for another reason.
    """
    target = Path(os.path.realpath(path))
    temporary = _temporary(target)
    try:
        yield temporary
        _flush(temporary)
        _rename(temporary, target)
    except BaseException as error:
        # Measured before the half-written file goes, since its removal makes room again.
        free = free_bytes(target.parent)
        temporary.unlink(missing_ok=True)
        _raise_explained(error, target, expected_bytes, free)
        raise
    flush_folder(target.parent)


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Give a temporary folder to fill; on leaving, flush it and rename it to ``path``, which must not exist.

    The files in it are flushed by whoever writes them. If the body raises, the folder is removed. Folders above are
    made.

    Raises:
        DiskFull, WriteFailed: as `atomic_path`.
    """
    target = Path(path)
    temporary = _temporary(target)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        flush_folder(temporary)
        _rename(temporary, target)
    except BaseException as error:
        free = free_bytes(target.parent)
        shutil.rmtree(temporary, ignore_errors=True)
        _raise_explained(error, target, None, free)
        raise
    flush_folder(target.parent)


def in_words(error: Exception, path: str | Path) -> Exception:
    """`error` as a WriteFailed of `path` where it comes from the disk, as a look at a network drive that is gone."""
    if isinstance(error, WriteFailed):
        return error
    return _explain(error, Path(path), None, free_bytes(Path(path).parent)) or error


def open_file(path: str | Path) -> BinaryIO:
    """Open a plain file for reading; a pipe, a device or a folder of that name is refused at once, never waited for.

    Raises:
        OSError: it is missing, can't be read, or is no plain file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_disk_full(error: BaseException) -> bool:
    """Tell whether an error means "no room left", also from libraries that only say so in words."""
    if isinstance(error, OSError) and (error.errno in _FULL or getattr(error, "winerror", None) in _FULL_WINDOWS):
        return True
    return _FULL_WORDS.search(str(error)) is not None


def free_bytes(folder: str | Path) -> int | None:
    """Bytes free for this user on the disk that holds ``folder``; None where it can't be told."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def human_bytes(count: float) -> str:
    """A size for people, in decimal units as disks are sold: ``24.0 MB``."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def longest_name(folder: str | Path) -> int:
    """Bytes that a file name may have in ``folder``, which need not exist yet; 143 on some encrypted disks."""
    for existing in (Path(folder), *Path(folder).parents):
        try:
            return min(NAME_BYTES, os.pathconf(existing, "PC_NAME_MAX"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, AttributeError):
            break
    return NAME_BYTES


def cut_name(name: str, limit: int) -> str:
    """The beginning of ``name`` that fits into ``limit`` bytes of UTF-8, without half a letter."""
    return name.encode("utf-8", "surrogateescape")[:limit].decode("utf-8", "ignore")


def unused_path(path: str | Path) -> Path:
    """Return ``path``, or the first of ``name-2.ext``, ``name-3.ext`` ... at which nothing exists."""
    wanted = Path(path)
    candidate, number = wanted, 2
    while candidate.exists() or candidate.is_symlink():
        candidate = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
        number += 1
    return candidate


def remove_abandoned(folder: str | Path) -> list[Path]:
    """Remove temporary files and folders below ``folder`` whose writer is no longer alive; return what was removed."""
    removed = []
    for path in list(Path(folder).rglob(".*.part")):
        match = _TEMPORARY.match(path.name)
        if match is None or psutil.pid_exists(int(match.group(1))):
            continue
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed.append(path)
    return removed


def flush_folder(folder: str | Path) -> None:
    """Make a rename in ``folder`` survive a power cut; does nothing where folders can't be flushed (Windows)."""
    if sys.platform == "win32":
        return
    # Some network file systems refuse it; the file itself is already on its way.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        log.debug("can't open the folder %s: %s", folder, error)
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        log.debug("can't flush the folder %s: %s", folder, error)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str | Path, timeout_s: float = 10.0) -> Iterator[None]:
    """Hold a lock between processes on the file ``path`` (made if missing); the system frees it if its holder dies.

    Raises:
        WriteFailed: somebody else held the lock for ``timeout_s`` seconds, or the file can't be made.
    """
    with _opened(Path(path)) as stream:
        deadline = time.monotonic() + timeout_s
        while not _try_lock(stream.fileno()):
            if time.monotonic() > deadline:
                raise WriteFailed(
                    f"{Path(path).name} in {Path(path).parent} is held by another process.", "Close it and try again."
                )
            time.sleep(0.01)
        try:
            yield
        finally:
            _unlock(stream.fileno())


def _opened(path: Path) -> BinaryIO:
    try:
        return open(path, "a+b")
    except OSError as error:
        raise _explain(error, path, None, free_bytes(path.parent)) or error from error


if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _NO_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK}

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            # Some network and FUSE disks know no locks; who writes there has to be one at a time.
            if error.errno not in _NO_LOCKS:
                raise
            log.debug("this disk knows no locks: %s", error)
        return True

    def _unlock(descriptor: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _temporary(target: Path) -> Path:
    """Where ``target`` is written first: in its folder, under a name that is short enough whatever its own is."""
    ending = f".{os.getpid()}-{secrets.token_hex(4)}.part"
    return target.with_name(f".{cut_name(target.name, longest_name(target.parent) - len(ending) - 1)}{ending}")


def _flush(path: Path) -> None:
    # Windows refuses to flush a descriptor that was opened for reading only.
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _rename(temporary: Path, target: Path) -> None:
    # On Windows a reader or a virus scanner may hold the old file for a moment.
    for wait_s in (0.05, 0.1, 0.2, 0.4, 0.8) if sys.platform == "win32" else ():
        try:
            os.replace(temporary, target)
            return
        except PermissionError:
            time.sleep(wait_s)
    os.replace(temporary, target)


def _raise_explained(error: BaseException, target: Path, expected: int | None, free: int | None) -> None:
    """Raise the same failure in words, where it has to do with the disk and is not in words yet."""
    if isinstance(error, Exception) and not isinstance(error, WriteFailed):
        failure = _explain(error, target, expected, free)
        if failure is not None:
            raise failure from error


def _explain(error: Exception, target: Path, expected: int | None, free: int | None) -> WriteFailed | None:
    """The same failure in words, or None for an error that has nothing to do with the disk."""
    kept = " The file that was there is unchanged." if os.path.exists(target) else ""
    # torch's zip writer says only "file write failed"; a disk with nothing left tells the rest.
    if is_disk_full(error) or (not isinstance(error, OSError) and free is not None and free < 4096):
        room = f"{human_bytes(free)} are free" if free is not None else "the disk is full"
        if expected and free is not None:
            room = f"needs {human_bytes(expected)}, {human_bytes(free)} are free"
        elif expected:
            room = f"needs {human_bytes(expected)}, the disk is full"
        text = f"No space left on the disk for {target}: {room}."
        return DiskFull(f"{text}{kept}", "Free some space, or choose another folder, then try again.")
    refused = None if isinstance(error, OSError) else _REFUSED_WORDS.search(str(error))
    if isinstance(error, OSError):
        number, reason = error.errno, error.strerror or str(error)
    elif refused is not None:
        number = int(refused["number"]) if refused["number"] else None
        reason = os.strerror(number) if number is not None else "the system refused to write"
    else:
        return None
    remedies = {
        errno.ENOENT: "Make the folder, or choose another one.",
        errno.EACCES: "Give yourself permission to write there, or choose another folder; close programs that use it.",
        errno.EPERM: "Give yourself permission to write there, or choose another folder.",
        errno.EROFS: "The disk can only be read; choose another folder.",
        errno.EFBIG: "The disk's format can't hold a file of this size; choose another disk.",
        errno.ENAMETOOLONG: "Choose a shorter name or a folder nearer to the root of the disk.",
    }
    remedy = remedies.get(number or 0, "Check the disk, or choose another folder.")
    text = f"{target} can't be written: {reason}."
    return WriteFailed(f"{text}{kept}", remedy, number)
