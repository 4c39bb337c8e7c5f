"""Answers what the Library tab asks of a LoRA file: what it holds, and which programs load it.

A process of its own reads the file, since the page loads no torch: ``python -m backend.lora_tools inspect | check``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response
from pydantic import BaseModel, Field

from backend.base.paths import resolve
from backend.base.redact import redact
from backend.runs.errors import RunError, RunNotFound
from gui import messages
from gui.jobs import Job
from gui.run_routes import answer
from gui.run_store import RunStore


class Question(BaseModel):
    """What a person asks of a LoRA file. file: its name where `run` names a run, else a path that was typed."""

    what: Literal["inspect", "check"]
    run: Annotated[str, Field(max_length=300)] | None = None
    file: Annotated[str, Field(max_length=4096)]


class LoraReader:
    """The newest question, and its answer once the process has ended."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.job = Job()
        self._report: dict[str, Any] = {}

    def routes(self) -> APIRouter:
        """The routes of this module."""
        router = APIRouter()

        @router.post("/lora")
        def ask(question: Question) -> Response:
            """Read a LoRA file, at most one at a time."""
            path = self._path(question)
            if not self._start(question.what, path):
                raise HTTPException(409, "Another LoRA file is being read. Wait until it is done.")
            return answer({"number": self.job.number})

        @router.get("/lora")
        def state() -> Response:
            """How far the newest question is."""
            return answer({"number": self.job.number, "state": self.job.state, **self._report})

        return router

    def _path(self, question: Question) -> Path:
        """The file that is meant; an answer with the reason where there is none."""
        if question.run is not None:
            try:
                run = self.store.run(question.run)
                path = self.store.lora(run, question.file)
            except RunError as error:
                raise HTTPException(404 if isinstance(error, RunNotFound) else 409, messages.words(error)) from None
            if path is None:
                raise HTTPException(404, "There is no such LoRA file.")
            if self.store.trains_whole_model(run):
                raise HTTPException(409, f"{path.name} is a whole model, and no LoRA file.")
            return path
        # a path that was copied from a file manager comes in quotes
        typed = question.file.strip().strip("\"'").strip()
        if not typed:
            raise HTTPException(422, "No LoRA file is given. Type its path.")
        return resolve(typed)

    def _start(self, what: str, path: Path) -> bool:
        report: dict[str, Any] = {"what": what, "name": path.name, "result": None, "error": None}

        def line(document: dict[str, Any]) -> None:
            report["error"] = document.get("error") if set(document) == {"error"} else None
            report["result"] = None if report["error"] else document

        def end(code: int, errors: str) -> bool:
            if report["result"] is None and report["error"] is None:
                last = redact(errors.splitlines()[-1])[:500] if errors else ""
                report["error"] = f"{path.name} could not be read (exit code {code}). {last}".strip()
            return report["error"] is None

        if not self.job.start("backend.lora_tools", [what, str(path), "--json"], line, end):
            return False
        self._report = report
        return True
