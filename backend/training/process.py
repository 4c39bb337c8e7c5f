"""Runs one training in this process, from its settings to its end, and writes the end down, whatever it is."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from backend.base.errors import Failed, Refused, WriteFailed
from backend.base.library_imports import library_imports
from backend.base.paths import resolve
from backend.config.schema import Config, by_path, get
from backend.runs.control import Control
from backend.runs.diagnose import Diagnosis, explain
from backend.runs.errors import RunError
from backend.runs.events import EventWriter
from backend.runs.events.kinds import DoneEvent, StoppedEvent
from backend.runs.folder import FinalState, Run, list_runs
from backend.runs.keeper import Keeper
from backend.runs.process import WITH_STARTER
from backend.runs.start_lock import one_start
from backend.runs.state_folder import state_step
from backend.training.command_line import complain, settings_of
from backend.training.environment import set_environment, set_gpu, visible_gpus
from backend.training.requests import Requests, StopRequested

if TYPE_CHECKING:
    from backend.training.ending import End

log = logging.getLogger(__name__)

DONE, FAILED, WRONG_INPUT = 0, 1, 2


def run_trainer(
    run: Run,
    *,
    resume: bool = False,
    new: bool = False,
    foreground: bool = False,
    logs: Callable[[Run, str], None] | None = None,
    changed: Config | None = None,
) -> int:
    """Train `run` in this process to its end, whatever that is, and write the end down; returns the exit code.

    new: the run was made for this start, and goes where that is refused. foreground: show the progress in the terminal.
    logs: sends this process's logging where it belongs, given the run
    and its log level; left out by callers that have their own logging. changed: settings for the rest of a resumed run;
    they become the run's own once nothing refuses them.
    """
    end_with_starter()
    try:
        _attach(run)
        events = EventWriter(run)
    except (RunError, OSError) as error:
        complain(error)
        if new:
            run.discard()
        return WRONG_INPUT
    requests = Requests(Control(run))
    cfg: Config | None = None
    with ExitStack() as stack:
        stack.enter_context(Keeper(run, events))
        stack.enter_context(requests.signals())
        stack.enter_context(_display(run) if foreground else nullcontext())
        try:
            cfg = changed or settings_of(run)
            if logs is not None:
                logs(run, cfg.logging.log_level)
            end = _train(run, cfg, events, requests, resume, accepted=changed)
            events.write((StoppedEvent if end.state == "stopped" else DoneEvent)(**end.fields))
            _finish(run, end.state, **end.fields)
            return DONE
        except StopRequested:
            # A resumed run stands where its state was saved.
            step = (state_step(run.state_dir) if resume else None) or 0
            log.info("Stopped before the first step; there was nothing to save.")
            events.write(StoppedEvent(step=step))
            _finish(run, "stopped", step=step)
            return DONE
        except KeyboardInterrupt:
            log.warning("Ended at once; the last saved state is kept.")
            events.write(StoppedEvent(step=None))
            _finish(run, "stopped")
            return FAILED
        except BaseException as error:  # noqa: BLE001 - every end is written down, also one by a library's SystemExit
            return _fail(run, events, error, cfg)


def end_with_starter() -> None:
    """End this process at once, with nothing saved, when its starter is gone; only where the starter asked for it.

    Nothing tells a program that its parent was killed, but its standard input then ends, on every system.
    """

    def wait() -> None:
        while os.read(0, 1):
            pass
        os._exit(FAILED)

    if os.environ.get(WITH_STARTER):
        threading.Thread(target=wait, name="starter", daemon=True).start()


def _attach(run: Run) -> None:
    """Make this process the run's. One that was started by hand waits its turn and looks for others first."""
    if run.is_spawned():
        run.attach()
        return
    default = resolve(Config().saving.output_dir)
    with one_start(lambda: [*list_runs(run.path.parent), *list_runs(default)], but=run):
        run.attach()


def _train(
    run: Run, cfg: Config, events: EventWriter, requests: Requests, resume: bool, accepted: Config | None = None
) -> End:
    """accepted: settings to write into the run's folder before the first step."""
    set_environment(cfg)
    gpus = visible_gpus()
    set_gpu(os.environ, cfg, gpus, 0)
    # Here and not above: a wrong setting should be named before torch has loaded.
    with library_imports():
        from backend.config.toml_io import dump
        from backend.training.ending import train_to_end
        from backend.training.prepare import prepare

    with ExitStack() as stack:
        trainer = prepare(run, cfg, events, requests, resume, stack, gpus)
        if accepted is not None:
            dump(accepted, run.config_path, whole=True)
        return train_to_end(run, trainer, events)


def _fail(run: Run, events: EventWriter, error: BaseException, cfg: Config | None) -> int:
    diagnosis = explain(error, None if cfg is None else {path: get(cfg, path) for path in by_path()})
    _log_failure(error, diagnosis)
    # what the error came from says more than the words about it
    diagnosis = replace(diagnosis, exception=getattr(error, "exception", None) or diagnosis.exception)
    events.write(diagnosis.as_event())
    message = {"text": diagnosis.text, "cause": diagnosis.cause, "remedy": diagnosis.remedy}
    _finish(run, "failed", error={**message, "exception": diagnosis.exception, "kind": diagnosis.kind})
    return WRONG_INPUT if isinstance(error, Refused) else FAILED


def _log_failure(error: BaseException, diagnosis: Diagnosis) -> None:
    if not isinstance(error, Refused | Failed | WriteFailed):
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())
    for sentence in (diagnosis.text, diagnosis.cause, diagnosis.remedy):
        if sentence:
            log.error(sentence)


def _finish(run: Run, state: FinalState, **fields: object) -> None:
    """`Run.finish`; a record that can't be written is a warning in the log, and the events name the end."""
    try:
        run.finish(state, **fields)
    except (RunError, OSError) as error:
        log.warning("The end of the run could not be written into its record: %s", error)


def _display(run: Run) -> AbstractContextManager[None]:
    # only the foreground needs it
    from backend.training.terminal import show

    return show(run)
