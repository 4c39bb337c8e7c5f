"""Formats an estimate for people and for the page: lines, a rich table, plain data, a comparison with the peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from backend.plan.memory.estimate import Estimate, Stage
from backend.plan.memory.nearest import Nearest

STAGES = {
    "encode_text": "Encoding captions",
    "encode_pictures": "Encoding pictures",
    "train": "Training",
    "validate": "Validation",
    "sample": "Drawing samples",
    "decode_samples": "Decoding samples",
}
PARTS = {
    "weights": "model weights",
    "swap_ring": "swap ring",
    "text_encoders": "text encoders",
    "lora": "LoRA",
    "gradients": "LoRA gradients",
    "optimizer": "optimizer",
    "ema": "mean of the LoRA",
    "activations": "activations",
    "recordings": "recorded passes",
    "vae": "VAE weights",
    "pictures": "VAE's pictures",
    "workspace": "workspace",
}
RAM_PARTS = {
    "process": "the program itself",
    "loader": "data being read",
    "swapped_weights": "swapped blocks (pinned)",
    "activations": "activations",
    "vae": "VAE, kept for samples",
    "denoiser_while_decoding": "denoiser while samples are decoded",
    "loading": "loading, piece by piece",
}
_SMALL = 50_000_000
"""Bytes below which a part is not worth a word."""

VERDICTS = {"fits": "fits", "tight": "is tight", "does_not_fit": "does not fit", "unknown": "is not known to fit"}


def gigabytes(count: float) -> str:
    """A size of memory in the unit in which GPUs are sold: one "of 24 GB" has 24 x 2**30 bytes."""
    return f"{count / 2**30:.1f} GB"


def short_bytes(count: float) -> str:
    """A size for a cell of a table; nothing for nothing."""
    if count >= 2**30 / 10:
        return gigabytes(count)
    return f"{max(1, round(count / 2**20))} MB" if count else "-"


def headline(found: Estimate) -> str:
    """The verdict in a sentence."""
    said = VERDICTS[found.verdict].capitalize()
    if not found.on_gpu:
        needs = f"without a GPU the run computes in RAM and needs about {gigabytes(found.ram_total)} of it"
        return f"{said}: {needs}." if found.ram_room is None else f"{said}: {needs}, of {gigabytes(found.ram_room)}."
    if found.ram_decides and found.ram_room is not None:
        needs = f"the run needs {gigabytes(found.ram_total)} of RAM, and this machine has {gigabytes(found.ram_room)}"
        return f"{said}: {needs}."
    worst = found.peak
    needs = f"{STAGES[worst.name]} needs {gigabytes(worst.total)} of video memory"
    if found.gpu is None or found.room is None:
        return f"{needs}; there is no known GPU to compare that with."
    limited = found.limit is not None and found.limit < found.gpu.free
    name = found.gpu.name if found.gpu.real else "the GPU"
    has = "the limit set is" if limited else f"{name} has"
    free = "" if limited or not found.gpu.real else " free"
    return f"{said}: {_lower(needs)}, and {has} {gigabytes(found.room)}{free}."


def ram_words(found: Estimate) -> str:
    """What the run needs of the machine's RAM, in a sentence."""
    told = ", ".join(
        f"{RAM_PARTS.get(name, PARTS.get(name, name))} {gigabytes(size)}"
        for name, size in found.ram.items()
        if size >= _SMALL
    )
    needs = f"RAM: {gigabytes(found.ram_total)} ({told})"
    if found.ram_room is None:
        return f"{needs}."
    short = " That is more than there is." if found.ram_verdict == "does_not_fit" else ""
    return f"{needs}, of {gigabytes(found.ram_room)}.{short}"


def nearest_words(nearest: Nearest) -> str:
    """What to change, in a sentence."""
    after = nearest.after
    size = gigabytes(after.needed)
    if after.on_gpu and after.ram_room is not None:
        size = f"{gigabytes(after.peak.total)} of video memory and {gigabytes(after.ram_total)} of RAM"
    words = nearest.words[0].upper() + nearest.words[1:]
    if nearest.fits:
        return f"{words}: then {size} are needed."
    return f"Nothing makes it fit. Nearest: {_lower(words)}, which still needs {size}."


