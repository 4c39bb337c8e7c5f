"""A run's numbers for other programs. wandb is optional, so that its test runs only where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from accelerate import PartialState

from backend.config.schema import Config, with_values
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader, MetricsWriter
from backend.training.trackers import row_writer

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed: pip install wandb")
def test_numbers_of_a_run_are_written_for_weights_and_biases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Offline by the real package; where the server is out of reach, the run continues. No key is written anywhere."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr("backend.training.trackers._WAIT_S", 1)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    PartialState(cpu=True)
    wanted = {"wandb": True, "wandb_project": "foxes", "wandb_run_name": "the name", "wandb_entity": "den"}
    for mode in ("offline", "online"):
        values = {f"logging.{name}": value for name, value in {**wanted, "wandb_mode": mode}.items()}
        cfg = with_values(Config(), {"saving.output_dir": str(tmp_path), "saving.output_name": mode, **values})
        run = Run.create(cfg)
        with MetricsWriter(run) as metrics, ExitStack() as stack:
            write = row_writer(run, metrics, cfg, stack)
            for step in (1, 2):
                write(step, {"loss": 0.5 / step})
        assert MetricsReader(run).count() == 2
        (record,) = run.path.glob("wandb/*run-*/*.wandb")
        content = record.read_bytes()
        assert all(word in content for word in (b"foxes", b"the name", b"den", b"loss")) or mode == "online"
        assert Path(sys.executable).name.encode() not in content, "nothing of how and where it was started"
        assert not any(KEY.encode() in file.read_bytes() for file in run.path.rglob("*") if file.is_file())
    assert "Training continues without it" in caplog.text
