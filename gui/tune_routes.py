"""Answers what a tune of the form's settings found, and starts one in a process of its own.

That process is ``python -m backend.plan.tune``: it trains a candidate at a time for some seconds. The newest result is
kept in the page's folder, and shown after a restart too.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, HTTPException
from fastapi.responses import Response
from pydantic import BaseModel, Field

from backend.base.files import write_atomic
from backend.base.jsonable import dumps, jsonable
from backend.base.redact import redact
from backend.config.schema import Config, by_path
from backend.config.toml_io import dump, to_data
from backend.runs.eta import spoken
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from gui import fields, form
from gui.draft import Draft
from gui.form_routes import FormRoutes, startable
from gui.jobs import Job
from gui.run_routes import answer, or_refusal
from gui.tune_plot import pareto_plot

log = logging.getLogger(__name__)

_AT_WORK = "Settings are being tuned. Wait until that is done, or press Stop."
_ENDING = "The tune is being stopped. Try again in a moment."
# What a tune's result does not depend on, or what it is about to change itself.
_FREE = ("saving", "logging")


class TuneRequest(BaseModel):
    """What the panel asks for."""

    allow: list[Literal["precision", "crops"]] = []
    probes: Annotated[int, Field(ge=1, le=100)] = 24
    by_class: bool = False


class TunePanel:
    """The newest tune."""

    def __init__(self, draft: Draft, form_routes: FormRoutes, preview: PreviewFolder) -> None:
        self.draft = draft
        self.config = form_routes.config
        self.preview = preview
        self.job = Job()
        self._progress: dict[str, Any] = _waiting()
        self._failure = ""
        self._kept: dict[str, Any] = self._read()

    @property
    def path(self) -> Path:
        """Where the newest result is kept, with the settings it is for."""
        return self.draft.folder / "tune.json"

    def routes(self) -> APIRouter:
        """The routes of this module."""
        router = APIRouter()

        @router.get("/tune")
        def state() -> Response:
            """How far a tune is, what the newest one found, and what its choice would change in the form."""
            failure = self._failure if self.job.state == "failed" else ""
            return answer({"state": self.job.state, "failure": failure, **self._progress, **self._result()})

        @router.post("/tune")
        def start(asked: Annotated[TuneRequest | None, Body()] = None) -> Response:
            """Start a tune of the form's settings, at most one at a time."""
            if self.job.state == "running":
                raise HTTPException(409, _AT_WORK)
            if self.job.is_ending:
                raise HTTPException(409, _ENDING)
            config = startable(self.config())
            give_gpu_back(self.preview)
            if not or_refusal(lambda: self._start(config, asked or TuneRequest())):
                raise HTTPException(409, _AT_WORK)
            return answer({})

        @router.post("/tune/cancel")
        def cancel(_: Annotated[dict[str, Any] | None, Body()] = None) -> Response:
            """Stop the tune; the best so far is kept."""
            self.job.cancel()
            return answer({})

        return router

    def _result(self) -> dict[str, Any]:
        result = self._kept.get("result")
        if not isinstance(result, dict):
            return {"result": None, "svg": "", "rows": [], "other": False}
        values = {path: value for path, value in result["values"].items() if path in by_path()}
        now = self.draft.now.values
        after = now | {path: fields.to_widget(by_path()[path], value) for path, value in values.items()}
        config = self.config()
        varied = {path for trial in result["trials"] for path in trial["values"]}
        other = config is not None and _compared(_settings(config), varied) != _compared(
            self._kept.get("settings") or {}, varied
        )
        return {
            "result": result,
            "svg": pareto_plot(result["trials"], result["best"]),
            "rows": form.differences(now, after),
            "other": other,
        }

    def _start(self, config: Config, asked: TuneRequest) -> bool:
        folder = tempfile.TemporaryDirectory(prefix="monotile-tune-")
        path = Path(folder.name) / "config.toml"
        dump(config, path, whole=True)
        settings = _settings(config)
        allow = [word for name in dict.fromkeys(asked.allow) for word in ("--allow", name)]
        words = [
            str(path),
            "--json",
            "--probes",
            str(asked.probes),
            *allow,
            *(["--by-class"] if asked.by_class else []),
        ]

        def line(document: dict[str, Any]) -> None:
            self._take(document, settings)

        def end(code: int, output: str) -> bool:
            folder.cleanup()
            self._progress = _waiting()
            if not self._kept:
                # it ended before it had a row
                self._kept = self._read()
            if code and not self._failure:
                # what did not run is told by the rows
                explained = self._kept.get("settings") is settings and self._kept["result"].get("ended")
                last = redact(output.splitlines()[-1])[:500] if output else f"The tune ended with code {code}."
                self._failure = "" if explained else last
            return code == 0

        before = (self._progress, self._failure, self._kept)
        self._progress, self._failure, self._kept = {**_waiting(), "at": "Starting."}, "", {}
        if self.job.start("backend.plan.tune", words, line, end):
            return True
        self._progress, self._failure, self._kept = before
        return False

    def _take(self, document: dict[str, Any], settings: dict[str, Any]) -> None:
        kind = document.get("kind")
        if kind == "progress":
            left = document.get("left")
            self._progress = {
                "at": str(document["text"]),
                "share": float(document["share"]),
                "probes": int(document.get("probes", 0)),
                "planned": int(document.get("planned", 0)),
                "left": "" if left is None else spoken(float(left)),
            }
        elif kind == "tune" and document.get("trials"):
            # until there is a row, the result of before stays on the disk
            self._kept = {"settings": settings, "result": document}
            try:
                write_atomic(self.path, dumps(self._kept))
            except OSError as wrong:
                log.warning("The result of the tune could not be kept in %s: %s", self.path, wrong)
        elif kind == "problems":
            self._failure = " ".join(f"{each['text']} {each['remedy']}".strip() for each in document["problems"])

    def _read(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.path.read_text(encoding="utf-8"))
            return kept if isinstance(kept, dict) and kept["result"]["version"] == 1 else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as wrong:
            log.warning("The tune kept in %s can't be read and is not shown: %s", self.path, wrong)
            return {}


def _waiting() -> dict[str, Any]:
    return {"at": "", "share": 0.0, "probes": 0, "planned": 0, "left": ""}


def _settings(config: Config) -> dict[str, Any]:
    """The settings that a result is for, as JSON has them."""
    data = {name: values for name, values in to_data(config, whole=True).items() if name not in _FREE}
    kept = jsonable(data)
    assert isinstance(kept, dict)
    return kept


def _compared(settings: Mapping[str, Any], varied: set[str]) -> dict[str, Any]:
    """Settings by ``section.name`` without those that the tune varied."""
    flat = {
        f"{section}.{name}": value
        for section, values in settings.items()
        if isinstance(values, dict)
        for name, value in values.items()
    }
    return {path: value for path, value in flat.items() if path not in varied}