def flags(values: Mapping[str, Any]) -> str:
    """Settings as `launcher.py train` and `plan` take them: ``--blocks_to_swap 16``."""

    def value(given: Any) -> str:
        return str(given).lower() if isinstance(given, bool) else str(given)

    return " ".join(f"--{path.rpartition('.')[2]} {value(given)}" for path, given in values.items())


def memory_lines(found: Estimate, nearest: Nearest | None) -> list[str]:
    """The estimate as plain lines, for a log."""
    lines = [headline(found)]
    for stage in found.stages:
        parts = ", ".join(f"{PARTS[name]} {gigabytes(size)}" for name, size in stage.parts.items() if size >= _SMALL)
        size = stage.total if found.on_gpu else stage.allocated
        lines.append(f"  {STAGES[stage.name]}: {short_bytes(size)}" + (f" ({parts})" if parts else ""))
    lines.append(ram_words(found))
    if nearest is not None:
        lines.append(nearest_words(nearest))
    return lines


def memory_dict(found: Estimate, nearest: Nearest | None = None) -> dict[str, Any]:
    """The estimate as plain data."""
    gpu = found.gpu
    return {
        "verdict": found.verdict,
        "headline": headline(found),
        "rough": found.rough,
        "problems": [problem.sentence() for problem in found.problems],
        "room": found.room,
        "limit": found.limit,
        "card": None if gpu is None else vars(gpu).copy(),
        "peak": found.peak.name,
        "needed": found.needed,
        "on_card": found.on_gpu,
        "ram_room": found.ram_room,
        "ram_verdict": found.ram_verdict,
        "ram_words": ram_words(found),
        "allocated": max(stage.allocated for stage in found.stages),
        "stages": [_stage(stage) for stage in found.stages],
        "ram": [{"name": name, "title": RAM_PARTS.get(name, PARTS.get(name, name)), "bytes": size}
                for name, size in found.ram.items() if size],
        "ram_total": found.ram_total,
        "nearest": None if nearest is None else nearest_dict(nearest),
    }  # fmt: skip


def nearest_dict(nearest: Nearest) -> dict[str, Any]:
    """A change as plain data."""
    return {
        "words": nearest_words(nearest),
        "values": nearest.values,
        "costs": list(dict.fromkeys(change.cost for change in nearest.changes)),
        "fits": nearest.fits,
        "needed": nearest.after.needed,
        "verdict": nearest.after.verdict,
    }


def render(found: Estimate, nearest: Nearest | None) -> RenderableType:
    """The estimate for a terminal."""
    table = Table(title="Memory of the GPU by stage" if found.on_gpu else "Memory by stage")
    table.add_column("")
    for stage in found.stages:
        table.add_column(STAGES[stage.name], justify="right", style="bold" if stage is found.peak else None)
    for name, title in PARTS.items():
        if any(stage.parts.get(name) for stage in found.stages):
            table.add_row(title, *(short_bytes(stage.parts.get(name, 0)) for stage in found.stages))
    if found.on_gpu:
        table.add_row("CUDA itself, slack", *(short_bytes(stage.total - stage.allocated) for stage in found.stages))
        table.add_row("in all", *(short_bytes(stage.total) for stage in found.stages), style="bold")
    colours = {"fits": "green", "tight": "yellow", "does_not_fit": "red", "unknown": "none"}
    parts: list[RenderableType] = [table, Text(headline(found), style=colours[found.verdict])]
    parts.append(Text(ram_words(found)))
    if found.rough:
        parts.append(Text("A rough figure: this family's activations are not measured yet.", style="yellow"))
    if nearest is not None:
        parts += [Text(nearest_words(nearest)), Text(f"As arguments: {flags(nearest.values)}")]
    return Stack(*parts)


def against_peak(estimated: int, peak: int) -> str:
    """The two figures side by side, and how far the estimate is above (+) or below (-) the peak."""
    off = 100 * (estimated - peak) / peak if peak else 0.0
    return f"estimated {gigabytes(estimated)}, peak {gigabytes(peak)} ({off:+.0f} %)"


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "title": STAGES[stage.name],
        "parts": [
            {"name": name, "title": PARTS[name], "bytes": size} for name, size in stage.parts.items() if size
        ],
        "outside": stage.total - stage.allocated,
        "allocated": stage.allocated,
        "total": stage.total,
    }  # fmt: skip


def _lower(words: str) -> str:
    return words[0].lower() + words[1:]
