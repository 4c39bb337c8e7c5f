"""Draws pictures and clips with a base model and LoRA files: ``python -m backend.preview --base … | --run RUN``."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from backend.base.errors import Refused, WriteFailed
from backend.base.files import unused_path
from backend.base.library_imports import library_imports
from backend.base.paths import resolve
from backend.base.problems import errors
from backend.config.arguments import split
from backend.config.schema import Config, SamplePrompt
from backend.families.table import family
from backend.memory.allocators import lower_mmap_threshold, use_expandable_segments
from backend.plan import base_model_check
from backend.plan.memory.preview import SUBJECT, preview_plan
from backend.plan.memory.report import render
from backend.runs.errors import RunError
from backend.runs.folder import Run, find, list_runs
from backend.runs.preview.class_images import class_folders, class_images_request, settings_of_training
from backend.runs.preview.request import (
    Follow,
    LoraUse,
    PreviewRequest,
    Row,
    changed_prompts,
    check_controls,
    checkpoints_of,
    control_images,
    find_checkpoint,
    path_of,
    row_of_checkpoint,
    rows_of_strengths,
    settings_of_base,
    settings_of_run,
    with_new_rows,
)
from backend.runs.start_lock import probes, shares_device

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

_OF_PROMPTS = {
    "negative": "negative_prompt",
    "width": "width",
    "height": "height",
    "steps": "steps",
    "guidance": "guidance_scale",
    "cfg": "true_cfg_scale",
    "frames": "frames",
}
_CHOICES = ("base", "family", "lora", "run", "checkpoint", "prompt", "prompts", "seed", "out", "matrix", "strengths")
_OWN = (*_CHOICES, "class-images", "control", "plan", "vram", "follow", "help", *_OF_PROMPTS)


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Draw; returns 0, 1 when it failed, 2 when it can't begin, 130 after Ctrl+C."""
    console = console or Console(highlight=False)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # it asks for a package that nothing here needs
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    os.environ["HF_HUB_OFFLINE"] = "1"
    use_expandable_segments(os.environ)
    try:
        own, changes = split(sys.argv[1:] if arguments is None else arguments, _OWN)
        options = _parser().parse_args(own)
        if options.class_images is not None:
            return _draw_class_images(options, changes, console)
        request = request_of(options, changes)
        if options.plan:
            return _plan(request, options.vram, console)
        folder = _folder(options, request)
        _say_who_is_at_work(request, console)
        return _draw(request, folder, console)
    except (Refused, RunError, WriteFailed) as error:
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return WRONG_INPUT
    except KeyboardInterrupt:
        console.print("Cancelled. The pictures that were finished are there.")
        return INTERRUPTED


def request_of(options: argparse.Namespace, changes: dict[str, str]) -> PreviewRequest:
    """What the command line asks for. changes: settings of [model], [memory] and [compile] by name."""
    if (options.base is None) == (options.run is None):
        raise Refused("give either a base model or a run", "Write --base FOLDER --family NAME, or --run RUN.")
    extra = tuple(_use(text) for text in options.lora)
    run = None
    if options.run is not None:
        run = find(resolve(Config().saving.output_dir), options.run, paths=True)
        cfg = settings_of_run(run, changes)
        own = tuple(cfg.sampling.prompts)
    else:
        cfg, own = settings_of_base(options.base, options.family or "flux", changes), ()
    prompts = _prompts(options, own)
    for prompt in prompts:
        check_controls(prompt, family(cfg.model.family))
    rows = _rows(options, run, extra)
    request = PreviewRequest(config=cfg, rows=rows, prompts=prompts, run=None if run is None else str(run.path))
    if run is None or not options.follow:
        return request
    return with_new_rows(replace(request, rows=(), follow=Follow(extra=extra)), whole=not run.is_at_work())


