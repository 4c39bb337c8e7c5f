"""Answers when a run of the form's settings will end, and measures it in a process of its own.

That process is ``python -m backend.plan.finish``: it trains the settings for some seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query
from fastapi.responses import Response

from backend.base.redact import redact
from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.plan.finish.earlier_runs import compared, expected_seconds
from backend.plan.finish.pace import read_pace
from backend.plan.finish.reckoning import cost_words, finish_time
from backend.runs.errors import RunError
from backend.runs.eta import spoken
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from gui import messages
from gui.form_routes import startable
from gui.jobs import Job
from gui.run_routes import answer, or_refusal
from gui.run_store import RunStore

_AT_WORK = "A finish time is being measured. Wait until it is known, or cancel it."

Price = Annotated[float | None, Query(ge=0, le=1e6)]


class FinishProbe:
    """The newest probe, and what it says."""

    def __init__(self, store: RunStore, form: Callable[[], Config | None], preview: PreviewFolder) -> None:
        self.store = store
        self.form = form
        self.preview = preview
        self.job = Job()
        self._progress: dict[str, Any] = {"at": "", "share": 0.0}
        self._failure = ""

    def routes(self) -> APIRouter:
        """The routes of this module."""
        router = APIRouter()

        @router.get("/finish")
        def state(per_hour: Price = None, per_kwh: Price = None, watts: Price = None) -> Response:
            """When a run of the form would end, what it costs at these prices and W, and how far a probe is."""
            text, cost = self._known(per_hour, per_kwh, watts)
            failure = self._failure if self.job.state == "failed" else ""
            about = {"text": text, "cost": cost, "state": self.job.state, "failure": failure}
            return answer(about | self._progress)

        @router.get("/finish/run")
        def of_run(run: Annotated[str, Query(max_length=300)]) -> Response:
            """A finished run beside the finish time before its start."""
            try:
                finished = self.store.run(run)
            except RunError as wrong:
                raise HTTPException(404, messages.words(wrong)) from None
            return answer({"text": compared(finished, finished.status())})

        @router.post("/finish")
        def measure() -> Response:
            """Start a probe of the form's settings, at most one at a time."""
            if self.job.state == "running":
                raise HTTPException(409, _AT_WORK)
            config = startable(self.form())
            give_gpu_back(self.preview)
            if not or_refusal(lambda: self._start(config)):
                raise HTTPException(409, _AT_WORK)
            return answer({})

        @router.post("/finish/cancel")
        def cancel(_: Annotated[dict[str, Any] | None, Body()] = None) -> Response:
            """Stop the probe; what it made is removed."""
            self.job.cancel()
            return answer({})

        return router

    def _known(self, per_hour: float | None, per_kwh: float | None, watts: float | None) -> tuple[str, str]:
        config = self.form()
        if config is None:
            return "", ""
        pace = read_pace(config)
        expected = None if pace is None else finish_time(config, pace)
        if expected is not None:
            return expected.sentence(), cost_words(expected.seconds, per_hour, per_kwh, watts)
        earlier = expected_seconds(config, self.store.runs())
        if earlier is None:
            return "", ""
        seconds, source = earlier
        return f"About {spoken(seconds)}, by the pace of {source}.", cost_words(seconds, per_hour, per_kwh, watts)

    def _start(self, config: Config) -> bool:
        folder = tempfile.TemporaryDirectory(prefix="monotile-finish-")
        path = Path(folder.name) / "config.toml"
        dump(config, path, whole=True)
        self._progress = {"at": "Starting.", "share": 0.0}
        self._failure = ""

        def line(document: dict[str, Any]) -> None:
            if document.get("kind") == "progress":
                self._progress = {"at": str(document["text"]), "share": float(document["share"])}
            elif document.get("kind") == "problems":
                self._failure = " ".join(f"{each['text']} {each['remedy']}".strip() for each in document["problems"])

        def end(code: int, output: str) -> bool:
            folder.cleanup()
            if code and not self._failure:
                self._failure = (
                    redact(output.splitlines()[-1])[:500] if output else f"The probe ended with code {code}."
                )
            return code == 0

        return self.job.start("backend.plan.finish", [str(path), "--json"], line, end)
