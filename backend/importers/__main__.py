"""Runs `launcher.py import FILE [--dataset FILE] [--family NAME] [-o OUT.toml]`: settings of another trainer as ours.

Shows what changes and what is left; only with ``-o`` a file is written. 0 when that was done, 2 when the file can't be
taken, an argument is wrong or OUT exists, 1 when OUT could not be written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from backend.base.command_output import Write, stdout_writer
from backend.base.errors import WriteFailed
from backend.config import toml_io
from backend.config.file_kinds import DATA_SETS, NAMES_OF_DATA_SETS
from backend.config.schema import Config
from backend.importers.convert import convert
from backend.importers.report import render
from backend.importers.source import Source, read

_FILE = (
    "a .json preset of kohya_ss, OneTrainer or SimpleTuner; a .toml of sd-scripts, musubi-tuner, Easy Training Scripts "
    "or diffusion-pipe; a .yaml of ai-toolkit; a .sh or .bat with a training command; a LoRA (.safetensors) with its "
    "settings"
)


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Read, show, and write where that was asked for."""
    parser = argparse.ArgumentParser(prog="launcher.py import", description="Import the settings of another trainer.")
    parser.add_argument("file", type=Path, help=_FILE)
    parser.add_argument("--dataset", type=Path, help="the data set file that belongs to it")
    parser.add_argument("--family", default="", help="the model family, for a file that does not name it")
    parser.add_argument(
        "-o", "--output", type=Path, help="where to write the settings; without it they are only printed"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    options = parser.parse_args(argv)
    out = write or stdout_writer()
    source = read(options.file)
    dataset = read(options.dataset) if options.dataset else _named_dataset(source)
    converted = convert(source, dataset, options.family)
    config = converted.loaded.config
    if config is None:
        title = f"{options.file.name} contains {converted.title}." if converted.title else f"{options.file.name}:"
        out("\n".join([title, *(f"  {problem.sentence()}" for problem in converted.loaded.problems)]) + "\n")
        return 2
    out("\n".join(render(converted, Config())) + "\n")
    if options.output is None:
        out("Nothing is written yet. Add -o OUT.toml to write the settings.\n")
        return 0
    if options.output.exists() and not options.force:
        out(f"{options.output} exists already. Choose another name, or add --force.\n")
        return 2
    try:
        toml_io.dump(config, options.output, comment=f"Imported from {options.file.name}, {converted.title}")
    except WriteFailed as failed:
        out(f"{failed}\n")
        return 1
    out(f"Written to {options.output}.\n")
    return 0


def _named_dataset(source: Source) -> Source | None:
    """The data set file that the settings name, where it is on this machine."""
    if source.kind is None or source.kind in DATA_SETS:
        return None
    name = next((value for key in NAMES_OF_DATA_SETS if isinstance(value := source.values.get(key), str) and value), "")
    if not name:
        return None
    places = [Path(name)] if Path(name).is_absolute() else [Path.cwd() / name]
    if source.folder is not None:
        places += [source.folder / name, source.folder / Path(name.replace("\\", "/")).name]
    return next((read(place) for place in places if place.is_file()), None)


if __name__ == "__main__":
    raise SystemExit(main())
