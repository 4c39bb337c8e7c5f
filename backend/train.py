"""The trainer's process: ``python -m backend.train --run DIR``, or a TOML in the foreground.

A run's folder holds all that it needs and gets all that it makes; page and terminal read it from there. In the
foreground the same events and metrics feed a progress display.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from backend.base.errors import Failed, Refused, WriteFailed
from backend.base.paths import resolve
from backend.base.problems import Problem, errors
from backend.config.arguments import split
from backend.config.load import load, ready
from backend.config.schema import Config, by_path, get
from backend.memory.allocators import imports_without_gc, lower_mmap_threshold, use_expandable_segments
from backend.plan import base_model_check as family_check
from backend.runs.admission import one_start
from backend.runs.control import Control
from backend.runs.diagnose import Diagnosis, explain
from backend.runs.errors import RunError
from backend.runs.events import EventWriter
from backend.runs.folder import Run, find, list_runs
from backend.runs.keeper import Keeper
from backend.runs.logsetup import configure_logging
from backend.runs.states import state_step
from backend.training.requests import Asks, StopAsked
from backend.training.run_record import finish

log = logging.getLogger(__name__)

DONE, FAILED, WRONG_INPUT = 0, 1, 2
_OWN = ("run", "resume", "help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trainer; returns the exit code: 0 done or stopped, 1 failed, 2 the settings can't be used."""
    parser = _parser()
    try:
        own, overrides = split(sys.argv[1:] if arguments is None else arguments, _OWN)
        known = parser.parse_args(own)
        if known.run is None and known.config is None and known.resume in (None, ""):
            parser.error("give a CONFIG.toml, --run DIR or --resume RUN")
        run, resume, changed = _open(known.config, known.run, known.resume, overrides)
    except (Refused, RunError, WriteFailed) as error:
        _complain(error)
        return WRONG_INPUT
    return run_trainer(run, resume, foreground=known.run is None, logs=configure_logging, changed=changed)


def run_trainer(
    run: Run,
    resume: bool = False,
    foreground: bool = False,
    logs: Callable[[Run, str], None] | None = None,
    changed: Config | None = None,
) -> int:
    """Train `run` in this process to its end, whatever that is, and write the end down; returns the exit code.

    foreground: show the progress in the terminal. logs: sends this process's logging where it belongs, given the run
    and its log level; left out by callers that have their own logging. changed: settings for the rest of a resumed run;
    they become the run's own once nothing refuses them.
    """
    try:
        _attach(run)
        events = EventWriter(run)
    except (RunError, OSError) as error:
        _complain(error)
        return WRONG_INPUT
    asks = Asks(Control(run))
    cfg: Config | None = None
    with ExitStack() as stack:
        stack.enter_context(Keeper(run, events))
        stack.enter_context(asks.signals())
        stack.enter_context(_display(run) if foreground else nullcontext())
        try:
            cfg = changed or _config(run)
            if logs is not None:
                logs(run, cfg.logging.log_level)
            return _train(run, cfg, events, asks, resume, accepted=changed)
        except StopAsked:
            # A resumed run stands where its state was saved.
            step = (state_step(run.state_dir) if resume else None) or 0
            log.info("Stopped before the first step; there was nothing to save.")
            events.write("stopped", step=step)
            finish(run, "stopped", step=step)
            return DONE
        except KeyboardInterrupt:
            log.warning("Ended at once; the last saved state is kept.")
            events.write("stopped", step=None)
            finish(run, "stopped")
            return FAILED
        except BaseException as error:  # noqa: BLE001 - every end is written down, also one by a library's SystemExit
            return _fail(run, events, error, cfg)


def _attach(run: Run) -> None:
    """Make this process the run's. One that was started by hand waits its turn and looks for others first."""
    if run.is_spawned():
        run.attach()
        return
    default = resolve(Config().saving.output_dir)
    with one_start(lambda: [*list_runs(run.path.parent), *list_runs(default)], but=run):
        run.attach()


def _train(run: Run, cfg: Config, events: EventWriter, asks: Asks, resume: bool, accepted: Config | None = None) -> int:
    """accepted: settings to write into the run's folder before the first step."""
    _environment(cfg)
    # Here and not above: a wrong setting should be told before torch has loaded.
    with imports_without_gc():
        from backend.config.toml_io import dump
        from backend.training.ending import train_to_end
        from backend.training.prepare import prepare

    with ExitStack() as stack:
        job = prepare(run, cfg, events, asks, resume, stack)
        if accepted is not None:
            dump(accepted, run.config_path, whole=True)
        train_to_end(run, job, events)
    return DONE


