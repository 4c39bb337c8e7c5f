"""Shows, clears, exports and imports the compile cache: `python -m backend.doctor.cache [ACTION] [FILE]`."""

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
    parser = argparse.ArgumentParser(
        prog="launcher.py cache", description="Show, clear, export or import the compile cache."
    )
    parser.add_argument("--cache-dir", help="the cache's folder (setting compile_cache_dir; default: our own folder)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("size", help="show where it is and how large (the default)")
    actions.add_parser("clear", help="delete all compiled kernels")
    exporting = actions.add_parser("export", help="write this machine's kernels to a zip file")
    importing = actions.add_parser(
        "import", help="add kernels from a zip file; they are code, so only from people you trust"
    )
    for each in (exporting, importing):
        each.add_argument("file", type=Path)
    options = parser.parse_args(argv)
    write = write or sys.stdout.write
    try:
        root = compile_cache.cache_root(options.cache_dir)
        if options.action == "clear":
            deleted = compile_cache.clear(root)
            write(f"Cleared {_shown(deleted)} from {root}\n")
        elif options.action == "export":
            folder = cache_key.use_cache_folder(options.cache_dir)
            write(f"Wrote {_shown(compile_cache.export(folder, options.file))} to {options.file}\n")
        elif options.action == "import":
            count = compile_cache.import_archive(options.file, cache_key.use_cache_folder(options.cache_dir))
            same = f"All kernels of {options.file} are in the cache already\n"
            write(f"Added {count:,} files from {options.file}\n" if count else same)
        else:
            write(f"{root}: {_shown(compile_cache.size(root))}\n")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _shown(size: compile_cache.CacheSize) -> str:
    return f"{human_bytes(size.bytes)} in {size.files:,} files"


if __name__ == "__main__":
    sys.exit(main())
