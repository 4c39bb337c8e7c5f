"""Runs a dress rehearsal: a whole training at the size of a published model, on random weights, and records it.

    python -m backend.bench.rehearsal --size sdxl --work /tmp/rehearsal [--setting compile.cuda_graphs=off] [--out DIR]

The base model is written to WORK once and used again; pictures, caches, compile cache and run are new each time. A row
of what was measured is added to OUT/results.jsonl, from which `backend.bench.rehearsal.report` makes a page.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.base.command_output import stdout_writer
from backend.base.paths import PROJECT_ROOT
from backend.bench.clips import Clip, bucket_name, parse_clips
from backend.bench.record import commit_of
from backend.bench.rehearsal.pictures import draw_pictures
from backend.bench.rehearsal.report import RESULTS, add_row, table
from backend.bench.rehearsal.row import figures
from backend.bench.rehearsal.sizes import SIZES, RehearsalSize
from backend.bench.rehearsal.trial import Scale, rehearse, write_settings
from backend.bench.rehearsal.workspace import claim, clear, environment, holds

# Not docs/rehearsals: what is measured by the way is not published with the next commit.
OUT = PROJECT_ROOT / "bench" / "rehearsals"
DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130

Write = Callable[[str], object]


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Rehearse and record; 1 when the run failed, 2 when it can't begin."""
    options = _parser().parse_args(argv)
    write = write or stdout_writer()
    size, work = SIZES[options.size], options.work.absolute()
    steps, inputs = options.steps or size.steps, options.pictures or size.inputs
    try:
        scale = Scale.of(size, options.resolution, options.clip)
        overrides = _overrides(options.setting)
        claim(work)
        model, written_s = base_model_in(options.size, size, options.blocks, work, write)
        clear(work)
        _draw_inputs(size, scale, work / "pictures", inputs)
        settings = write_settings(size, work, model, scale, steps, overrides, options.once)
        then = "" if options.once else ", then resuming"
        write(f"training {steps} steps{then}; the trainer's output is in {work}\n")
        trial = rehearse(settings, work / "runs", steps, 0 if options.once else size.resumed)
        row = {
            "size": options.size,
            "blocks": options.blocks,
            "resolution": scale.resolution,
            "clip": scale.words() if scale.clip else None,
            "pictures": inputs,
            "settings": options.setting,
            "torch": importlib.metadata.version("torch"),
            "commit": options.commit or commit_of(),
            "date": time.strftime("%Y-%m-%d"),
            "command": _command(options),
            "base_model_s": written_s,
            **figures(trial),
        }
        add_row(options.out, row)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; nothing is recorded.\n")
        return INTERRUPTED
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG_INPUT
    _tell(row, options.out, write)
    return DONE if trial.complete else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py bench --rehearse SIZE",
        description="Train a whole run at the size of a published model, with random weights, and record its figures.",
    )
    add = parser.add_argument
    add("--size", choices=list(SIZES), required=True, help="the base model; tiny ones are for a CPU")
    add("--blocks", type=int, metavar="N", help="cut the denoiser to N blocks, for a disk or GPU that is too small")
    add("--resolution", type=_positive, metavar="PX", help="side of the square of each picture's area (default: 1024)")
    add("--clip", type=_clip, metavar="WxHxF", help="width, height and frames of a video model's clips")
    add("--steps", type=_positive, help="steps before the run is stopped and resumed (default: 40, of clips 4)")
    add("--pictures", type=_positive, help="random pictures of several aspect ratios, or clips (default: 8, clips 4)")
    add("--setting", action="append", default=[], metavar="SECTION.NAME=VALUE", help="a setting of the run; repeatable")
    add("--once", action="store_true", help="save once, keep no state and resume nothing, for a disk that is too small")
    add("--work", type=Path, required=True, help="folder for base model, caches and run, on a disk with room")
    add("--out", type=Path, default=OUT, help=f"folder of {RESULTS} (default: bench/rehearsals)")
    add("--commit", help="commit to record, where git can't be asked")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small; give 1 or more")
    return number


def _clip(text: str) -> Clip:
    try:
        (clip,) = parse_clips(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of a clip; write it as 832x480x81") from None
    return clip


def _draw_inputs(size: RehearsalSize, scale: Scale, folder: Path, count: int) -> None:
    """The pictures, or of a video model the clips, that are trained on."""
    if scale.clip is None:
        draw_pictures(folder, count, scale.resolution)
        return
    # not at the top: its package reads videos, which pictures need not
    from backend.bench.rehearsal.clips import draw_clips

    rule = size.facts.video
    draw_clips(folder, count, scale.clip, 16.0 if rule is None else rule.rate)


def _overrides(settings: Sequence[str]) -> dict[str, str]:
    """``section.name`` -> value. ValueError for a text without either."""
    pairs = [text.partition("=") for text in settings]
    for text, (name, equals, _) in zip(settings, pairs, strict=True):
        if not name or not equals:
            raise ValueError(f"--setting is {text!r}; write SECTION.NAME=VALUE, such as network.network_dim=32")
    return {name: value for name, _, value in pairs}


def base_model_in(
    name: str, size: RehearsalSize, blocks: int | None, work: Path, write: Write
) -> tuple[Path, float | None]:
    """The folder of the base model, and the seconds it took to write; None for one that was there.

    ValueError, in words, when it can't be written.
    """
    # before anything is written: a wrong number of blocks
    size.config(size.denoiser(), blocks)
    folder = work / (f"{name}-{blocks}-blocks" if blocks else name)
    if holds(folder, size, blocks):
        write(f"base model: {folder}, from before\n")
        return folder, None
    shutil.rmtree(folder, ignore_errors=True)
    write(f"writing the base model to {folder}\n")
    began = time.monotonic()
    command = [sys.executable, "-m", "backend.bench.rehearsal.base_model", "--size", name, "--folder", str(folder)]
    command += ["--blocks", str(blocks)] if blocks else []
    done = subprocess.run(
        command,
        cwd=PROJECT_ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise ValueError(f"the base model could not be written: {done.stderr.strip()[-2000:]}")
    return folder, round(time.monotonic() - began, 1)


def _command(options: argparse.Namespace) -> str:
    """What makes this row again; the folders are left out, since they are another machine's."""
    line = ["python", "launcher.py", "bench", "--rehearse", options.size]
    usual = _parser()
    for name in ("blocks", "resolution", "clip", "steps", "pictures"):
        value = getattr(options, name)
        if value != usual.get_default(name):
            line += [f"--{name}", bucket_name(value) if name == "clip" else str(value)]
    line += ["--once"] if options.once else []
    for setting in options.setting:
        line += ["--setting", setting]
    return shlex.join([*line, "--work", "WORK"])


def _tell(row: dict[str, Any], out: Path, write: Write) -> None:
    write(json.dumps(row, indent=1) + "\n")
    write(table([row]))
    write(f"recorded in {out / RESULTS}\n")


if __name__ == "__main__":
    sys.exit(main())
