"""Trains in a process that is not the run's first: prepares as that one does, writes nothing, and follows it."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from backend.config.schema import Config
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.events.kinds import Event
from backend.runs.folder import Run
from backend.training.compile_setup import cache_folder, warmed_compiler
from backend.training.gathering import gather
from backend.training.loop import train
from backend.training.prepare import load, ready, seed
from backend.training.ranks.group import Ranks
from backend.training.ranks.others import Go
from backend.training.requests import Requests, StopRequested
from backend.training.run_context import RunContext
from backend.training.step_log import NotFinite

log = logging.getLogger(__name__)


class _Silent(EventWriter):
    """The first process tells what happens."""

    def write(self, event: Event) -> None:
        """Leave it out."""


class _Unasked(Requests):
    """The first process is asked, and tells the others what comes of it."""

    def _pending(self) -> set[str]:
        return set()


def follow(run: Run, cfg: Config, rank: int, go: Go, stack: ExitStack) -> None:
    """Train until the first process says that it is enough."""
    ranks = Ranks(rank=rank, count=cfg.training.num_processes)
    stack.callback(ranks.leave)
    events, requests = _Silent(run), _Unasked(Control(run))
    context = RunContext(run=run, events=events, requests=requests, stack=stack, started=time.time(), ranks=ranks)
    seed(cfg.training)
    cache = cache_folder(cfg.compile)
    compiler = warmed_compiler(cfg)
    inputs = replace(gather(cfg, events, requests, only_trains=True), product_way=go.products)
    loaded = load(context, inputs, go.store, None if go.state is None else Path(go.state))
    trainer = ready(context, inputs, loaded, compiler, cache, metrics=None)
    try:
        log.info("%s", train(trainer))
    except StopRequested:
        log.info("Stopped before the first step")
    except NotFinite as lost:
        # the first process reads the same numbers, and says so
        log.info("%s", lost)
        threading.Event().wait()
