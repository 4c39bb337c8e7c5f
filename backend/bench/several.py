"""Measures what several GPUs are worth: the same settings trained whole by 1, 2, ... processes, one after the other.

    python -m backend.bench.several CONFIG.toml --processes 1,2 --steps 60

Each training is a run of its own below OUT, with its log, without samples and validation. What is told is the median
step behind the first half, which compiles, and the images a second; caches are filled by the first run.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.bench.markdown import markdown
from backend.config.load import load
from backend.config.schema import Config, with_values
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader

log = logging.getLogger(__name__)

ROOT = Path(__file__).parents[2]
_QUIET = {
    "sampling.prompts": [],
    "validation.validate_at_start": False,
    "validation.validate_at_end": False,
    "validation.validate_every_n_steps": None,
    "validation.validate_every_n_epochs": None,
    "validation.early_stop_patience": None,
    "validation.picture_losses": False,
    "saving.save_every_n_steps": None,
    "saving.save_every_n_epochs": None,
    "saving.average_checkpoints": None,
    "saving.keep_best": False,
    "training.max_train_epochs": None,
    "logging.tensorboard": False,
    "logging.wandb": False,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a number of processes took."""

    processes: int
    seconds: float
    """Of a step, the median."""
    images: int
    """Of a step."""

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


def measure(cfg: Config, processes: int, steps: int, out: Path) -> Measured:
    """Train `steps` steps with so many processes. RuntimeError where the run fails."""
    values = {"training.num_processes": processes, "training.max_train_steps": steps, "saving.output_dir": str(out)}
    own = with_values(cfg, {**_QUIET, **values})
    run = Run.create(own)
    with open(run.log_path, "ab") as output:
        command = [sys.executable, "-m", "backend.train", "--run", str(run.path)]
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if code:
        raise RuntimeError(f"{processes} processes failed: see {run.log_path}")
    rows = MetricsReader(run).tail(steps)
    timed = [row["s_per_step"] for row in rows[len(rows) // 2 :] if row["s_per_step"] is not None]
    images = own.dataset.batch_size * own.training.batches_per_step
    return Measured(processes=processes, seconds=statistics.median(timed), images=images)


def lines(measured: Sequence[Measured]) -> str:
    """A Markdown table of what was measured; speed-ups are those of images a second over the first row's."""
    first = measured[0].rate
    rows = [
        [str(each.processes), f"{each.seconds:.3f}", str(each.images), f"{each.rate:.2f}", f"{each.rate / first:.2f}"]
        for each in measured
    ]
    return markdown(["GPUs", "s a step", "images a step", "images a second", "times as fast"], rows)


def _counts(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m backend.bench.several", description="Measure several GPUs.")
    parser.add_argument("config", type=Path, help="the TOML with the settings")
    parser.add_argument("--processes", type=_counts, default=[1, 2], help="numbers of processes (default: 1,2)")
    parser.add_argument("--steps", type=int, default=60, help="steps of each training (default: 60)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "several", help="folder of the runs")
    options = parser.parse_args(arguments)
    loaded = load(options.config)
    if loaded.config is None:
        parser.error(" ".join(problem.sentence() for problem in loaded.problems))
    out = options.out.resolve()
    measured = [measure(loaded.config, count, options.steps, out) for count in options.processes]
    sys.stdout.write(lines(measured))
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    sys.exit(main())
