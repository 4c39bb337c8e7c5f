"""Finds, measures, clears, exports and imports the compile cache: our own short folder of compiled kernels.

    <root>/<key>/inductor   graphs and kernels of torch (TORCHINDUCTOR_CACHE_DIR)
    <root>/<key>/triton     GPU binaries (TRITON_CACHE_DIR)
    <root>/<key>/key.json   what the key was made of

`backend.compile.cache_key` makes the key and points torch at its folder.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from backend.base.files import atomic_path, write_atomic
from backend.setup import toolchain

KEY_FILE = "key.json"
# Inductor's file names take some 90 characters, and Windows ends at 260.
MOST_PATH = 100 if sys.platform != "win32" else 60
_MANIFEST = "monotile-cache.json"


@dataclass(frozen=True)
class CacheSize:
    """Files and bytes of a cache folder."""

    files: int
    bytes: int


def path_problem(path: Path) -> str | None:
    """Why compilers may stumble over `path`, in words; None when they don't."""
    text = str(path)
    odd = toolchain.odd_path(path)
    if odd is not None:
        return odd
    if len(text) > MOST_PATH:
        return f"{text} is {len(text)} characters long, more than {MOST_PATH}"
    return None


def candidate_folders() -> list[Path]:
    """Places for our folder, best first: the person's own cache folder, then ones that are short on any machine."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        shared = os.environ.get("PROGRAMDATA", r"C:\ProgramData")
        drive = os.environ.get("SYSTEMDRIVE", "C:")
        places = [Path(local) / "monotile"] if local else []
        return [*places, Path(shared) / "monotile", Path(f"{drive}\\monotile-cache")]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [home / "monotile", Path(tempfile.gettempdir()) / f"monotile-{os.getuid()}"]


def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        # A name of its own: two runs may look at the same moment.
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError:
        return False
    return True


def cache_root(setting: str | os.PathLike[str] | None = None) -> Path:
    """The cache's root: `setting` as it is, else the first candidate without trouble that can be written.

    OSError, naming the folder, when nothing can be written.
    """
    if setting is not None:
        path = Path(setting).expanduser().resolve()
        if not _writable(path):
            raise OSError(f"the compile cache folder {path} cannot be written; choose another in compile_cache_dir")
        return path
    places = [place / "compile" for place in candidate_folders()]
    for path in places:
        if path_problem(path) is None and _writable(path):
            return path
    raise OSError(f"no folder for the compile cache: tried {', '.join(map(str, places))}; set compile_cache_dir")


def key_facts(folder: Path) -> dict[str, str]:
    """What the key of a folder was made of, as `prepare` wrote it down."""
    return json.loads((folder / KEY_FILE).read_text(encoding="utf-8"))


def size(folder: Path) -> CacheSize:
    """Files and bytes under `folder`; zeros when it does not exist."""
    files = total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                files, total = files + 1, total + path.stat().st_size
        except OSError:
            # A run that is compiling may move its files while we count.
            continue
    return CacheSize(files, total)


def clear(folder: Path) -> CacheSize:
    """Delete what the cache holds under the root `folder`, and return what went. Only folders that we made."""
    gone = CacheSize(0, 0)
    for entry in sorted(folder.iterdir()) if folder.is_dir() else []:
        if (entry / KEY_FILE).is_file() and not entry.is_symlink():
            part = size(entry)
            shutil.rmtree(entry, ignore_errors=True)
            gone = CacheSize(gone.files + part.files, gone.bytes + part.bytes)
    return gone


def export(folder: Path, file: Path) -> CacheSize:
    """Write one key's folder (as `prepare` returned it) to the zip `file`, whole or not at all."""
    if not (folder / KEY_FILE).is_file():
        raise ValueError(f"{folder} is no compile cache of ours: it holds no {KEY_FILE}")
    with atomic_path(file) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.write(folder / KEY_FILE, _MANIFEST)
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder)
            # Locks and half-written files belong to a running compile.
            if path.is_file() and "locks" not in inner.parts and path.suffix not in {".lock", ".tmp"}:
                archive.write(path, inner.as_posix())
    return size(folder)


def import_archive(file: Path, folder: Path) -> int:
    """Unpack the zip `file` into one key's folder; returns the number of files. Existing files stay.

    Only take archives from people you trust: a compile cache holds code that will run. ValueError when the archive is
    none of ours, was made by another torch or GPU, or names files outside of the folder.
    """
    try:
        archive = zipfile.ZipFile(file)
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror or error}") from None
    except zipfile.BadZipFile as error:
        raise ValueError(f"{file} is no compile cache archive ({error})") from None
    with archive:
        names = [name for name in archive.namelist() if name not in (_MANIFEST, KEY_FILE) and not name.endswith("/")]
        if _MANIFEST not in archive.namelist():
            raise ValueError(f"{file} is no compile cache archive: it holds no {_MANIFEST}")
        try:
            theirs = dict(json.loads(archive.read(_MANIFEST)))
            damaged = archive.testzip()
        except (ValueError, TypeError, zipfile.BadZipFile) as error:
            raise ValueError(f"{file} is damaged ({error})") from None
        if damaged is not None:
            raise ValueError(f"{file} is damaged: {damaged} in it can't be read")
        ours = key_facts(folder)
        different = [f"{k}: {theirs.get(k)} there, {ours.get(k)} here" for k in ours if theirs.get(k) != ours[k]]
        if different:
            raise ValueError(f"{file} was made on another machine or torch ({'; '.join(different)})")
        # Windows reads a name with a colon as one of another drive.
        bad = [
            n for n in names if PurePosixPath(n).is_absolute() or ".." in PurePosixPath(n).parts or {*n} & {"\\", ":"}
        ]
        if bad:
            raise ValueError(f"{file} names files outside of the cache folder ({bad[0]})")
        count = 0
        for name in names:
            target = folder / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(target, archive.read(name))
                count += 1
    return count
