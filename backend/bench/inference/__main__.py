"""Measures pictures or clips instead of training steps, on a model of random weights: plain, compiled, offloaded, NF4.

    python launcher.py bench --inference flux --work /tmp/bench [--scenes regional,nf4] [--budget-s 500] [--out DIR]

The base model is written to WORK once and used again. Each measurement is a process of its own: without compiling, with
an empty compile cache (cold), and once more with the cache that this left (warm). Rows are added to OUT/results.csv as
they are measured, the most telling ones first; the same command again measures what is missing. With `--budget-s`
nothing is started that has no time left, and what is at work then is ended.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from backend.base.command_output import stdout_writer
from backend.base.paths import PROJECT_ROOT
from backend.bench.inference.scenes import SCENES, Start, in_order
from backend.bench.inference.table import FILE, add_row, bars, failures, read_rows, table
from backend.bench.record import commit_of, text
from backend.bench.rehearsal.__main__ import base_model_in
from backend.bench.rehearsal.sizes import SIZES
from backend.bench.rehearsal.workspace import claim, environment

OUT = PROJECT_ROOT / "bench" / "inference"
DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130
_LONGEST_S = 3600.0
_LEAST_S = 20.0
"""Seconds without which nothing is begun."""
_NO_END = "no end within"

Write = Callable[[str], object]


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Measure, record and write the table; 1 when nothing could be measured, 2 when it can't begin."""
    options = _parser().parse_args(argv)
    write = write or stdout_writer()
    ends = time.monotonic() + (options.budget_s or float("inf"))
    size = SIZES[options.size]
    usual = size.clip or (size.resolution, size.resolution, None)
    options.width, options.height = options.width or usual[0], options.height or usual[1]
    options.frames = options.frames or usual[2]
    work, out = options.work.absolute(), options.out / options.size
    try:
        scenes = _names("scenes", options.scenes, list(SCENES))
        starts = _names("starts", options.starts, ["eager", "cold", "warm"])
        if "warm" in starts and "cold" not in starts:
            raise ValueError("--starts warm needs the cache that cold leaves: write --starts cold,warm")
        claim(work)
        model, _ = base_model_in(options.size, size, options.blocks, work, write)
        _measure(options, model, _missing(options, scenes, starts, out), out, ends, write)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; what was measured is recorded.\n")
        return INTERRUPTED
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return WRONG_INPUT
    rows = [row for row in _comparable(options, out) if row["scene"] in scenes]
    lines = [*bars(rows), *failures(rows), f"recorded in {out / FILE}"]
    write(table(rows) + "".join(f"{line}\n" for line in lines))
    return DONE if any(row["ok"] == "1" for row in rows) else FAILED


def _measure(
    options: argparse.Namespace,
    model: Path,
    wanted: Sequence[tuple[str, Start]],
    out: Path,
    ends: float,
    write: Write,
) -> None:
    """Measure these one after the other, each row recorded at once. ends: when all has to, as `time.monotonic`."""
    for number, (name, start) in enumerate(wanted):
        left = ends - time.monotonic()
        if left < _LEAST_S:
            names = ", ".join(f"{each} {begins}" for each, begins in wanted[number:])
            write(f"no time left for {names}: run the same command again to continue\n")
            return
        caches = options.work.absolute() / "compiled" / name
        if start == "cold":
            shutil.rmtree(caches, ignore_errors=True)
        answer = _run(_job(options, model, name, start, caches), min(left, options.longest_s))
        add_row(out, _row(options, name, start, answer))
        write(f"{name}, {start}: {answer['process_s']:.0f} s{'' if answer['ok'] else ': ' + answer['error']}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py bench --inference SIZE",
        description="Time pictures or clips of a model with random weights: plain, compiled, offloaded and quantized.",
    )
    add = parser.add_argument
    add("--size", choices=list(SIZES), required=True, help="the base model; tiny ones are for a CPU")
    add("--blocks", type=int, metavar="N", help="cut the denoiser to N blocks")
    add("--scenes", help=f"by comma (default: {','.join(SCENES)})")
    add("--starts", help="by comma: eager, cold, warm (default: all; warm needs cold before it)")
    add("--width", type=int, metavar="PX", help="of the picture (default: 1024; of a video model 832)")
    add("--height", type=int, metavar="PX", help="likewise (default: 1024, or 480)")
    add("--frames", type=int, metavar="N", help="of a video model's clip (default: 81)")
    add("--steps", type=int, default=28, help="sampling steps of a picture (default: 28)")
    add("--pictures", type=int, default=4, help="of each process; the first is not timed (default: 4)")
    add("--setting", action="append", default=[], metavar="SECTION.NAME=VALUE", help="of all; repeatable")
    add("--budget-s", type=float, metavar="S", help="seconds in which the command must end")
    add("--longest-s", type=float, default=_LONGEST_S, metavar="S", help="seconds of a process at most (default: 3600)")
    add("--work", type=Path, required=True, help="folder for base model and compile caches, on a disk with room")
    add("--out", type=Path, default=OUT, help=f"folder of SIZE/{FILE} (default: bench/inference)")
    add("--commit", help="commit to record, where git can't be asked")
    add("--keep-going", action="store_true", help="measure again what the record already has")
    return parser


