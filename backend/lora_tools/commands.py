"""Carries out the commands of `backend.lora_tools` and shows their results in the terminal."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from backend.base.errors import Refused
from backend.base.files import human_bytes
from backend.base.paths import resolve
from backend.dataset.items import count_of
from backend.lora.save import PRECISIONS, in_format, write_lora
from backend.lora_tools import resize as lora_resize
from backend.lora_tools.averaging import averaged
from backend.lora_tools.base_models import OpenModel, holds_denoiser_alone, open_model
from backend.lora_tools.combine import combined
from backend.lora_tools.extract import (
    FileHashes,
    check_format,
    extracted,
    formatted,
    lora_size,
    metadata_of,
    pairs_of,
)
from backend.lora_tools.factors import RankChoice
from backend.lora_tools.lora_layers import read_raw
from backend.lora_tools.merge_base import merge_into_base
from backend.lora_tools.output import check_room, output_path
from backend.lora_tools.report import Report, report_of
from backend.lora_tools.strengths import read_choice
from backend.memory.devices import pick_device

DONE, IGNORES = 0, 1
_HASH_WAIT_S = 600.0


def extract(options: argparse.Namespace, console: Console) -> int:
    """Write the LoRA of the difference of two models."""
    choice, device = _choice(options), _device(options.device)
    base_path, tuned_path = resolve(options.base), resolve(options.tuned)
    out = output_path(options.out, options.overwrite, (base_path, tuned_path))
    base = open_model(base_path, options.family, options.variant, options.expert)
    name = options.family or (base.facts.name if holds_denoiser_alone(tuned_path, base.facts) else None)
    tuned = open_model(tuned_path, name, options.variant, options.expert)
    pairs = pairs_of(base, tuned)
    dtype = PRECISIONS[options.precision]
    if choice.rank is not None:
        sizes = (base.names.layers[pair.layer] for pair in pairs if pair.layer)
        check_room(out, lora_size(sizes, choice.rank, dtype.itemsize) if choice.keep is None else 0)
    hashes = FileHashes(base)
    try:
        with _progress(console) as watch:
            result = extracted(pairs, base, choice, device, options.targets, watch)
        if not result.layers:
            text = f"no layer of {tuned_path.name} that a LoRA can hold differs from {base_path.name}"
            raise Refused(text, "Give the tuned model with --tuned.")
        form = check_format(options.layout)
        tensors = formatted(in_format(result.layers, base.names, form), dtype)
        metadata = metadata_of(result, base, tuned, hashes.values(_HASH_WAIT_S))
    finally:
        hashes.stop()
    write_lora(out, tensors, metadata)
    ranks = sorted(each.rank for each in result.facts)
    _say(console, f"{out} ({human_bytes(out.stat().st_size)})")
    _say(console, f"{count_of(len(ranks), 'layer')} of rank {_span(ranks)}, {result.kept:.2%} of the norm kept.")
    formats = {str(each.dtype).removeprefix("torch.") for pair in pairs for each in (pair.base, pair.tuned)}
    if any(pair.base.dtype != pair.tuned.dtype for pair in pairs):
        text = f"The models are stored in different formats ({', '.join(sorted(formats))})"
        _say(console, f"{text}: what their rounding differs in is part of the LoRA.")
    if result.equal:
        _say(console, f"{count_of(result.equal, 'layer')} equal in both: left out.")
    for reason in dict.fromkeys(result.left_out.values()):
        names = [name for name, why in result.left_out.items() if why == reason]
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
        _say(console, f"Changed, but left out, since {reason}: {', '.join(names[:3])}{rest}.")
    return DONE


def merge(options: argparse.Namespace, console: Console) -> int:
    """Write a base model with LoRAs in it, or several LoRAs as one."""
    choices = [read_choice(text) for text in options.lora]
    device = _device(options.device)
    paths = tuple(path for path, _ in choices)
    if options.base is not None:
        if options.layout is not None:
            raise Refused("--layout names the keys of a LoRA file, and --base writes a model", "Leave out one of them.")
        if options.rank is not None or options.keep is not None:
            raise Refused("--rank and --keep are for one LoRA of several", "Leave them out, or leave out --base.")
        base_path = resolve(options.base)
        out = output_path(options.out, options.overwrite, (base_path, *paths), folder=base_path.is_dir())
        model = open_model(base_path, options.family, options.variant, options.expert)
        with _progress(console) as watch:
            result = merge_into_base(model, choices, out, device, watch)
        for text in result.left_out:
            _say(console, f"Not merged: {text}.")
        _say(console, f"{out}: {count_of(result.changed, 'tensor')} changed.")
        return DONE
    out = output_path(options.out, options.overwrite, paths)
    files = [(read_raw(path), strength) for path, strength in choices]
    choice = _choice(options) if options.rank is not None or options.keep is not None else None
    with _progress(console) as watch:
        form = None if options.layout is None else check_format(options.layout)
        result = combined(files, choice, device, watch, form)
    tensors = formatted(result.tensors, PRECISIONS[options.precision])
    check_room(out, sum(value.nbytes for value in tensors.values()))
    write_lora(out, tensors, result.metadata)
    _say(console, f"{out} ({human_bytes(out.stat().st_size)})")
    exact = "exact" if choice is None else f"{result.error:.2%} of the norm lost"
    _say(console, f"{count_of(len(result.ranks), 'layer')} of rank {_span(sorted(result.ranks.values()))}, {exact}.")
    return DONE


def resize(options: argparse.Namespace, console: Console) -> int:
    """Write a LoRA file with smaller ranks."""
    choice, path = _choice(options), resolve(options.file)
    out = output_path(options.out, options.overwrite, (path,))
    file = read_raw(path)
    check_room(out, path.stat().st_size)
    with _progress(console) as watch:
        result = lora_resize.resized(file, choice, _device(options.device), watch)
    write_lora(out, result.tensors, result.metadata)
    before, after = ([getattr(layer, name) for layer in result.layers] for name in ("before", "after"))
    _say(console, f"{out} ({human_bytes(out.stat().st_size)}, before {human_bytes(path.stat().st_size)})")
    ranks = f"rank {_span(sorted(before))} before, {_span(sorted(after))} now"
    _say(console, f"{count_of(len(before), 'layer')}, {ranks}, {result.kept:.2%} of the norm kept.")
    worst = min(result.layers, key=lambda layer: layer.kept)
    _say(console, f"Least kept: {worst.kept:.2%} of {worst.stem}.")
    return DONE


def average(options: argparse.Namespace, console: Console) -> int:
    """Write the mean of LoRA files of one run."""
    paths = tuple(map(resolve, options.files))
    out = output_path(options.out, options.overwrite, paths)
    check_room(out, max((path.stat().st_size for path in paths if path.is_file()), default=0))
    files = [read_raw(path) for path in paths]
    with _progress(console) as watch:
        result = averaged(files, _device(options.device), watch)
    write_lora(out, result.tensors, result.metadata)
    _say(console, f"{out} ({human_bytes(out.stat().st_size)})")
    lost = "" if result.error is None else f"; {result.error:.2%} of the mean change is more than the rank can hold"
    _say(console, f"The average of {count_of(len(files), 'file')}{lost}.")
    return DONE


def inspect(options: argparse.Namespace, console: Console) -> int:
    """Show what a LoRA file holds."""
    file, base = read_raw(resolve(options.file)), _base(options)
    report = report_of(file, base)
    if options.json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
        return DONE
    _show(report, options.layers, console)
    return DONE


def check(options: argparse.Namespace, console: Console) -> int:
    """Show which programs load a LoRA file; 1 where one of them ignores a key."""
    # here, since diffusers takes seconds to import, and the other tools need nothing of it
    from backend.lora_tools.check import checked

    result = checked(read_raw(resolve(options.file)), _base(options))
    if options.json:
        sys.stdout.write(json.dumps(result.as_json()) + "\n")
    else:
        _say(console, f"{Path(result.file).name}, checked by the layers of {result.family}")
        for verdict in result.verdicts:
            _say(console, " ".join(part for part in (verdict.sentence(), verdict.note) if part))
    return DONE if all(not each.error and not each.ignored for each in result.verdicts) else IGNORES


def _show(report: Report, count: int, console: Console) -> None:
    kinds = ", ".join(f"{name} ({layers})" for name, layers in report.kinds.items())
    rows = {
        "Kind": kinds or "none",
        "Family": report.family or "not known",
        "Names": ", ".join(report.styles),
        "Size": f"{human_bytes(report.bytes)}, {report.keys} keys, {_listed(report.formats)}",
        "Layers": f"{len(report.layers)}, of these {report.text_layers} of text encoders",
        "Rank": _listed(report.ranks),
        "Alpha": _listed(report.alphas),
        "Embeddings": ", ".join(report.embeddings),
        "Other keys": _listed(report.others),
    }
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        if value:
            table.add_row(name, value)
    console.print(table)
    strongest = report.strongest(count)
    if strongest:
        relative = strongest[0].relative is not None
        layers = Table("Strongest layers", "rank", "norm", *(["to the base's"] if relative else []), box=None)
        for layer in strongest:
            share = [f"{layer.relative:.3%}" if layer.relative is not None else ""] if relative else []
            layers.add_row(layer.name, str(layer.rank or ""), f"{layer.norm:.4g}", *share)
        console.print(layers)
    for problem in report.problems:
        console.print(f"problem: {problem}", style="red", markup=False, soft_wrap=True)


def _base(options: argparse.Namespace) -> OpenModel | None:
    return None if options.base is None else open_model(options.base, options.family, options.variant, options.expert)


def _choice(options: argparse.Namespace) -> RankChoice:
    if options.needs_rank and options.rank is None and options.keep is None:
        raise Refused("no rank is given", "Write --rank 32, or --keep 0.95 for what keeps 95 % of each layer's norm.")
    return RankChoice(rank=options.rank, keep=options.keep)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise Refused("PyTorch sees no CUDA GPU here", "Leave out --device, or write --device cpu.")
    return pick_device() if name == "auto" else torch.device(name)


@contextmanager
def _progress(console: Console) -> Iterator[lora_resize.Watch]:
    """A bar with the time that is left; nothing where the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name[-60:])

        yield watch


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _span(ranks: list[int]) -> str:
    return str(ranks[0]) if ranks[0] == ranks[-1] else f"{ranks[0]} to {ranks[-1]}"


def _listed(counts: dict[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    shown = ", ".join(f"{value} ({count})" for value, count in list(counts.items())[:6])
    return shown + (" and others" if len(counts) > 6 else "")
