"""Captions a folder of images with a model on disk: ``python -m backend.captioning FOLDER --model DIR``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from backend.base.errors import Failed, Refused, WriteFailed
from backend.base.paths import PROJECT_ROOT, resolve
from backend.captioning.session import Session
from backend.config.schema import Config
from backend.dataset import caption_changes
from backend.dataset.scan import scan
from backend.dataset.scan_state import FolderSpec
from backend.memory.allocators import use_expandable_segments
from backend.plan.memory.machine import installed_gpus
from backend.runs.captioning.model_folder import LAYOUTS, read_model
from backend.runs.captioning.proposals import Proposal, proposals
from backend.runs.captioning.request import CaptionOptions, CaptionRequest, Precision, Task
from backend.runs.captioning.targets import targets_of
from backend.runs.diagnose import explain
from backend.runs.errors import RunError

log = logging.getLogger(__name__)

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
RESULTS = PROJECT_ROOT / "runs" / ".captions"
"""Where the command keeps what models said."""
CACHE = PROJECT_ROOT / "cache"
"""Where scans of folders are kept."""

_OPTIONS = ("model", "task", "prompt", "max_tokens", "beams", "batch", "precision", "device", "megapixels", "prefix",
            "suffix", "trigger")  # fmt: skip
_FAULTS = ("not_a_folder", "missing_folder", "no_pictures", "unreadable", "unread_kind", "closed_folder", "bad_caption")
"""Findings of a scan that are about captions."""


def main(arguments: Sequence[str] | None = None, console: Console | None = None) -> int:
    """Caption; returns 0, 1 when it broke off, 2 when it can't begin, 130 after Ctrl+C."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(name)s: %(message)s")
    os.environ["HF_HUB_OFFLINE"] = "1"
    use_expandable_segments(os.environ)
    # with --json, stdout is for the document alone
    console = console or Console(highlight=False, stderr=options.json)
    try:
        if options.undo is not None:
            return _undo(options.undo, console)
        return _caption(options, console)
    except (Refused, RunError, WriteFailed, Failed) as error:
        if options.json:
            sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
        console.print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        return FAILED if isinstance(error, Failed) else WRONG_INPUT
    except Exception as error:
        # what torch or transformers raises, in words
        log.debug("The captions could not be made", exc_info=True)
        why = explain(error)
        console.print(f"error: {why.text} {why.remedy} {why.exception}", style="red", markup=False, soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        console.print("Cancelled. The captions so far are kept: the same command continues.")
        return INTERRUPTED


def _caption(options: argparse.Namespace, console: Console) -> int:
    if options.folder is None or options.model is None:
        raise Refused("there is no folder or no model", "Write launcher.py caption FOLDER --model DIR.")
    caption_options = _chosen(options)
    caption_options.asked(read_model(resolve(caption_options.model)))
    scanned = scan([FolderSpec(resolve(options.folder))], options.caption_extension, cache_dir=CACHE)
    faults = [finding.sentence() for finding in scanned.findings if finding.kind in _FAULTS]
    if not scanned.items:
        raise Refused(" ".join(faults) or f"{options.folder} has no images", "Give a folder with images.")
    for fault in faults:
        console.print(f"warning: {fault}", style="yellow", markup=False, soft_wrap=True)
    targets = targets_of(scanned.items, options.caption_extension, caption_options.existing)
    request = CaptionRequest(options=caption_options, targets=tuple(targets))
    session = Session.open(request, RESULTS)
    if len(targets) < len(scanned.items):
        has = len(scanned.items) - len(targets)
        console.print(f"{has} of {len(scanned.items)} images have a caption and are left (--overwrite, --append).")
    _run(session, console)
    offered = list(proposals(request, session.folder))
    changes = [each for each in offered if isinstance(each, Proposal)]
    results = session.folder.results()
    failed = {str(each.image): results[str(each.image)].error for each in targets if results[str(each.image)].error}
    broken = [each.text for each in offered if isinstance(each, Refused)]
    done = _write(changes, console) if options.write and changes else None
    if options.json:
        _print_json(changes, failed, broken, done)
    else:
        _print_difference(changes, failed, broken, options.write, console)
    return DONE


def _chosen(options: argparse.Namespace) -> CaptionOptions:
    existing = "replace" if options.overwrite else "append" if options.append else "leave"
    values = {name: getattr(options, name) for name in _OPTIONS}
    try:
        return CaptionOptions(existing=existing, **values)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = "-".join(map(str, first["loc"])).replace("_", "-")
        raise Refused(f"--{name}: {first['msg']}", "See launcher.py caption --help.") from None


def _run(session: Session, console: Console) -> None:
    """Caption what is missing, with a bar."""
    options, gpus = session.request.options, installed_gpus()
    on_gpu = bool(gpus) and options.device != "cpu"
    console.print(session.model.sentence(options.precision, on_gpu), markup=False, soft_wrap=True)
    needed = session.model.device_bytes(options.precision, on_gpu)
    if on_gpu and needed > max(gpu.free for gpu in gpus):
        console.print("warning: no GPU has so much memory free. Try --precision nf4 or int8.", style="yellow")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Loading", total=None)
        steps = session.carry_out(
            [resolve(Config().saving.output_dir)],
            lambda text: bar.print(text, markup=False),
            lambda text: bar.update(task, description=text.split(",")[0]),
        )
        for step in steps:
            bar.update(task, description="Captions", completed=step.done, total=step.total)


def _write(changes: Sequence[Proposal], console: Console) -> caption_changes.Applied:
    done = caption_changes.apply([each.change for each in changes], "Captions by a model")
    for path in done.left:
        console.print(f"warning: {path} changed meanwhile and is left.", style="yellow", markup=False, soft_wrap=True)
    console.print(f"{done.files} files are written. To undo it: launcher.py caption --undo {done.id}", soft_wrap=True)
    return done


def _undo(name: str, console: Console) -> int:
    undone = caption_changes.undo(name)
    console.print(f"{len(undone.files)} files have their earlier content again.")
    for path in undone.left:
        console.print(f"warning: {path} was changed since and is left.", style="yellow", markup=False, soft_wrap=True)
    return DONE


def _print_json(
    changes: Sequence[Proposal],
    failed: dict[str, str],
    broken: Sequence[str],
    done: caption_changes.Applied | None,
) -> None:
    rows = [
        {
            "image": str(each.target.image),
            "file": str(each.target.file),
            "entry": each.target.entry,
            "before": each.old,
            "after": each.new,
        }
        for each in changes
    ]
    written: dict[str, Any] = {"written": done.files, "undo": done.id} if done else {"written": 0, "undo": None}
    sys.stdout.write(json.dumps({"captions": rows, "failed": failed, "problems": list(broken), **written}) + "\n")


def _print_difference(
    changes: Sequence[Proposal], failed: dict[str, str], broken: Sequence[str], written: bool, console: Console
) -> None:
    show = lambda text, style="": console.print(text, style=style, markup=False, soft_wrap=True)  # noqa: E731
    for each in changes:
        show(str(each.target.image))
        if each.old:
            show(f"  - {each.old}", "red")
        show(f"  + {each.new}", "green")
    for image, error in failed.items():
        show(f"{image}: {error}", "yellow")
    for text in broken:
        show(text, "yellow")
    if not changes:
        show("No caption would change.")
    elif not written:
        show(
            f"Nothing is written yet. Add --write to write these {len(changes)} captions; the model is not asked again."
        )


def _parser() -> argparse.ArgumentParser:
    titles = ", ".join(dict.fromkeys(layout.title for layout in LAYOUTS.values()))
    parser = argparse.ArgumentParser(
        prog="launcher.py caption",
        description=f"Caption images with a model on this disk: {titles}, as folders that transformers saves. Shows "
        "what would change; captions are written with --write, and each write can be undone. What the model said is "
        "kept: a command that was cut off continues.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("folder", nargs="?", metavar="FOLDER", help="images, also in its sub-folders")
    add("--model", metavar="DIR", help="folder of the model")
    add("--write", action="store_true", help="write the captions")
    both = parser.add_mutually_exclusive_group()
    both.add_argument("--overwrite", action="store_true", help="replace captions that are there (they are left if not)")
    both.add_argument("--append", action="store_true", help="add to captions that are there")
    add("--undo", metavar="ID", help="undo an earlier --write")
    _add_options(add)
    add("--caption-extension", default=".txt", metavar=".EXT", help="ending of the caption files (default: .txt)")
    add("--json", action="store_true", help="print the result as JSON, for programs")
    return parser


def _add_options(add: Callable[..., object]) -> None:
    """How captions are made, and what is written around them."""
    add("--task", choices=get_args(Task), default="detailed", help="how much is said (default: detailed)")
    add("--prompt", default="", metavar="TEXT", help="instruction for Qwen-VL; for BLIP the words of the beginning")
    add("--max-tokens", type=int, metavar="N", help="most tokens of a caption (default: by model)")
    add("--beams", type=int, metavar="N", help="beams of the search (default: 3; 1 for Qwen-VL)")
    add("--batch", type=int, metavar="N", help="images at once (default: 4 on a GPU, 1 on the CPU)")
    add("--precision", choices=get_args(Precision), default="auto", help="of the weights (default: bf16 on a GPU)")
    add("--device", default="auto", metavar="NAME", help="auto, cpu, cuda or cuda:1 (default: auto)")
    add(
        "--megapixels", type=float, default=1.0, metavar="X", help="larger images are reduced, for Qwen-VL (default: 1)"
    )
    add("--prefix", default="", metavar="TEXT", help="written before each caption, as it is")
    add("--suffix", default="", metavar="TEXT", help="written after each caption, as it is")
    add("--trigger", default="", metavar="WORD", help="written in front of captions that lack it")


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(main())
