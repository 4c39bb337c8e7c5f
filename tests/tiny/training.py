"""Small runs of the real trainer on the tiny FLUX fixture."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from backend.config.load import parse
from backend.config.schema import Config
from backend.runs import record
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.process import MARKER
from backend.train import run_trainer
from tests.tiny.event_lines import event_lines

ROOT = Path(__file__).resolve().parents[2]


def config(base: Path, images: Path, where: Path, **changes: dict[str, Any]) -> Config:
    """Settings of a short eager run, with `changes` by section."""
    data: dict[str, dict[str, Any]] = {
        "model": {"base_model": str(base), "text_length": 16},
        "dataset": {"folders": [{"path": str(images)}], "resolution": 64, "min_bucket_size": 32, "max_bucket_size": 128,
                    "cache_dir": str(where / "cache")},
        "network": {"network_dim": 4, "network_alpha": 2.0},
        "optimizer": {"learning_rate": 0.01},
        "training": {"max_train_steps": 6},
        "compile": {"compile": False},
        "saving": {"output_dir": str(where / "runs"), "output_name": "tiny", "save_precision": "fp32"},
    }  # fmt: skip
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    loaded = parse(data)
    assert loaded.config is not None, [problem.sentence() for problem in loaded.problems]
    return loaded.config


def family_config(family: str, base: Path, images: Path, where: Path, **changes: dict[str, Any]) -> Config:
    """Settings of a short eager run of a family, whose loss falls fast, with a quarter of `images` held out."""
    sections: dict[str, dict[str, Any]] = {
        "model": {"family": family, "text_length": 64},
        "dataset": {"validation_split": 0.25},
        "compile": {"compile": False, "shape_mode": "off"},
        "training": {"max_train_steps": 4},
        "optimizer": {"learning_rate": 0.03, "lr_scheduler": "constant", "lr_warmup": 0.0},
    }
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, images, where, **sections)


def straight_run_that_a_resumed_one_repeats(settings: Callable[..., Config], swapped: int = 3, steps: int = 4) -> Run:
    """Train `steps`; and the second half again from the state of the first, swapped and checkpointed, to the same bits.

    settings: makes the config of a run, with changes by section. Bit by bit, so that nothing of the three changes any.
    """
    half = {"saving": {"save_every_n_steps": steps // 2}}
    straight, code = train_here(settings(training={"max_train_steps": steps}, **half))
    assert code == 0, events(straight, "error")
    whole = {"max_train_steps": steps, "gradient_checkpointing": True}
    resumed = resumed_from(straight, steps // 2, settings(training=whole, memory={"blocks_to_swap": swapped}, **half))
    assert [event["blocks"] for event in events(resumed, "swap") if event["moved"]] == [swapped]
    losses = [row["loss"] for row in rows(straight)]
    assert [row["loss"] for row in rows(resumed)] == losses[steps // 2 :] and len(losses) == steps
    assert same(lora_of(resumed), lora_of(straight))
    return straight


def resumed_from(straight: Run, step: int, cfg: Config) -> Run:
    """A run with the settings `cfg`, resumed in this process from the state that `straight` saved at `step`."""
    run, name = Run.create(cfg), f"step-{step:08d}"
    shutil.copytree(straight.state_dir / name, run.state_dir / name)
    (run.state_dir / "latest").write_text(name)
    _, code = train_here(cfg, run, resume=True)
    assert code == 0, events(run, "error")
    assert [event["step"] for event in events(run, "resumed")] == [step]
    return run


def train_here(cfg: Config, run: Run | None = None, resume: bool = False) -> tuple[Run, int]:
    """Train in this process; the run and the exit code."""
    run = run or Run.create(cfg)
    # a real run has a process of its own, without the graphs of one before it
    torch._dynamo.reset()
    code = run_trainer(run, resume=resume)
    # this process lives on, but is no longer the run's trainer
    own = ("pid", "create_time", "boot", "ticks")
    record.update(run.record_path, lambda known: {key: value for key, value in known.items() if key not in own})
    return run, code


def start(run: Run, *more: str, **environment: str) -> subprocess.Popen[bytes]:
    """The trainer in a process of its own, as the page starts it."""
    command = [sys.executable, "-m", "backend.train", "--run", str(run.path), *more]
    inherited = {name: value for name, value in os.environ.items() if name != MARKER}
    with open(run.log_path, "ab") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env={**inherited, **environment}, stdout=output, stderr=subprocess.STDOUT
        )


def events(run: Run, kind: str | None = None) -> list[dict[str, Any]]:
    """The run's events, of one kind or all."""
    return event_lines(run, kind)


def rows(run: Run) -> list[dict[str, Any]]:
    """The run's metric rows."""
    return MetricsReader(run).tail(10_000)


def lora_of(run: Run, name: str = "tiny.safetensors") -> dict[str, torch.Tensor]:
    """Tensors of a LoRA file of the run."""
    return safetensors.torch.load_file(run.checkpoints_dir / name)


def state_of(run: Run) -> dict[str, Any]:
    """Everything in the newest state: LoRA, optimizer, schedule, random number states, position."""
    folder = run.state_dir / (run.state_dir / "latest").read_text()
    return {
        "lora": safetensors.torch.load_file(folder / "lora.safetensors"),
        **torch.load(folder / "optimizer.pt", weights_only=True),
        "rng": torch.load(folder / "rng.pt", weights_only=True),
    }


def same(a: Any, b: Any) -> bool:
    """True when two nested structures hold equal values, tensors bit by bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b
