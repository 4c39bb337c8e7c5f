"""Keeps a bench's record on disk: results.csv, losses.csv and meta.json, written row by row."""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.base.files import write_atomic
from backend.bench.variants import OPTIONS, SETTINGS, Spec

ROOT = Path(__file__).parents[2]
KEYS = ("variant", "checkpointing", "repeat", "cold", "ok", "error")
COLUMNS = (
    *KEYS,
    *SETTINGS,
    "s_per_step",
    "spread",
    "bucket_ms",
    "bucket_peak_gb",
    "bucket_estimated_gb",
    "compile_s",
    "compile_parts",
    "step_100_s",
    "total_s",
    "second_half_s",
    "peak_gb",
    "weights_gb",
    "graph_gb",
    "swap_gb",
    "swap_wait_ms",
    "h2d_gb_s",
    "swap_limit_ms",
    "graphs",
    "planned_graphs",
    "recompiles",
    "breaks",
    "limit_hits",
    "syncs",
    "cache_hits",
    "cache_misses",
    "loss",
    "validation_loss",
    "padding",
    "output_error",
    "output_error_unpadded",
    "gradient_error",
    "gradient_error_unpadded",
    "buckets",
    "route",
    "profile_ms",
    "failed_blocks",
    "notes",
    "device",
    "process_s",
)
_LOSSES = ("variant", "checkpointing", "settings", "repeat", "step", "loss")


def text(value: Any) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    numbers = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in ("torch", "triton", "diffusers", "peft", "flash-attn", "flash-attn-4"):
        try:
            numbers[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return numbers


def commit_of(root: Path = ROOT) -> str:
    """The checked-out commit, marked when files differ from it; "unknown" where git is not available."""
    try:
        ask = {"cwd": root, "capture_output": True, "text": True, "timeout": 20}
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], check=True, **ask).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "backend"], check=True, **ask).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{head} with changes" if changed else head


class Record:
    """Rows and meta data of one bench; an existing folder is continued."""

    def __init__(self, folder: Path, meta: dict[str, Any], rows: list[dict[str, str]], losses: list[list[str]]) -> None:
        self.folder, self.meta, self.rows, self._losses = folder, meta, rows, losses
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: Path, kind: str, command: Sequence[str], commit: str | None = None) -> Record:
        """The record in `folder`, new or continued. ValueError when it is of another kind."""
        folder.mkdir(parents=True, exist_ok=True)
        line = " ".join(["python -m backend.bench", *command])
        meta: dict[str, Any] = {"kind": kind, "commands": [], "date": time.strftime("%Y-%m-%d")}
        rows: list[dict[str, str]] = []
        losses: list[list[str]] = []
        if (folder / "meta.json").is_file():
            meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
            if meta["kind"] != kind:
                raise ValueError(f"{folder} has a record of kind {meta['kind']}, not {kind}; choose another --name")
            rows = read_rows(folder)
            losses = [[row[name] for name in _LOSSES] for row in read_losses(folder)]
        if line not in meta["commands"]:
            meta["commands"].append(line)
        meta |= {"commit": commit or commit_of(), "versions": versions()}
        return cls(folder, meta, rows, losses)

    def has(self, spec: Spec, repeat: int) -> bool:
        """Whether the record has this measurement, finished."""
        values = {"variant": spec.variant, "checkpointing": text(spec.checkpointing), "repeat": str(repeat), "ok": "1"}
        values |= {name: text(getattr(spec, name)) for name in SETTINGS}
        return any(all(row[key] == value for key, value in values.items()) for row in self.rows)

    def add(self, spec: Spec, repeat: int, answer: dict[str, Any]) -> None:
        """Add one answer of a worker and write the files. For any thread."""
        with self._lock:
            self._add(spec, repeat, answer)

    def _add(self, spec: Spec, repeat: int, answer: dict[str, Any]) -> None:
        measured = dict(answer.get("row", {}))
        losses = measured.pop("losses", [])
        row = {name: getattr(spec, name) for name in SETTINGS} | measured
        row |= {"variant": spec.variant, "checkpointing": spec.checkpointing, "repeat": repeat, "cold": repeat == 0}
        row |= {"ok": answer["ok"], "error": answer.get("error"), "process_s": answer["process_s"]}
        self.rows.append({name: text(row.get(name)) for name in COLUMNS})
        if measured.get("device"):
            self.meta["device"] = measured["device"]
        key = [spec.variant, text(spec.checkpointing), words(self.rows[-1]), str(repeat)]
        self._losses += [[*key, str(step), f"{loss:.6g}"] for step, loss in enumerate(losses)]
        self._write()

    def _write(self) -> None:
        table = io.StringIO()
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomic(self.folder / "results.csv", table.getvalue())
        curves = io.StringIO()
        plain = csv.writer(curves, lineterminator="\n")
        plain.writerow(_LOSSES)
        plain.writerows(self._losses)
        write_atomic(self.folder / "losses.csv", curves.getvalue())
        write_atomic(self.folder / "meta.json", json.dumps(self.meta, indent=1) + "\n")


def default_of(name: str) -> str:
    """Text of a setting's default, as a record holds it."""
    return text(OPTIONS[name].default) if name in OPTIONS else ""


def words(row: dict[str, str], leave_out: Sequence[str] = ()) -> str:
    """Settings of a row that are not the bench's defaults, for the variant's name; those in `leave_out` left out."""
    parts = [f"checkpointing {row['checkpointing_kind']}"] if row["checkpointing_kind"] else []
    for name, each in OPTIONS.items():
        label = each.metadata["label"]
        if label and name not in leave_out and row[name] not in ("", default_of(name)):
            parts.append(label.format(row[name].replace(" ", ", ")))
    return ", ".join(parts)


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Rows of results.csv as text; a column that an older record lacks has its setting's default, or is empty."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return [{name: row.get(name) or default_of(name) for name in COLUMNS} for row in csv.DictReader(file)]


def read_losses(folder: Path) -> list[dict[str, str]]:
    """Rows of losses.csv as text; empty when there is none."""
    if not (folder / "losses.csv").is_file():
        return []
    with (folder / "losses.csv").open(encoding="utf-8", newline="") as file:
        return [{name: row.get(name) or "" for name in _LOSSES} for row in csv.DictReader(file)]
