"""Scans in a process of its own: `python -m backend.dataset FOLDER ...`.

With `--json` one JSON document a line goes to stdout: with `--progress`, lines
`{"kind": "progress", "done": 12, "total": 300, "path": "..."}`, and at the end `{"kind": "result", "scan": {...}}` as
`Scan.from_dict` reads it (`{"kind": "result", "dataset": {...}}` for `--config`, as `DatasetScan.from_dict` reads it).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.base.command_output import Write, progress_of, stdout_writer, write_json
from backend.base.paths import PROJECT_ROOT, resolve
from backend.config import load
from backend.dataset.scan import scan, scan_dataset
from backend.dataset.scan_state import FolderSpec


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Scan and write the result; 0 when there is something to train on, 1 when not, 2 for wrong arguments."""
    options = _parser().parse_args(argv)
    out = write or stdout_writer()
    memory = None if options.no_cache else resolve(options.cache_dir) if options.cache_dir else PROJECT_ROOT / "cache"
    progress = progress_of(out, options.json, options.progress)
    if options.config is None:
        specs = [FolderSpec(resolve(folder), options.num_repeats) for folder in options.folders]
        trigger = options.trigger_word
        result = scan(specs, options.caption_extension, trigger_word=trigger, cache_dir=memory, progress=progress)
        document: dict[str, Any] = {"kind": "result", "scan": result.to_dict()} if options.json else {}
        lines, usable = result.summary(), bool(result.items)
    else:
        loaded = load.load(resolve(options.config))
        if loaded.config is None:
            lines = [problem.sentence() for problem in loaded.problems]
            document = {"kind": "problems", "problems": [vars(problem).copy() for problem in loaded.problems]}
            usable = False
        else:
            whole = scan_dataset(loaded.config, progress, cache_dir=memory)
            document = {"kind": "result", "dataset": whole.to_dict()} if options.json else {}
            lines, usable = whole.train.summary(), bool(whole.train.items)
    if options.json:
        write_json(out, document)
    else:
        out("\n".join(lines) + "\n")
    return 0 if usable else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m backend.dataset", description="Scan image folders.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folders", nargs="*", default=[], type=Path, help="folders with images")
    what.add_argument("--config", type=Path, help="scan the folders of this TOML file")
    parser.add_argument("--caption_extension", default=".txt", help="file ending of the captions (.txt)")
    parser.add_argument("--num_repeats", type=int, default=1, help="repeats of every image (1)")
    parser.add_argument("--trigger_word", help="added to captions that do not contain it")
    parser.add_argument("--cache_dir", type=Path, help="folder for the scan cache (cache/ in the project)")
    parser.add_argument("--no_cache", action="store_true", help="do not use the scan cache")
    parser.add_argument("--json", action="store_true", help="one JSON document a line")
    parser.add_argument("--progress", action="store_true", help="lines of progress before the result")
    return parser


if __name__ == "__main__":
    sys.exit(main())
