"""Turns what a person asks for on the Preview tab into a request for the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.config.schema import Config, SamplePrompt
from backend.families.table import family
from backend.runs.preview.request import (
    Follow,
    LoraUse,
    PreviewRequest,
    Row,
    changed_prompts,
    check_controls,
    control_images,
    find_checkpoint,
    path_of,
    row_of_checkpoint,
    rows_of_strengths,
    settings_of_form,
    settings_of_run,
    with_new_rows,
)
from gui.run_store import RunStore

MOST = 400
"""Pictures of one request."""

Short = Annotated[str, Field(max_length=300)]
Text = Annotated[str, Field(max_length=20_000)]


FilePath = Annotated[str, Field(max_length=4096)]


class DrawnLora(BaseModel):
    """A LoRA file besides the checkpoints."""

    path: FilePath
    strength: float = 1.0


class Drawing(BaseModel):
    """What a person asks for. run: its name, or None for the form's base model. files: checkpoints, one a row."""

    run: Short | None = None
    files: list[Short] = []
    loras: Annotated[list[DrawnLora], Field(max_length=8)] = []
    """Files that each row has besides."""
    strength: float = 1.0
    """Of the checkpoints."""
    strengths: Annotated[list[float], Field(max_length=40)] = []
    """Several make a matrix: the only checkpoint, or the files, once at each."""
    prompts: list[Text] = []
    negative_prompt: Text = ""
    seed: int = 42
    width: int = 1024
    height: int = 1024
    steps: int = 28
    guidance_scale: float = 3.5
    true_cfg_scale: float = 1.0
    frames: int | None = None
    """Of a clip; None for the family's usual length."""
    controls: list[FilePath] = []
    """Paths of images to start from."""
    follow: bool = False
    """All checkpoints of the run, and each that it saves from now on."""
    changes: dict[Short, Short] = {}
    """Settings of [memory] by name that differ for this preview."""


def _changes(drawing: Drawing) -> dict[str, str]:
    """The settings that differ, whole. Refused for those that are none of [memory]."""
    wrong = [name for name in drawing.changes if name not in Config().memory.model_dump()]
    if wrong:
        raise Refused(f"{', '.join(wrong)} can't be changed for a preview", "Change it in the form or the run.")
    return {f"memory.{name}": value for name, value in drawing.changes.items()}


def _unquoted(path: str) -> str:
    """A path, which comes in quotes when it was copied from a file manager."""
    return path.strip().strip("\"'").strip()


def request_of(store: RunStore, form: Callable[[], Config | None], drawing: Drawing) -> PreviewRequest:
    """The request of what a person asked for. Refused or RunError where it can't be drawn."""
    used = [(path, each.strength) for each in drawing.loras if (path := _unquoted(each.path))]
    extra = tuple(LoraUse(path=path_of(str(resolve(path))), strength=strength) for path, strength in used)
    folder = None
    if drawing.follow and drawing.run is None:
        raise Refused("only a run can be followed", "Choose a run instead of the form.")
    if drawing.strengths and (drawing.follow or len(drawing.files) > 1 or not (drawing.files or extra)):
        raise Refused("several strengths are of one checkpoint, or of LoRA files", "Choose one, or write one strength.")
    if drawing.run is not None:
        run = store.run(drawing.run)
        if store.trains_whole_model(run):
            remedy = "Choose the saved model as base model on the Model tab, then the form here."
            raise Refused(f"the run {run.name} saves whole models, and no LoRA file", remedy)
        cfg, folder = settings_of_run(run, _changes(drawing)), str(run.path)
        own_rows = [row_of_checkpoint(run, find_checkpoint(run, name), drawing.strength) for name in drawing.files]
        rows = [Row(name=row.name, loras=(*row.loras, *extra), facts=row.facts, step=row.step) for row in own_rows]
    else:
        config = form()
        if config is None or config.model.base_model is None:
            raise Refused("the form names no base model", "Choose one on the Model tab, or a run here.")
        cfg, rows = settings_of_form(config, _changes(drawing)), []
    if not rows and not drawing.follow:
        rows = [Row(name=" + ".join(Path(use.path).stem for use in extra) or "base model", loras=extra)]
    if drawing.strengths:
        rows = list(rows_of_strengths(rows[0], drawing.strengths))
    texts = [words.strip() for words in drawing.prompts if words.strip()]
    if not texts:
        raise Refused("there is no prompt to draw", "Write one, each on a line of its own.")
    names = ("negative_prompt", "seed", "width", "height", "steps", "guidance_scale", "true_cfg_scale")
    values = {name: getattr(drawing, name) for name in names}
    facts = family(cfg.model.family)
    values["frames"] = drawing.frames if facts.video is not None else None
    # what the form still holds of a family before is not asked of one that takes none
    paths = [_unquoted(path) for path in drawing.controls[: facts.sample_controls]]
    values |= control_images([str(resolve(path)) for path in paths if path])
    prompts = changed_prompts([SamplePrompt(prompt=words) for words in texts], values)
    for prompt in prompts:
        check_controls(prompt, facts)
    request = PreviewRequest(config=cfg, rows=() if drawing.follow else tuple(rows), prompts=prompts, run=folder)
    if drawing.follow:
        watched = replace(request, follow=Follow(strength=drawing.strength, extra=extra))
        request = with_new_rows(watched, whole=not run.is_at_work())
    if len(request.cells()) > MOST:
        raise Refused(f"that would be {len(request.cells())} pictures", f"Choose at most {MOST}.")
    return request