def _names(option: str, text: str | None, all_names: list[str]) -> list[str]:
    """The names that an option lists, or all. ValueError for one that means nothing."""
    names = [name.strip() for name in text.split(",")] if text else all_names
    unknown = [name for name in names if name not in all_names]
    if unknown:
        raise ValueError(f"--{option} names {', '.join(unknown)}; there are {', '.join(all_names)}")
    return names


def _job(options: argparse.Namespace, model: Path, name: str, start: Start, caches: Path) -> dict[str, Any]:
    """What a worker receives."""
    more = dict(text.partition("=")[::2] for text in options.setting)
    cache = {} if start == "eager" else {"compile.compile_cache_dir": str(caches)}
    size = {name: getattr(options, name) for name in ("width", "height", "steps", "frames")}
    return {
        "base": str(model),
        "family": SIZES[options.size].family,
        "settings": {**SCENES[name].settings(start), **cache, **more},
        "prompt": {"prompt": "a lighthouse at dusk", **size},
        "pictures": options.pictures,
        "swaps": SCENES[name].swaps,
        "folder": str(options.work.absolute() / "pictures" / f"{name}-{start}"),
    }


def _run(job: dict[str, Any], longest_s: float = _LONGEST_S) -> dict[str, Any]:
    """A worker's answer, or why there is none, which may be that it did not end within `longest_s` seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "backend.bench.inference.worker", json.dumps(job)]
    try:
        ended = subprocess.run(
            command,
            cwd=PROJECT_ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=longest_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"ok": False, "error": f"{_NO_END} {longest_s:.0f} s", "process_s": longest_s}
    for line in ended.stdout.splitlines():
        if line.startswith('{"ok"'):
            return json.loads(line)
    seconds = round(time.monotonic() - began, 1)
    return {"ok": False, "error": f"the process ended with exit code {ended.returncode}", "process_s": seconds}


def _row(options: argparse.Namespace, name: str, start: Start, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "size": options.size,
        "scene": name,
        "start": start,
        "ok": answer["ok"],
        "error": answer.get("error"),
        **_likeness(options),
        "pictures": options.pictures,
        "torch": importlib.metadata.version("torch"),
        "commit": options.commit or commit_of(),
        "date": time.strftime("%Y-%m-%d"),
        "process_s": answer["process_s"],
        **answer.get("row", {}),
    }


def _missing(
    options: argparse.Namespace, names: Sequence[str], starts: Sequence[str], out: Path
) -> list[tuple[str, Start]]:
    """What is to be measured, in order. A warm start needs the cache of a cold one that is measured now."""
    wanted = in_order(names, starts)
    missing = {each for each in wanted if options.keep_going or not _is_recorded(out, options, *each)}
    missing |= {(name, "cold") for name, start in missing if start == "warm"}
    return [each for each in wanted if each in missing]


def _is_recorded(out: Path, options: argparse.Namespace, name: str, start: Start) -> bool:
    """Whether the record has this measurement, finished, or that it takes longer than it may."""
    rows = [row for row in _comparable(options, out) if (row["scene"], row["start"]) == (name, start)]
    too_long = [row for row in rows if row["error"].startswith(_NO_END)]
    return any(row["ok"] == "1" for row in rows) or any(
        float(row["process_s"]) >= options.longest_s for row in too_long
    )


def _comparable(options: argparse.Namespace, out: Path) -> list[dict[str, str]]:
    """The rows of the record with pictures like these and a model like this."""
    like = {column: text(value) for column, value in _likeness(options).items()}
    return [row for row in read_rows(out) if all(row[column] == value for column, value in like.items())]


def _likeness(options: argparse.Namespace) -> dict[str, Any]:
    """Column -> value of what makes two rows measurements of the same."""
    names = ("width", "height", "steps", "frames", "blocks")
    return {name: getattr(options, name) for name in names} | {"settings": " ".join(sorted(options.setting))}


if __name__ == "__main__":
    sys.exit(main())
