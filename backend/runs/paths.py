"""Names the files and folders of a run; nothing here touches the disk."""

from __future__ import annotations

import os
from pathlib import Path

EVENTS = "events.jsonl"
RECORD = "run.json"
CONFIG = "config.toml"


class RunPaths:
    """The paths inside of one run folder. Two with the same folder are equal."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(os.path.abspath(path))
        self.config_path = self.path / CONFIG
        self.record_path = self.path / RECORD
        self.events_path = self.path / EVENTS
        self.metrics_path = self.path / "metrics.sqlite"
        self.log_path = self.path / "log.txt"
        self.state_dir = self.path / "state"
        self.checkpoints_dir = self.path / "checkpoints"
        self.samples_dir = self.path / "samples"
        self.control_dir = self.path / "control"
        self.alive_path = self.path / "alive"

    def rank_log_path(self, rank: int) -> Path:
        """The log of a process but the first, of several that train together."""
        return self.path / f"log.rank{rank}.txt"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunPaths) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        """The folder's name, by which page and terminal call the run."""
        return self.path.name
