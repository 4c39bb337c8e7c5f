"""Reads the trainer's command line: a new run from a TOML, a run of the page, or a run to resume."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from backend.base.errors import Refused, WriteFailed
from backend.base.paths import resolve
from backend.base.problems import Problem, errors
from backend.config.arguments import split
from backend.config.load import Loaded, load, ready
from backend.config.schema import Config
from backend.plan import base_model_check
from backend.runs.folder import Run, find
from backend.runs.process import START

_OWN = ("run", "resume", "help")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What the command line says."""

    config: str | None
    """The TOML of a new run."""
    run: str | None
    """The folder of a run that is trained in the background."""
    resume: str | None
    """The run to resume; "" with `run` says that it is resumed."""
    overrides: dict[str, str]
    """Settings that replace those of the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The run that the command line means."""

    run: Run
    resume: bool
    new: bool = False
    """Made by this command."""
    changed: Config | None = None
    """Settings for the rest of a resumed run, where some are replaced."""


def read_arguments(arguments: Sequence[str]) -> Command:
    """The words of the command line. Exits with the usage where they name no run."""
    parser = _parser()
    own, overrides = split(arguments, _OWN)
    words = parser.parse_args(own)
    if words.run is None and words.config is None and words.resume in (None, ""):
        parser.error("give a CONFIG.toml, --run DIR or --resume RUN")
    return Command(config=words.config, run=words.run, resume=words.resume, overrides=overrides)


def open_run(command: Command) -> Opened:
    """The run, made if it is new. Refused, RunError or WriteFailed where there is none to train."""
    if command.run is not None:
        run, resume = Run(command.run), command.resume is not None
        if command.config is not None or (command.overrides and not resume):
            raise Refused("--run takes the settings from the run's own config.toml", "Leave the others out.")
        return Opened(run=run, resume=resume, changed=_changed(run, command.overrides) if command.overrides else None)
    if command.resume:
        if command.config is not None:
            remedy = f"Leave {command.config} out, or start a new run."
            raise Refused("a run is resumed with its own settings", remedy)
        run = find(resolve(Config().saving.output_dir), command.resume, paths=True)
        return Opened(run=run, resume=True, changed=_changed(run, command.overrides) if command.overrides else None)
    assert command.config is not None
    loaded = load(command.config, command.overrides)
    problems = list(loaded.problems)
    if loaded.config is not None:
        problems += ready(loaded.config)
        # the run itself warns about its base model
        problems += [] if errors(problems) else errors(base_model_check.problems(loaded.config))
    config = _usable(loaded, problems)
    for problem in problems:
        _write_problem(problem)
    return Opened(run=Run.create(config), resume=False, new=True)


def settings_of(run: Run) -> Config:
    """The settings in the run's folder. Refused when they can't be used."""
    if not run.config_path.is_file():
        raise Refused(f"{run.path} holds no config.toml", "Give the folder of a run.")
    loaded = load(run.config_path)
    return _usable(loaded, [*loaded.problems, *(ready(loaded.config) if loaded.config else [])])


def complain(error: Exception) -> None:
    """Write what is wrong with the command to the terminal, with the remedy."""
    if isinstance(error, Refused):
        for problem in error.problems:
            _write_problem(problem)
    elif isinstance(error, OSError) and not isinstance(error, WriteFailed):
        remedy = "Free some space there, or give yourself permission to write; then start again."
        _write(f"{error.filename or 'The run'} can't be used: {error.strerror or error}. {remedy}")
    else:
        _write(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py train",
        description="Train a LoRA or a whole model. Settings of the file can be replaced: --max_train_steps 500.",
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", help="the TOML with the settings of a new run")
    parser.add_argument("--run", metavar="DIR", help="a run's folder whose config.toml is trained in the background")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="continue from the saved state of this run (its name, the beginning of it, or its folder)",
    )
    return parser


def _changed(run: Run, overrides: dict[str, str]) -> Config:
    """The run's settings, some replaced for the rest of it, such as a later end. Nothing is written yet."""
    # where the page starts it, the run is reserved for this very process
    run.refuse_second(run.record(), os.environ.get(START) if run.is_spawned() else None)
    loaded = load(run.config_path, overrides)
    return _usable(loaded, [*loaded.problems, *(ready(loaded.config) if loaded.config else [])])


def _usable(loaded: Loaded, problems: Sequence[Problem]) -> Config:
    """The settings that were read. Refused with all errors where there are some."""
    if loaded.config is None or errors(problems):
        raise Refused.of(errors(problems))
    return loaded.config


def _write_problem(problem: Problem) -> None:
    _write(f"{problem.severity}: {problem.sentence()}")


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")
