"""Answers what the page asks to train a run further: what would follow, and the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response
from pydantic import BaseModel, Field

from backend.base.errors import Refused
from backend.plan.further import LOST, Further, Wish, from_file_changes, plan_further, standing_of
from backend.runs import supervise
from backend.runs.comparison import settings_of
from backend.runs.folder import Run
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.process import give_gpu_back
from backend.runs.start_lock import one_start
from gui import plots
from gui.run_routes import Name, answer, or_refusal
from gui.run_store import RunStore


class Asked(BaseModel):
    """What a person asks for: the length of the whole run, and how the learning rate continues."""

    run: Annotated[str, Field(max_length=300)]
    steps: int | None = None
    epochs: int | None = None
    schedule: Literal["stretch", "constant"] = "stretch"
    learning_rate: Annotated[str, Field(max_length=40)] = ""
    """As it was typed; empty for that of the run."""

    def wish(self) -> Wish:
        """The same for the plan. Refused where the rate is no number."""
        try:
            rate = float(self.learning_rate) if self.learning_rate.strip() else None
        except ValueError:
            text = f"the learning rate {self.learning_rate!r} is no number"
            raise Refused(text, "Write it like 0.0001 or 1e-4.") from None
        return Wish(steps=self.steps, epochs=self.epochs, schedule=self.schedule, learning_rate=rate)


def routes(store: RunStore, preview: PreviewFolder) -> APIRouter:
    """The routes of this module. preview: of the page, which gives the GPU to the run."""
    router = APIRouter()

    @router.get("/further")
    def standing(run: Name) -> Response:
        """How far a run is, or what a new run that continues from its file would lack."""
        return answer(standing_facts(or_refusal(lambda: store.run(run))))

    @router.post("/further/plan")
    def plan(asked: Asked) -> Response:
        """What would follow, with the learning rate as a drawing. Nothing is changed."""
        further = or_refusal(lambda: plan_further(store.run(asked.run), asked.wish()))
        return answer(_facts(further))

    @router.post("/further")
    def start(asked: Asked) -> Response:
        """Train a run further. Its settings are changed by the trainer, once nothing refuses them."""
        run = or_refusal(lambda: store.run(asked.run))
        further = or_refusal(lambda: plan_further(run, asked.wish()))
        or_refusal(_starting(store, preview, run, further))
        return answer({"run": run.name})

    return router


def standing_facts(run: Run) -> dict[str, Any]:
    """What the dialog begins with. An answer with the reason where the run can't be trained further at all."""
    if run.has_state():
        standing = or_refusal(lambda: standing_of(run))
        optimizer, training = standing.config.optimizer, standing.config.training
        return {
            "state": True,
            "done": standing.done,
            "total": standing.total,
            "epochs": training.max_train_epochs,
            "steps_per_epoch": standing.steps_per_epoch,
            "schedule": optimizer.lr_scheduler,
            "stretches": standing.stretches,
            "learning_rate": optimizer.learning_rate,
        }
    config = settings_of(run)
    if config is None:
        raise HTTPException(422, "The settings of this run can't be read. Start a new run.")
    changes = or_refusal(lambda: from_file_changes(run, config))
    return {"state": False, "changes": changes, "lost": LOST, "full": config.training.kind == "full"}


def _facts(further: Further) -> dict[str, Any]:
    return {
        "total": further.total,
        "sentences": further.sentences(),
        "svg": plots.learning_rate_further(further),
    }


def _starting(store: RunStore, preview: PreviewFolder, run: Run, further: Further) -> Callable[[], None]:
    def start() -> None:
        with one_start(store.runs, but=run):
            give_gpu_back(preview)
            supervise.start(None, run, resume=True, changes=further.overrides)

    return start
