"""Measures compile variants on random weights at real widths, each in its own process: `python -m backend.bench`.

    python -m backend.bench --size flux --layers 4,8 --variants eager,auto,static:sdpa,exact --checkpointing on,off
    python -m backend.bench --size wan --clips 832x480x81,832x480x49 --checkpointing on --repeats 1
    python -m backend.bench --protocol seed000
    python -m backend.bench --exactness --variants static:sdpa,static:varlen,static:flex
    python -m backend.bench --rehearse sdxl --work DIR
    python -m backend.bench --inference flux --work DIR

Rows are written to OUT/NAME/results.csv as they are measured, with losses.csv and meta.json; from those with `--out
docs/benchmarks`, `python -m backend.bench.report` makes docs/benchmarks.md and its plot. The first repetition of a
variant compiles into an empty cache (cold), the later ones start warm. With `--budget-s` nothing is started that would
not end in time; the same command again continues.

Where a GPU is paid by the minute, `--together N` compiles and warms up N processes side by side and then times them
one after another, the others idle: their steps are as alone, their compile times are not taken. `--fill` compiles all
variants into their caches and records nothing; `--warm` then measures warm starts alone. `--losses` compares losses and
no times, so that its processes may run at once too. `--profile` adds tables of where a step's milliseconds go.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from backend.bench import seed000
from backend.bench.clips import parse_clips
from backend.bench.inference import __main__ as inference
from backend.bench.processes import LONGEST_SECONDS, ROOT, Answer, run_together, run_worker
from backend.bench.record import Record, read_losses
from backend.bench.rehearsal import __main__ as rehearsal
from backend.bench.sizes import SIZES
from backend.bench.table import loss_table, render
from backend.bench.variants import DEFAULT, OPTIONS, PRODUCTS, SETTINGS, VIDEO, Spec, requested, variant
from backend.config.schema import by_path
from backend.families.table import family

log = logging.getLogger(__name__)

# Not the published records: the table would show another machine's numbers as measured here.
OUT = ROOT / "bench"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="launcher.py bench", description="Measure compile variants.")
    add = parser.add_argument
    add("--size", choices=list(SIZES), default="flux", help="model widths; tiny is for a CPU")
    add(
        "--variants",
        help="names by comma: eager, whole, auto, dynamic, static:ROUTE, exact, diffusers, diffusers:auto, each with "
        "options of its own after plus signs, as in static:fa4+cuda_graphs+lora_dtype=bf16+profile "
        f"(default: {','.join(DEFAULT)}; of a video model {','.join(VIDEO)}; or all of a protocol)",
    )
    kinds = "on (block), off, auto, attention, offload, selective"
    add("--checkpointing", default="on,off", help=f"separated by commas: {kinds}")
    add(
        "--repeats",
        type=int,
        default=3,
        help="processes of each variant; the first one starts with an empty compile cache",
    )
    for name, each in OPTIONS.items():
        add(f"--{name.replace('_', '-')}", help=each.metadata["help"], **_reading(each))
    add(
        "--products",
        help="8-bit products in turn, by comma: bf16 for none, fp8:fast, fp8:small, int8:small; "
        "--base-products lists what may stand after the colon",
    )
    add(
        "--protocol", choices=["seed000"], help="a fixed set of settings and variants: static tokens on FLUX, 182 steps"
    )
    add("--exactness", action="store_true", help="measure errors against float32 instead of time")
    add("--losses", action="store_true", help="record and compare losses alone, no time")
    add("--profile", action="store_true", help="also profile some steps: where each millisecond goes")
    add("--fill", action="store_true", help="only compile into the caches, for --warm")
    add("--warm", action="store_true", help="measure warm starts alone, from caches made by --fill")
    add(
        "--together",
        type=int,
        default=1,
        help="processes that start and compile at the same time and are timed one by one",
    )
    add("--at-once", type=int, default=4, help="processes at the same time with --fill and --losses")
    add("--budget-s", type=float, help="seconds in which the command must end")
    add(
        "--out",
        type=Path,
        default=OUT,
        help="folder of the records (default: bench; published records are in docs/benchmarks)",
    )
    add("--name", help="name of this record (default: size and kind)")
    add("--commit", help="commit to record, where git is not available")
    add("--rehearse", metavar="SIZE", help="train a whole run on random weights instead: --rehearse SIZE --help")
    add("--inference", metavar="SIZE", help="time pictures of a whole model instead: --inference SIZE --help")
    add("--keep-going", action="store_true", help="measure again what the record already has")
    return parser


def specs_of(options: argparse.Namespace) -> list[Spec]:
    """The measurements of one repetition, in order. ValueError for a name or number that means nothing."""
    general = Spec(
        variant="eager",
        size=options.size,
        profile=options.profile,
        **{name: _value(options, name) for name in OPTIONS},
    )
    if general.layers and len(general.layers) != len(SIZES[options.size].layers):
        text = ",".join(map(str, general.layers))
        like = ",".join(map(str, SIZES[options.size].layers))
        raise ValueError(
            f"--layers is {text!r}; for {options.size} it must be {len(SIZES[options.size].layers)} numbers, "
            f"such as {like}"
        )
    if general.full and options.exactness:
        raise ValueError("--exactness measures a LoRA's gradients; leave --full out")
    general = _with_clips(general)
    if options.protocol == "seed000":
        return seed000.specs(general, _names(options, seed000.TITLES))
    variants = [requested(name) for name in _names(options)]
    variants = [(kind, changes) for kind, changes in variants if not SIZES[options.size].lacks(kind.mode)]
    kinds = {kind: kind for kind in by_path()["memory.checkpointing_kind"].choices or ()} | {"on": "", "off": ""}
    settings = [(part != "off", kinds[part]) for part in options.checkpointing.replace(" ", "").split(",")]
    if options.exactness:
        exact = {"checkpointing": False, "extra": {"what": "exactness"}}
        return [replace(general, variant=kind.name, **exact, **changes) for kind, changes in variants]
    # Whole-model compile leaves checkpointed frames out: that row does not exist.
    return [
        replace(general, variant=kind.name, checkpointing=on, checkpointing_kind=checkpointing, **(products | changes))
        for on, checkpointing in settings
        for kind, changes in variants
        for products in _products(options.products)
        if not (on and kind.compile == "model")
    ]


def _products(text: str | None) -> list[dict[str, str]]:
    """Settings of a spec for each of the products that --products names; one without any for None."""
    if text is None:
        return [{}]
    settings = []
    for each in text.replace(" ", "").split(","):
        kind, _, products = each.partition(":")
        if kind not in ("bf16", "fp8", "int8") or products not in ("", *PRODUCTS) or (kind == "bf16" and products):
            raise ValueError(f"--products has {each!r}; it must be bf16, or fp8 or int8 with :small or :fast behind it")
        settings.append({"base_compute": kind, "base_products": products or "small"})
    return settings


def _with_clips(spec: Spec) -> Spec:
    """The spec with two passes over a video model's sizes, where no steps are given. ValueError for wrong sizes."""
    size, clips = SIZES[spec.size], parse_clips(spec.clips)
    if clips and not size.clips:
        raise ValueError(f"--clips is for video models, and {spec.size} is none; leave it out")
    for clip in spec.buckets:
        family(size.family).default_geometry.image_tokens(*clip)
    if spec.buckets and spec.steps == OPTIONS["steps"].default:
        return replace(spec, steps=2 * len(spec.buckets))
    return spec


