"""Makes folders to publish, asked for on the Library tab: one process at a time, whose result the page polls."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response
from pydantic import BaseModel, Field

from backend.base.files import unused_path
from backend.runs.errors import RunNotFound
from gui import messages
from gui.jobs import Job
from gui.run_routes import answer
from gui.run_store import RunStore

_MODULE = "backend.publish"
Short = Annotated[str, Field(max_length=300)]


class Wish(BaseModel):
    """What a person asks for. Empty texts: those of the run's settings."""

    run: Short
    file: Short
    license: Short = ""
    base_model: Short = ""
    trigger: Short = ""
    title: Short = ""


class Publisher:
    """Starts the process that makes a folder, and keeps what it answered."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.job = Job()
        self.result: dict[str, Any] = {}

    def start(self, wish: Wish) -> None:
        """Begin. HTTPException for an unknown run or file, and while another folder is being made."""
        try:
            run = self._store.run(wish.run)
        except RunNotFound as error:
            raise HTTPException(404, messages.words(error)) from None
        path = self._store.lora(run, wish.file)
        if path is None:
            raise HTTPException(404, "There is no such LoRA file.")
        if self._store.trains_whole_model(run):
            raise HTTPException(409, f"{path.name} is a whole model. A folder to publish is made of LoRA files only.")
        output: dict[str, Any] = {}

        def end(code: int, errors: str) -> bool:
            last = errors.splitlines()[-1] if errors else f"The process ended with code {code}."
            self.result = output if output else {"error": last}
            return "folder" in output

        # a person finds it in the run, and an earlier one stays
        target = unused_path(run.path / "publish" / path.stem)
        arguments = [str(run.path), "--json", f"--checkpoint={path.name}", f"--out={target}"]
        for name in ("license", "base_model", "trigger", "title"):
            if text := getattr(wish, name).strip():
                arguments.append(f"--{name.replace('_', '-')}={text}")
        if not self.job.start(_MODULE, arguments, output.update, end):
            raise HTTPException(409, "Another folder is being made. Wait until it is there.")

    def state(self) -> dict[str, Any]:
        """``running``, ``done`` with the folder, or ``failed`` with what is wrong."""
        return {"state": self.job.state, **(self.result if self.job.state in ("done", "failed") else {})}


def routes(store: RunStore) -> APIRouter:
    """The routes of this module."""
    router = APIRouter()
    publisher = Publisher(store)

    @router.post("/publish")
    def publish(wish: Wish) -> Response:
        """Make a folder to publish from a LoRA file of a run."""
        publisher.start(wish)
        return answer({"started": True})

    @router.get("/publish")
    def state() -> Response:
        """How far that is."""
        return answer(publisher.state())

    return router
