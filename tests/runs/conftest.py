"""Run folders for the tests of this package; whatever a test starts is gone when it ends."""

from __future__ import annotations

import contextlib

import psutil
import pytest

from backend.runs.folder import Run
from backend.runs.process import MARKER


@pytest.fixture
def runs_root(tmp_path):
    """A folder for run folders whose name is as unkind as people's are; its trainers are killed afterwards."""
    root = tmp_path / "my runs [ä] 100%"
    root.mkdir()
    yield root
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARKER, "").startswith(str(root)):
                process.kill()


@pytest.fixture
def run(runs_root) -> Run:
    return Run.create_empty(runs_root, "toy")