def left_out(options: argparse.Namespace) -> list[str]:
    """A line for each shape mode of the asked variants that the size's family can't have; ValueError for a name."""
    size = SIZES[options.size]
    modes = dict.fromkeys(requested(name)[0].mode for name in _names(options))
    return [f"skipped: {size.lacks(mode)}" for mode in modes if size.lacks(mode)]


def _names(options: argparse.Namespace, usual: Iterable[str] = ()) -> list[str]:
    """The variants asked for, `usual` when none are, or the size's own."""
    usual = usual or (VIDEO if SIZES[options.size].clips else DEFAULT)
    requested = usual if options.variants is None else options.variants.split(",")
    return [name.strip() for name in requested if name.strip()]


def _reading(each: Any) -> dict[str, Any]:
    """How argparse reads an option of a spec."""
    if each.default is False:
        return {"action": "store_true"}
    if each.default is True:
        return {"choices": ["on", "off"], "default": "on"}
    if each.metadata["choices"]:
        return {"choices": each.metadata["choices"], "default": each.default}
    kinds = {tuple: str, type(None): float}
    return {
        "type": kinds.get(type(each.default), type(each.default)),
        "default": None if each.default == () else each.default,
    }


def _value(options: argparse.Namespace, name: str) -> Any:
    """An option as a spec holds it. ValueError for numbers by comma that are none."""
    value, default = getattr(options, name), OPTIONS[name].default
    if default is True:
        return value == "on"
    if not isinstance(default, tuple):
        return value
    parts = [part.strip() for part in (value or "").split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise ValueError(f"--{name.replace('_', '-')} is {value!r}; it must be numbers, separated by commas")
    numbers = tuple(map(int, parts))
    # The size's own number, typed in, is the same measurement.
    return () if name == "layers" and numbers == SIZES[options.size].layers else numbers


class _Clock:
    """The rest of the time budget, and whether a measurement still fits into it."""

    def __init__(self, budget: float | None) -> None:
        self._end = None if budget is None else time.monotonic() + budget
        self._took: dict[str, float] = {}

    def note(self, spec: Spec, seconds: float) -> None:
        self._took[spec.variant] = max(seconds, self._took.get(spec.variant, 0.0))

    def left(self) -> float:
        return LONGEST_SECONDS if self._end is None else max(1.0, self._end - time.monotonic())

    def fits(self, spec: Spec) -> bool:
        guess = self._took.get(spec.variant, max(self._took.values(), default=30.0))
        return self._end is None or self._end - time.monotonic() > guess


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] | None = None) -> int:
    """Measure, record and write the table, or rehearse a whole run; 1 when nothing could be measured."""
    first = argparse.ArgumentParser(prog="launcher.py bench", add_help=False, allow_abbrev=False)
    first.add_argument("--rehearse")
    first.add_argument("--inference")
    known, arguments = first.parse_known_args(argv)
    if known.inference is not None:
        return inference.main(["--size", known.inference, *arguments], write)
    if known.rehearse is not None:
        return rehearsal.main(["--size", known.rehearse, *arguments], write)
    return _measure(arguments, write or _to_stdout)