def _rows(options: argparse.Namespace, run: Run | None, extra: tuple[LoraUse, ...]) -> tuple[Row, ...]:
    """The sets of LoRAs to draw with, one a row."""
    if options.follow and options.matrix != "checkpoints":
        raise Refused("only a matrix of checkpoints follows a run", "Write --run RUN --matrix checkpoints --follow.")
    if options.matrix == "checkpoints":
        if run is None or options.checkpoint is not None:
            raise Refused("a matrix of checkpoints is of a whole run", "Write --run RUN --matrix checkpoints.")
        if not (options.follow and run.is_at_work()):
            find_checkpoint(run, None)
        own_rows = [row_of_checkpoint(run, each) for each in checkpoints_of(run)]
    elif run is not None:
        own_rows = [row_of_checkpoint(run, find_checkpoint(run, options.checkpoint))]
    else:
        own_rows = [Row(name=" + ".join(resolve(use.path).stem for use in extra) or "base model")]
    rows = tuple(Row(name=row.name, loras=(*row.loras, *extra), facts=row.facts, step=row.step) for row in own_rows)
    if options.matrix != "strengths":
        return rows
    if not rows[0].loras:
        raise Refused("a matrix of strengths needs a LoRA", "Give one with --lora, or a run with --run.")
    try:
        strengths = [float(each) for each in options.strengths.replace(",", " ").split()]
    except ValueError as error:
        raise Refused(f"--strengths is {options.strengths!r}", "Write numbers, such as 0,0.5,1.") from error
    return rows_of_strengths(rows[0], strengths)


def _prompts(options: argparse.Namespace, own: tuple[SamplePrompt, ...]) -> tuple[SamplePrompt, ...]:
    """The prompts of the command line, else those of the run; with what else the command line says of them."""
    words = list(options.prompt)
    if options.prompts is not None:
        try:
            lines = Path(options.prompts).expanduser().read_text(encoding="utf-8-sig").splitlines()
        except (OSError, ValueError) as error:
            raise Refused(f"{options.prompts} can't be read: {error}", "Give a text file, a prompt a line.") from error
        words += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    # size and steps as in the run's own samples
    like = own[0].model_copy(update={"negative_prompt": ""}) if own else SamplePrompt(prompt="")
    prompts = tuple(like.model_copy(update={"prompt": each}) for each in words) or own
    if not prompts:
        raise Refused("there is no prompt to draw", "Give one with --prompt.")
    changes = {name: getattr(options, option) for option, name in _OF_PROMPTS.items()}
    changes = {name: value for name, value in changes.items() if value is not None}
    prompts = changed_prompts(prompts, {**changes, **control_images(options.control)} if options.control else changes)
    if options.seed:
        prompts = tuple(each for seed in options.seed for each in changed_prompts(prompts, {"seed": seed}))
    return prompts


def _use(text: str) -> LoraUse:
    from backend.preview.loras import LoraChoice

    choice = LoraChoice.read(text)
    return LoraUse(path=path_of(str(choice.path)), strength=choice.strength)


def _folder(options: argparse.Namespace, request: PreviewRequest) -> Path:
    """A folder that is not there yet, so that no picture of before is lost."""
    if options.out is not None:
        return Path(options.out).expanduser().absolute()
    place = Path(request.run) if request.run else resolve(Config().saving.output_dir)
    return unused_path(place / "previews" / "preview")


def _say_who_is_at_work(request: PreviewRequest, console: Console) -> None:
    """Name the runs that need the same device, whose memory may not do for both."""
    roots = {resolve(place) for place in (Config().saving.output_dir, request.config.saving.output_dir)}
    roots |= {Path(request.run).parent} if request.run else set()
    for run in (run for root in sorted(roots) for run in list_runs(root)):
        followed = request.follow is not None and request.run == str(run.path)
        if not followed and run.is_at_work() and shares_device(run):
            text = f"note: the run {run.name} is at work on the same device: both get slower, and memory may run out."
            console.print(text, markup=False, soft_wrap=True)
    if any(probe.is_at_work() and shares_device(probe) for probe in probes()):
        text = "note: a finish time is being measured on the same device: it will be too long, and memory may run out."
        console.print(text, markup=False, soft_wrap=True)


def _plan(request: PreviewRequest, vram_gb: float | None, console: Console) -> int:
    """Show what the request needs of memory; nothing is loaded."""
    problems = errors(base_model_check.problems(request.config))
    if problems:
        raise Refused.of(problems)
    planned = preview_plan(request, vram_gb)
    if planned is None:
        raise Refused("the base model's files can't be read", "Give a whole model with --base.", "model.base_model")
    console.print(render(*planned, subject=SUBJECT))
    return DONE