def _environment(cfg: Config) -> None:
    """What torch and others read from the environment once, when they load, and how the process takes memory."""
    lower_mmap_threshold()
    os.environ["HF_HUB_OFFLINE"] = "1"
    use_expandable_segments(os.environ)
    if cfg.training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # What `accelerate config` once stored for this machine must not change a run behind its settings' back.
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]


def _fail(run: Run, events: EventWriter, error: BaseException, cfg: Config | None) -> int:
    diagnosis = explain(error, None if cfg is None else {path: get(cfg, path) for path in by_path()})
    _log_failure(error, diagnosis)
    # what the error came from says more than the words about it
    diagnosis = replace(diagnosis, exception=getattr(error, "exception", None) or diagnosis.exception)
    events.write("error", **diagnosis.as_event())
    said = {"text": diagnosis.text, "cause": diagnosis.cause, "remedy": diagnosis.remedy}
    finish(run, "failed", error={**said, "exception": diagnosis.exception})
    return WRONG_INPUT if isinstance(error, Refused) else FAILED


def _log_failure(error: BaseException, diagnosis: Diagnosis) -> None:
    if not isinstance(error, Refused | Failed | WriteFailed):
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    for sentence in (diagnosis.text, diagnosis.cause, diagnosis.remedy):
        if sentence:
            log.error(sentence)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py train",
        description="Train a LoRA. Settings of the file can be replaced: --network_dim 32 --max_train_steps 500.",
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", help="the TOML with the settings of a new run")
    parser.add_argument("--run", metavar="DIR", help="a run's folder whose config.toml is trained in the background")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on from the saved state of this run (its name, the beginning of it, or its folder)",
    )
    return parser


def _open(
    config: str | None, run: str | None, resume: str | None, overrides: dict[str, str]
) -> tuple[Run, bool, Config | None]:
    """The run that the command line means, made if it is new, whether it resumes, and with which settings if others."""
    if run is not None:
        if config is not None or overrides:
            raise Refused("--run takes the settings from the run's own config.toml", "Leave the others out.")
        return Run(run), resume is not None, None
    if resume:
        if config is not None:
            raise Refused("a run is resumed with its own settings", f"Leave {config} out, or start a new run.")
        root = resolve(Config().saving.output_dir)
        found = find(root, resume, paths=True)
        return found, True, _changed(found, overrides) if overrides else None
    assert config is not None
    loaded = load(config, overrides)
    problems = list(loaded.problems)
    if loaded.config is not None:
        problems += ready(loaded.config)
        # warnings about the base model are the run's own to tell
        problems += [] if errors(problems) else errors(family_check.problems(loaded.config))
    if loaded.config is None or errors(problems):
        raise Refused.of(errors(problems))
    for problem in problems:
        _say(problem)
    return Run.create(loaded.config), False, None


def _changed(run: Run, overrides: dict[str, str]) -> Config:
    """The run's settings, some replaced for the rest of it, such as a later end. Nothing is written yet."""
    run.refuse_second(run.record())
    loaded = load(run.config_path, overrides)
    problems = [*loaded.problems, *(ready(loaded.config) if loaded.config else [])]
    if loaded.config is None or errors(problems):
        raise Refused.of(errors(problems))
    return loaded.config


def _config(run: Run) -> Config:
    if not run.config_path.is_file():
        raise Refused(f"{run.path} holds no config.toml", "Give the folder of a run.")
    loaded = load(run.config_path)
    problems = [*loaded.problems, *(ready(loaded.config) if loaded.config else [])]
    if loaded.config is None or errors(problems):
        raise Refused.of(errors(problems))
    return loaded.config


def _display(run: Run):  # noqa: ANN202 - a context manager of a module that only the foreground needs
    from backend.training.terminal import show

    return show(run)


def _complain(error: Exception) -> None:
    if isinstance(error, Refused):
        for problem in error.problems:
            _say(problem)
    elif isinstance(error, OSError) and not isinstance(error, WriteFailed):
        remedy = "Free some space there, or give yourself permission to write; then start again."
        _write(f"{error.filename or 'The run'} can't be used: {error.strerror or error}. {remedy}")
    else:
        _write(str(error))


def _say(problem: Problem) -> None:
    _write(f"{problem.severity}: {problem.sentence()}")


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    # A LoRA of a path with an umlaut is written to a terminal that may not know it.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