def _measure(arguments: Sequence[str], write: Callable[[str], object]) -> int:
    """Measure, record and write the table; 1 when nothing could be measured."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        specs = specs_of(options)
    except (ValueError, KeyError) as error:
        parser.error(str(error))
    kind = "exactness" if options.exactness else "loss" if options.losses else options.protocol or "compile"
    name = options.name or f"{options.size}-{kind}"
    # Not the record's folder: compilers need a short path, and a cache is not a record.
    caches = Path(os.environ.get("MONOTILE_BENCH_CACHE") or tempfile.gettempdir()) / f"mtb-{name}"
    if options.fill:
        return _fill(specs, caches, options.at_once, _Clock(options.budget_s), write)
    record = Record.open(options.out / name, kind, arguments, options.commit)
    before = len(record.rows)
    repeats = 1 if options.exactness or options.protocol else options.repeats
    clock = _Clock(options.budget_s)
    write("".join(f"{line}\n" for line in left_out(options)))
    first = 1 if options.warm else 0  # the cold one is 0

    def cache_of(spec: Spec) -> Path:
        return caches / _short(spec)

    def begun(repeat: int, spec: Spec) -> bool:
        """Whether to measure it now; its cache is as the repetition wants it."""
        if record.has(spec, repeat) and not options.keep_going:
            return False
        if not clock.fits(spec):
            write(f"no time left for {spec.variant}: run the command again to continue\n")
            return False
        if repeat == 0:
            shutil.rmtree(cache_of(spec), ignore_errors=True)
        elif variant(spec.variant).compile and not cache_of(spec).is_dir():
            write(f"{spec.variant} has no compile cache for a warm start: run the command with --fill first\n")
            return False
        return True

    def ended(repeat: int, spec: Spec, answer: Answer) -> None:
        clock.note(spec, answer["process_s"])
        record.add(spec, repeat, answer)
        write(_result_line(spec, answer))

    def measured(repeat: int, some: Sequence[Spec]) -> None:
        with_caches = [replace(spec, cache_dir=str(cache_of(spec))) for spec in some if begun(repeat, spec)]
        if options.together > 1 and with_caches:
            run_together(with_caches, clock.left(), partial(ended, repeat))
            return
        for spec in with_caches:
            ended(repeat, spec, run_worker(spec, clock.left()))

    jobs = [(repeat, part) for repeat in range(first, first + repeats) for part in _parts(specs, options.together)]
    with ThreadPoolExecutor(options.at_once if options.losses else 1) as pool:
        for done in [pool.submit(measured, *job) for job in jobs]:
            done.result()
    write(_origin(record, before))
    write(render(record.rows, kind) or loss_table(read_losses(record.folder)))
    return 0 if any(row["ok"] == "1" for row in record.rows) else 1


def _parts(specs: list[Spec], together: int) -> list[list[Spec]]:
    """Specs that get ready side by side."""
    size = max(1, together)
    return [specs[at : at + size] for at in range(0, len(specs), size)]


def _origin(record: Record, before: int) -> str:
    """Where the table's numbers are from. before: rows that the record had when the command began."""
    device, torch = record.meta.get("device", "unknown device"), record.meta["versions"].get("torch")
    note = ""
    if before and len(record.rows) == before:
        note = " Nothing was measured now: the record has all of this. Use --keep-going to measure again, or --name."
    return f"Record {record.folder}, {device}, torch {torch}.{note}\n"


def _fill(specs: Sequence[Spec], caches: Path, at_once: int, clock: _Clock, write: Callable[[str], object]) -> int:
    """Compile every spec into its cache, over all buckets and one step more; 1 when one failed."""

    def filled(spec: Spec) -> bool:
        answer = run_worker(replace(spec, steps=1, validate=False, cache_dir=str(caches / _short(spec))), clock.left())
        write(_result_line(spec, answer))
        return answer["ok"]

    with ThreadPoolExecutor(at_once) as pool:
        return 0 if all(list(pool.map(filled, [spec for spec in specs if variant(spec.variant).compile]))) else 1


def _result_line(spec: Spec, answer: dict[str, Any]) -> str:
    """A line about one worker's answer."""
    error = "" if answer["ok"] else f": {answer['error']}"
    checkpointing = (spec.checkpointing_kind or "on") if spec.checkpointing else "off"
    return f"{spec.variant}, checkpointing {checkpointing}, {answer['process_s']:.0f} s{error}\n"


def _short(spec: Spec) -> str:
    """Name of the compile cache of one variant and its settings: no two share kernels, recorded or not."""
    settings = (getattr(spec, name) for name in SETTINGS if name != "cuda_graphs")
    key = [spec.variant, spec.checkpointing, *settings]
    return f"{spec.variant.replace(':', '-')}-{zlib.crc32(repr(key).encode()):08x}"


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    sys.exit(main())
