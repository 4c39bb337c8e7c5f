"""Formats an estimate for people and for the page: lines, a rich table, plain data, a comparison with the peak."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from backend.plan.memory.estimate_result import Estimate, Stage
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
    "weight_copies": "transposed 8-bit copies",
    "swap_ring": "swap ring",
    "text_encoders": "text encoders",
    "lora": "LoRA",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "ema": "mean of the weights",
    "other_expert": "LoRA and optimizer of the other expert",
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
    "swapped_state": "their optimizer state (pinned)",
    "second_expert": "the expert that waits",
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


def headline(estimate: Estimate, subject: str = "the run") -> str:
    """The verdict in a sentence, and what is done with memory that is left. subject: what needs the memory."""
    keeps = estimate.settings is not None and estimate.settings.keeps_attention
    more = " Attention's results are kept, as with checkpointing_kind attention: there is room, and steps are faster."
    return _verdict(estimate, subject) + (more if keeps else "")


def _verdict(estimate: Estimate, subject: str) -> str:
    verdict = VERDICTS[estimate.verdict].capitalize()
    if not estimate.on_gpu:
        needs = f"without a GPU {subject} computes in RAM and needs about {gigabytes(estimate.ram_total)} of it"
        room = "" if estimate.ram_room is None else f", of {gigabytes(estimate.ram_room)}"
        return f"{verdict}: {needs}{room}."
    if estimate.ram_decides and estimate.ram_room is not None:
        needs = f"{subject} needs {gigabytes(estimate.ram_total)} of RAM"
        return f"{verdict}: {needs}, and this machine has {gigabytes(estimate.ram_room)}."
    worst = estimate.peak
    needs = f"{STAGES[worst.name]} needs {gigabytes(worst.total)} of video memory"
    if estimate.gpu is None or estimate.room is None:
        return f"{needs}; there is no known GPU to compare that with."
    limited = estimate.limit is not None and estimate.limit < estimate.gpu.free
    name = estimate.gpu.name if estimate.gpu.real else "the GPU"
    has = "the limit set is" if limited else f"{name} has"
    free = "" if limited or not estimate.gpu.real else " free"
    return f"{verdict}: {_lower(needs)}, and {has} {gigabytes(estimate.room)}{free}."


def ram_words(estimate: Estimate) -> str:
    """What the run needs of the machine's RAM, in a sentence."""
    parts = ", ".join(
        f"{RAM_PARTS.get(name, PARTS.get(name, name))} {gigabytes(size)}"
        for name, size in estimate.ram.items()
        if size >= _SMALL
    )
    needs = f"RAM: {gigabytes(estimate.ram_total)} ({parts})"
    if estimate.ram_room is None:
        return f"{needs}."
    short = " That is more than there is." if estimate.ram_verdict == "does_not_fit" else ""
    return f"{needs}, of {gigabytes(estimate.ram_room)}.{short}"


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

    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    return " ".join(f"--{path.rpartition('.')[2]} {text(value)}" for path, value in values.items())


def memory_lines(estimate: Estimate, nearest: Nearest | None, subject: str = "the run") -> list[str]:
    """The estimate as plain lines, for a log."""
    lines = [headline(estimate, subject)]
    for stage in estimate.stages:
        parts = ", ".join(f"{PARTS[name]} {gigabytes(size)}" for name, size in stage.parts.items() if size >= _SMALL)
        size = stage.total if estimate.on_gpu else stage.allocated
        lines.append(f"  {STAGES[stage.name]}: {short_bytes(size)}" + (f" ({parts})" if parts else ""))
    lines.append(ram_words(estimate))
    if nearest is not None:
        lines.append(nearest_words(nearest))
    return lines


def memory_dict(estimate: Estimate, nearest: Nearest | None = None, subject: str = "the run") -> dict[str, Any]:
    """The estimate as plain data."""
    gpu = estimate.gpu
    return {
        "verdict": estimate.verdict,
        "headline": headline(estimate, subject),
        "rough": estimate.rough,
        "problems": [problem.sentence() for problem in estimate.problems],
        "room": estimate.room,
        "limit": estimate.limit,
        "card": None if gpu is None else vars(gpu).copy(),
        "peak": estimate.peak.name,
        "needed": estimate.needed,
        "on_card": estimate.on_gpu,
        "ram_room": estimate.ram_room,
        "ram_verdict": estimate.ram_verdict,
        "ram_words": ram_words(estimate),
        "allocated": max(stage.allocated for stage in estimate.stages),
        "stages": [_stage(stage) for stage in estimate.stages],
        "ram": [{"name": name, "title": RAM_PARTS.get(name, PARTS.get(name, name)), "bytes": size}
                for name, size in estimate.ram.items() if size],
        "ram_total": estimate.ram_total,
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


def render(estimate: Estimate, nearest: Nearest | None, subject: str = "the run") -> RenderableType:
    """The estimate for a terminal."""
    table = Table(title="Memory of the GPU by stage" if estimate.on_gpu else "Memory by stage")
    table.add_column("")
    for stage in estimate.stages:
        table.add_column(STAGES[stage.name], justify="right", style="bold" if stage is estimate.peak else None)
    for name, title in PARTS.items():
        if any(stage.parts.get(name) for stage in estimate.stages):
            table.add_row(title, *(short_bytes(stage.parts.get(name, 0)) for stage in estimate.stages))
    if estimate.on_gpu:
        table.add_row("CUDA itself, slack", *(short_bytes(stage.total - stage.allocated) for stage in estimate.stages))
        table.add_row("in all", *(short_bytes(stage.total) for stage in estimate.stages), style="bold")
    colours = {"fits": "green", "tight": "yellow", "does_not_fit": "red", "unknown": "none"}
    parts: list[RenderableType] = [table, Text(headline(estimate, subject), style=colours[estimate.verdict])]
    parts.append(Text(ram_words(estimate)))
    if estimate.rough:
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
