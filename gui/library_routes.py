"""Answers the Library tab: the runs that a search finds, their tags and notes, and runs compared with each other."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from backend.runs import comparison
from backend.runs.notes import LONGEST_NOTES, MOST_TAGS, Notes, write_notes
from backend.runs.search import Query as Words
from backend.runs.search import RunIndex, RunText
from backend.runs.summary import curve, summarise
from gui.run_routes import RunViews, answer, or_refusal
from gui.run_store import RunStore
from gui.run_view import RunView

_TONES = {"done": "good", "failed": "bad", "dead": "bad", "stopped": "calm"}
# Runs that nobody has looked at yet are read for so long in one answer; the page asks again for the rest.
_READING_S = 0.7
_MOST_TAGS_SHOWN = 200

Name = Annotated[str, Field(max_length=300)]
Tag = Annotated[str, Field(max_length=200)]


class Written(BaseModel):
    """What a person wrote about a run, and what stood there when they began."""

    run: Name
    tags: Annotated[list[Tag], Field(max_length=MOST_TAGS * 2)]
    notes: Annotated[str, Field(max_length=LONGEST_NOTES * 2)]
    before: dict[str, Any]


def routes(store: RunStore, views: RunViews) -> APIRouter:
    """The routes of this module."""
    router = APIRouter()
    shelves = Shelves(store, views)

    @router.get("/library")
    def library(
        words: Annotated[str, Query(max_length=500)] = "",
        most: Annotated[int, Query(ge=1, le=2000)] = 2000,
        seen: Annotated[str, Query(max_length=100)] = "",
    ) -> Response:
        """The runs that have these words, at most so many, with their files and last samples.

        ``seen``: the mark of the last answer; where nothing changed since, there is no more than the mark. ``unread``:
        runs that could not be searched yet.
        """
        content = shelves.content(words, most)
        mark = hashlib.sha256(json.dumps(content, default=str).encode("utf-8", "replace")).hexdigest()[:20]
        return answer({"mark": mark} if mark == seen else {"mark": mark, **content})

    @router.post("/notes")
    def notes(written: Written) -> Response:
        """Write a run's tags and notes. 409 where somebody else changed them meanwhile."""
        run = or_refusal(lambda: store.run(written.run))
        before = Notes(tuple(map(str, written.before.get("tags", ()))), str(written.before.get("notes", "")))
        own = or_refusal(lambda: write_notes(run, Notes(tuple(written.tags), written.notes), before))
        return answer({"tags": own.tags, "notes": own.text})

    @router.get("/compare")
    def compare(run: Annotated[list[Name], Query()], width: Annotated[int, Query(ge=50, le=2000)] = 400) -> Response:
        """Runs beside each other: curves, results, the settings that differ, samples."""
        names = list(dict.fromkeys(run))
        if not comparison.FEWEST <= len(names) <= comparison.MOST:
            raise HTTPException(422, f"Choose {comparison.FEWEST} to {comparison.MOST} runs to compare.")
        return answer(compared([or_refusal(lambda name=name: views.of(name)) for name in names], width))

    return router


class Shelves:
    """Searches the runs, and says of those that are shown what their cards need."""

    def __init__(self, store: RunStore, views: RunViews) -> None:
        self._store = store
        self._views = views
        self._index = RunIndex()

    def content(self, text: str, most: int) -> dict[str, Any]:
        """The answer to a search: newest runs first, those at work before all."""
        words = Words.of(text)
        runs = self._store.runs()
        self._index.keep_only(runs)
        end, unread = time.monotonic() + _READING_S, 0
        matching: list[tuple[RunView, RunText]] = []
        tags: dict[str, int] = {}
        for run in runs:
            if not self._index.knows(run) and time.monotonic() > end:
                unread += 1
                continue
            own = self._index.text(run)
            for tag in own.notes.tags:
                tags[tag] = tags.get(tag, 0) + 1
            view = self._views.on(run)
            if not words.words or words.matches(own, str(view.brief()["state"])):
                matching.append((view, own))
        shown = matching[:most]
        return {
            "runs": [shelf(view, own) for view, own in shown],
            "matching": len(matching),
            "total": len(runs),
            "unread": unread,
            "tags": [
                {"name": name, "count": count}
                for name, count in sorted(tags.items(), key=lambda tag: (-tag[1], tag[0].casefold()))
            ][:_MOST_TAGS_SHOWN],
        }


def shelf(view: RunView, own: RunText) -> dict[str, Any]:
    """A run as its card in the library shows it."""
    status = view.status()
    facts, _ = view.facts()
    pictures = [file for sample in facts["samples"] if (file := sample["picture"])]
    shown = pictures if len(pictures) <= 8 else [*pictures[:2], *pictures[-6:]]
    started = status["started"]
    return {
        "name": status["name"],
        "path": str(view.run.path),
        "state": status["state"],
        "tone": _TONES.get(status["state"], "busy"),
        "live": status["active"],
        "step": status["step"],
        "total_steps": status["total_steps"],
        "resumable": status["resumable"],
        "when": time.strftime("%d %B %Y, %H:%M", time.localtime(started)) if started else None,
        "bytes": sum(file["size"] for file in facts["checkpoints"]),
        "pictures": shown,
        "memory": (facts["memory"] or {}).get("words"),
        "best": (best := facts["best"]) and f"lowest validation loss {best['loss']:.5f} at step {best['step']}",
        "files": facts["checkpoints"],
        "tags": own.notes.tags,
        "notes": own.notes.text,
        "notes_problem": own.complaint or None,
    }


def compared(views: list[RunView], width: int) -> dict[str, Any]:
    """Runs beside each other, in the order given."""
    runs, outcomes = [], []
    for view in views:
        status, (facts, _) = view.status(), view.facts()
        line, summary = curve(view.run, width), summarise(view.run)
        outcomes.append(comparison.Outcome(steps=status["step"], trained_s=line.trained, summary=summary))
        held_out = summary.held_out
        runs.append(
            {
                "name": status["name"],
                "state": status["state"],
                "live": status["active"],
                "steps": line.steps,
                "seconds": line.seconds,
                "losses": line.losses,
                "held_out": {
                    "steps": [step for step, _ in held_out],
                    "seconds": [line.seconds_at(step) for step, _ in held_out],
                    "losses": [loss for _, loss in held_out],
                },
                "samples": [sample for sample in facts["samples"] if sample["picture"]],
            }
        )
    configs = [comparison.settings_of(view.run) for view in views]
    return {
        "runs": runs,
        "results": [asdict(row) for row in comparison.results(outcomes)],
        "settings": [asdict(row) for row in comparison.differing_settings(configs)],
    }