def _draw(request: PreviewRequest, folder: Path, console: Console) -> int:
    lower_mmap_threshold()
    with library_imports():
        from backend.preview.carry_out import Account, Studio, carry_out
        from backend.preview.follow import follow
        from backend.preview.matrix import write_matrix
        from backend.preview.terminal import showing

    studio = Studio()
    try:
        with showing(console) as watch:
            show = partial(watch.picture, folder)
            if request.follow is not None:
                request = follow(request, folder, studio, watch, show, lambda more: write_matrix(more, folder))
            else:
                carry_out(request, folder, studio, watch, partial(show, request))
            account = None if studio.pipeline is None else Account.of(studio)
        if len(request.rows) > 1 or request.follow is not None:
            for path in write_matrix(request, folder):
                console.print(str(path), markup=False, soft_wrap=True)
        for line in account.lines() if account is not None else ():
            console.print(line, markup=False, soft_wrap=True)
    finally:
        studio.close()
    return DONE


def _draw_class_images(options: argparse.Namespace, changes: dict[str, str], console: Console) -> int:
    """Draw what the folders of a training's settings lack; nothing where all is there."""
    cfg = settings_of_training(resolve(options.class_images), changes)
    folders = class_folders(cfg)
    for folder in folders:
        there = folder.total - len(folder.names)
        console.print(f"{folder.path}: {there} of {folder.total} class images are there", markup=False, soft_wrap=True)
    if folders and not any(folder.names for folder in folders):
        return DONE
    request = class_images_request(cfg, folders)
    if options.plan:
        return _plan(request, options.vram, console)
    _say_who_is_at_work(request, console)
    with tempfile.TemporaryDirectory(prefix="monotile-class-images-") as folder:
        return _draw(request, Path(folder), console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py sample",
        description="Draw pictures or clips with a base model and LoRA files, or a checkpoint of a run. Settings of "
        "[model], [memory] and [compile] can be given by name, such as --base_quantization nf4 --blocks_to_swap 10.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--base", metavar="PATH", help="base model: a folder in diffusers layout, or a single file")
    add("--family", metavar="NAME", help="its family (default: flux)")
    add("--run", metavar="RUN", help="a run, by name or folder: base model, settings and prompts are its own")
    add("--checkpoint", metavar="STEP|FILE", help="LoRA file of the run (default: the newest)")
    add("--lora", metavar="FILE[:STRENGTH]", action="append", default=[], help="a LoRA file; repeatable")
    _add_prompts(add)
    add("--matrix", choices=["checkpoints", "strengths"], help="draw every prompt with each; also a grid and a page")
    add("--strengths", default="0,0.5,0.75,1,1.25", metavar="X,X", help="of the matrix (default: 0,0.5,0.75,1,1.25)")
    add("--class-images", metavar="CONFIG", help="draw what the regularization folders of a training still lack")
    add("--follow", action="store_true", help="with --matrix checkpoints: wait for more until the run has ended")
    add("--plan", action="store_true", help="show the memory that it needs, and draw nothing")
    add("--vram", type=float, metavar="GB", help="with --plan: of a GPU elsewhere, in place of this machine's")
    add("--out", metavar="FOLDER", help="folder of the pictures (default: a new one, in the run or in runs/previews)")
    return parser


def _add_prompts(add: Callable[..., object]) -> None:
    """The options that say what is drawn."""
    add("--prompt", metavar="TEXT", action="append", default=[], help="a prompt; repeatable")
    add("--prompts", metavar="FILE", help="a text file with a prompt on each line")
    add("--negative", metavar="TEXT", help="negative prompt; it needs a --cfg above 1")
    add("--width", type=int, metavar="PX")
    add("--height", type=int, metavar="PX")
    add("--frames", type=int, metavar="N", help="length of a clip, of models that make them (default: the model's own)")
    add("--control", metavar="FILE", action="append", default=[], help="an image to start from; repeatable")
    add("--steps", type=int, metavar="N", help="sampling steps (default: 28)")
    add("--guidance", type=float, metavar="X", help="distilled guidance, for models such as FLUX.1-dev (default: 3.5)")
    add("--cfg", type=float, metavar="X", help="true guidance, for models such as SDXL; 1 is off (default: 1)")
    add("--seed", type=int, action="append", metavar="N", help="seed of the start noise (default: 42); repeatable")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
