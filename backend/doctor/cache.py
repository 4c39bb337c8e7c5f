"""`python -m backend.doctor.cache [size | clear | export FILE | import FILE]`: the compile cache from a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.base import compile_cache
from backend.base.files import human_bytes
from backend.compile import cache_key


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] | None = None) -> int:
    """Run one action and write what it did; 1 when it was refused."""
    parser = argparse.ArgumentParser(prog="launcher.py cache", description="The compile cache.")
    parser.add_argument("--cache-dir", help="the folder (setting compile_cache_dir); our own place when left out")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("size", help="where it is and how large (the default)")
    actions.add_parser("clear", help="delete all compiled kernels")
    for name, help_text in (
        ("export", "write this machine's kernels to a zip"),
        ("import", "take kernels from a zip; only from people you trust, they are code"),
    ):
        actions.add_parser(name, help=help_text).add_argument("file", type=Path)
    given = parser.parse_args(argv)
    write = write or sys.stdout.write
    try:
        root = compile_cache.cache_root(given.cache_dir)
        if given.action == "clear":
            gone = compile_cache.clear(root)
            write(f"Cleared {_shown(gone)} from {root}\n")
        elif given.action == "export":
            folder = cache_key.use_cache_folder(given.cache_dir)
            write(f"Wrote {_shown(compile_cache.export(folder, given.file))} to {given.file}\n")
        elif given.action == "import":
            count = compile_cache.import_archive(given.file, cache_key.use_cache_folder(given.cache_dir))
            nothing = f"All kernels in {given.file} are here already\n"
            write(f"Took {count:,} files from {given.file}\n" if count else nothing)
        else:
            write(f"{root}: {_shown(compile_cache.size(root))}\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _shown(size: compile_cache.CacheSize) -> str:
    return f"{human_bytes(size.bytes)} in {size.files:,} files"
