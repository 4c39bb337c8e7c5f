"""Computes after how many steps a compile pays off. Torch-free: the page and `launcher.py plan` show it."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

from backend.config.checkpointing import checkpointing_of
from backend.config.load import load
from backend.config.schema import Config
from backend.runs.eta import spoken
from backend.runs.folder import Run, list_runs
from backend.runs.metrics import MetricsReader

RECORDS = Path(__file__).parents[2] / "docs" / "benchmarks"
# What a step's time and a compile's time depend on, beside the machine.
_SAME_WORK = {
    "model": ("family", "base_model", "text_length"),
    "dataset": ("resolution", "batch_size"),
    "network": ("network_dim", "conv_dim"),
    "training": ("gradient_accumulation_steps", "num_processes", "gradient_checkpointing", "mixed_precision"),
    "memory": (
        "blocks_to_swap",
        "checkpointing_kind",
        "activation_memory_budget",
        "base_quantization",
        "base_compute",
        "base_products",
    ),
}
_MOST_RUNS = 40
_ROWS = 200
# Fewer timed steps say more about the first moments of a process than about the work.
_FEWEST_STEPS = 5


@dataclass(frozen=True)
class Timing:
    """What a run measured."""

    s_per_step: float
    """Median of the steps without compiling in them."""
    compile_seconds: float
    on_gpu: bool = False
    compiled: bool = False
    """It made a graph. A run whose blocks all failed to compile spent the seconds, and its steps are eager."""


@dataclass(frozen=True)
class Payback:
    """What a compile costs and saves. Each number is None while nobody has measured it."""

    compiled: float | None = None
    """Seconds of a compiled step."""
    eager: float | None = None
    """Seconds of an eager step."""
    compile_seconds: float | None = None
    """Of a start into an empty cache, where runs measured one, else of the last start."""
    source: str = ""
    """Where the eager time comes from, in words."""

    @property
    def steps(self) -> int | None:
        """Steps until the time saved equals the time spent; None when unknown, or when nothing is saved."""
        if self.compiled is None or self.eager is None or self.compile_seconds is None:
            return None
        return steps_to_pay(self.compile_seconds, self.compiled, self.eager / self.compiled)

    def sentence(self) -> str:
        """The answer for people, and what it rests on; or what is missing to give it."""
        if self.compiled is None or self.compile_seconds is None:
            return (
                "After how many steps the compile pays off is not known yet: no compiled run of these "
                "settings has been timed here."
            )
        took = spoken(self.compile_seconds)
        if self.eager is None:
            return (
                f"Compiling took {took}. After how many steps it pays off is not known: train these "
                f"settings once for {_FEWEST_STEPS * 4} steps with compile off to know it."
            )
        steps = f"{self.compiled:.3g} s a step against {self.eager:.3g} s eager ({self.source})"
        if self.steps is None:
            return f"Compiling took {took} and saves no time here: {steps}."
        return f"The compile ({took}) pays off after {self.steps:,} steps: {steps}."


def steps_to_pay(compile_seconds: float, s_per_step: float, speedup: float) -> int | None:
    """Steps until the time saved equals `compile_seconds`; None when a compiled step saves nothing.

    s_per_step: seconds of a compiled step. speedup: eager seconds a step by compiled ones.
    """
    saved = s_per_step * (speedup - 1)
    return math.ceil(compile_seconds / saved) if saved > 0 else None


def measured_speedup(checkpointing: str, record: Path = RECORDS / "flux-compile") -> float | None:
    """How many times faster than eager our default (static, auto attention) ran in the bench; None without a record.

    checkpointing: as `checkpointing_of` says it.
    """
    kind = {"off": "", "block": "", "graph": "auto"}.get(checkpointing, checkpointing)
    if not (record / "results.csv").is_file():
        return None
    seconds: dict[str, list[float]] = {}
    with (record / "results.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            same = row["variant"] == "eager" or (row.get("checkpointing_kind") or "") == kind
            same = same and (row["checkpointing"] == "1") is (checkpointing != "off")
            if same and row["ok"] == "1" and row["s_per_step"]:
                seconds.setdefault(row["variant"], []).append(float(row["s_per_step"]))
    medians = {variant: statistics.median(values) for variant, values in seconds.items()}
    eager, ours = medians.get("eager"), medians.get("static:sdpa")
    return eager / ours if eager and ours else None


def timing(run: Run) -> Timing | None:
    """What a run measured; None when it has too few timed steps."""
    reader = MetricsReader(run)
    rows = reader.tail(_ROWS)
    seconds = [row["s_per_step"] for row in rows if row.get("s_per_step")]
    if len(seconds) < _FEWEST_STEPS:
        return None
    # Each process of a run counts its own, and one that resumes only reads the cache: the longest is what it cost.
    compiling = reader.range(width=1, columns=("compile_seconds",))["compile_seconds"]["max"]
    return Timing(
        statistics.median(seconds),
        max(filter(None, compiling), default=0.0),
        bool(rows[-1].get("vram_total")),
        bool(rows[-1].get("graphs")),
    )


def payback(config: Config, root: Path, of: Run | None = None, bench: Path = RECORDS / "flux-compile") -> Payback:
    """What is known about `config`: from the newest runs of the same work below `root`, then from the bench.

    of: a run whose own compiled seconds count before those of others. The bench lends its ratio only, for
    FLUX on a GPU: it was measured there, and a CPU has another.
    """
    compiled = timing(of) if of is not None else None
    if compiled is not None and not compiled.compiled:
        compiled = None
    eager: Timing | None = None
    wanted = _work(config)
    longest = compiled.compile_seconds if compiled is not None else 0.0
    for run in islice(list_runs(root), _MOST_RUNS):
        other = _config(run)
        if other is None or _work(other) != wanted:
            continue
        timed = timing(run)
        if timed is None:
            continue
        # Recording its passes counts as compiling, and an eager run may do that too.
        if not other.compile.compile or not timed.compile_seconds:
            eager = eager or timed
        elif timed.compiled:
            compiled = compiled or timed
            # A warm start only reads its cache: what a compile costs is the slowest one of the same work.
            longest = max(longest, timed.compile_seconds)
    if compiled is None or not compiled.compile_seconds:
        return Payback(eager=eager.s_per_step if eager else None, source="an earlier run")
    if eager is not None:
        return Payback(compiled.s_per_step, eager.s_per_step, longest, "an earlier run of the same settings")
    lends = config.model.family == "flux" and compiled.on_gpu
    ratio = measured_speedup(checkpointing_of(config), bench) if lends else None
    if ratio is None:
        return Payback(compiled.s_per_step, None, longest)
    return Payback(
        compiled.s_per_step, compiled.s_per_step * ratio, longest, "estimated with the ratio in the benchmarks"
    )


def _work(config: Config) -> tuple[object, ...]:
    return tuple(getattr(getattr(config, section), name) for section, names in _SAME_WORK.items() for name in names)


def _config(run: Run) -> Config | None:
    try:
        return _read(run.config_path, run.config_path.stat().st_mtime_ns)
    except OSError:
        return None


# The page asks after every edit of the form; a run's settings hardly ever change.
@lru_cache(maxsize=4 * _MOST_RUNS)
def _read(path: Path, changed: int) -> Config | None:
    return load(path).config
