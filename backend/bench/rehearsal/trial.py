"""Trains as a person does: `python -m backend.train` in a process of its own, stopped after some steps and resumed."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.base.errors import Refused
from backend.base.paths import PROJECT_ROOT
from backend.bench.clips import Clip, bucket_name
from backend.bench.rehearsal.sizes import RehearsalSize
from backend.bench.rehearsal.workspace import environment
from backend.config.load import load, parse
from backend.config.toml_io import dump
from backend.plan.finish import timings
from backend.runs.control import Control
from backend.runs.events import read_events
from backend.runs.folder import Run, list_runs
from backend.runs.metrics import MetricsReader

_TOTAL_STEPS = 2000
"""Length that the run is set to, so that what depends on it is decided as in a run of usual length."""
_EVERY_S = 0.1
_PATIENCE_S = 30.0
_ALL_ROWS = 10**6

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """What is trained on: resolution in px, and the clip of a video model, of whose area that is."""

    resolution: int
    clip: Clip | None = None

    @classmethod
    def of(cls, size: RehearsalSize, resolution: int | None, clip: Clip | None) -> Scale:
        """`size`'s own where nothing else is given. ValueError for a clip of a model of pictures, and the other way."""
        if size.clip is None:
            if clip is not None:
                raise ValueError(f"--clip is for video models, and {size.facts.title} makes pictures; leave it out")
            return cls(resolution=resolution or size.resolution)
        if resolution is not None:
            raise ValueError(f"--resolution is for models of pictures; give {size.facts.title} a size with --clip")
        clip = clip or size.clip
        size.facts.default_geometry.image_tokens(*clip)
        return cls(resolution=math.ceil(math.sqrt(clip[0] * clip[1])), clip=clip)

    def words(self) -> str:
        """`1024 px` or `832x480x81`."""
        return f"{self.resolution} px" if self.clip is None else bucket_name(self.clip)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process(timings.Process):
    """One trainer process of a rehearsal that has ended."""

    exit_code: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A run and its processes; `resumed` is None where the first one failed or none followed, `run` where it made no
    run folder."""

    run: Run | None
    first: Process
    resumed: Process | None
    error: str

    @property
    def complete(self) -> bool:
        """Whether both processes did what they were asked to."""
        return not self.error


def write_settings(
    size: RehearsalSize,
    work: Path,
    base_model: Path,
    scale: Scale,
    steps: int,
    overrides: Mapping[str, str],
    once: bool = False,
) -> Path:
    """Write the run's TOML to `work` and return its path. overrides: ``section.name`` -> value as on a command line.

    once: the run saves at its end alone, and no state.

    Refused with every setting that is wrong.
    """
    resolution = scale.resolution
    prompt, every = _sample(scale, steps)
    data: dict[str, Any] = {
        "model": {"family": size.family, "base_model": str(base_model)},
        "dataset": {
            "folders": [{"path": str(work / "pictures")}],
            "resolution": resolution,
            "min_bucket_size": min(256, resolution // 2),
            "cache_dir": str(work / "cache"),
        },
        "training": {"max_train_steps": max(_TOTAL_STEPS, 2 * steps)},
        "compile": {"compile_cache_dir": str(work / "compiled")},
        "sampling": {
            "prompts": [prompt | {"true_cfg_scale": size.true_guidance}],
            "sample_every_n_steps": every,
            "sample_at_end": False,
        },
        "saving": {
            "output_dir": str(work / "runs"),
            "output_name": "rehearsal",
            "save_every_n_steps": None if once else every,
            "save_state": not once,
        },
    }
    if scale.clip is not None:
        data["video"] = {"target_frames": [scale.clip[2]]}
        # The table then holds the clip's own size.
        data["dataset"]["bucket_step"] = size.facts.default_geometry.pixels_per_token
    for name, value in size.settings.items():
        section, _, setting = name.partition(".")
        data.setdefault(section, {})[setting] = value
    path = work / "rehearsal.toml"
    parsed = parse(data)
    if parsed.config is None:
        raise Refused.of(parsed.errors)
    dump(parsed.config, path)
    loaded = load(path, overrides)
    if loaded.config is None:
        raise Refused.of(loaded.errors)
    dump(loaded.config, path)
    return path


def _sample(scale: Scale, steps: int) -> tuple[Row, int]:
    """The sample that is drawn, and after how many steps each time."""
    side = scale.resolution
    prompt: Row = {"prompt": "a photo of a red circle", "steps": 8, "width": side, "height": side}
    if scale.clip is None:
        return prompt, max(1, steps // 2)
    width, height, frames = scale.clip
    # Each takes as long as some steps, and must have begun before the run is asked to stop.
    return prompt | {"width": width, "height": height, "frames": frames, "steps": 4}, max(1, steps - 1)


def rehearse(settings: Path, runs: Path, steps: int, resumed_steps: int) -> Trial:
    """Train with these settings until `steps` are done, stop, resume, stop again after `resumed_steps` more.

    resumed_steps: 0 where nothing is resumed. runs: folder in which the run's own folder is made; empty or missing. The
    trainer's output goes to train.log and resume.log beside the settings.
    """
    log = settings.with_name("train.log")
    first = _train([str(settings)], runs, steps, log)
    run = next(iter(list_runs(runs)), None)
    last = int(first.rows[-1]["step"]) if first.rows else 0
    if first.exit_code or run is None or not last:
        return Trial(run=run, first=first, resumed=None, error=failure(run, log))
    if not resumed_steps:
        return Trial(run=run, first=first, resumed=None, error="")
    log = settings.with_name("resume.log")
    resumed = _train(["--resume", str(run.path)], runs, last + resumed_steps, log)
    going = resumed.exit_code == 0 and bool(resumed.rows)
    return Trial(run=run, first=first, resumed=resumed, error="" if going else failure(run, log))


def _train(arguments: Sequence[str], runs: Path, steps: int, log: Path) -> Process:
    """Run the trainer and ask it to stop once the run's step `steps` is recorded."""
    run = next(iter(list_runs(runs)), None)
    seen = 0 if run is None else read_events(run.events_path)[1]
    began = time.time()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "backend.train", *arguments],
            cwd=PROJECT_ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _stop_after(process, runs, steps)
        finally:
            _end(process)
    ended = time.time()
    run = next(iter(list_runs(runs)), None)
    events = [] if run is None else read_events(run.events_path, seen)[0]
    rows = [] if run is None else [row for row in MetricsReader(run).tail(_ALL_ROWS) if row["t"] >= began]
    return Process(began=began, ended=ended, exit_code=process.returncode, events=events, rows=rows)


def _stop_after(process: subprocess.Popen[bytes], runs: Path, steps: int) -> None:
    asked = False
    while process.poll() is None:
        time.sleep(_EVERY_S)
        run = next(iter(list_runs(runs)), None)
        if asked or run is None:
            continue
        last = MetricsReader(run).last()
        if last is not None and (last["step"] or 0) >= steps:
            Control(run).request("stop")
            asked = True


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no trainer behind when this process is interrupted."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def failure(run: Run | None, log: Path) -> str:
    """What went wrong, as the run tells it, else the end of what the trainer wrote."""
    error = {} if run is None else run.record().get("error") or {}
    if error:
        sentences = filter(None, (error.get(name) for name in ("text", "cause", "remedy")))
        return " ".join(sentence if sentence.endswith((".", "?", "!")) else f"{sentence}." for sentence in sentences)
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " ".join(lines[-5:]) or "The trainer ended before its first step and said nothing."
