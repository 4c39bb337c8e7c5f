"""One folder of nonsense among the runs: it is shown as what it is, and everything else works."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI
from rich.console import Console
from starlette.testclient import TestClient

from backend.runs import metrics
from backend.runs.cli import show_status
from backend.runs.folder import Run, list_runs
from backend.runs.status_reader import statuses
from gui import run_view
from tests.gui.conftest import ADDRESS, Page, make_run

ODD_FIELDS = [None, "z", [], {}, -1, 10**400, True, 1e308, float("nan"), "\x00", {"a": {"b": []}}]
FIELDS = ("pid", "create_time", "boot", "ticks", "host", "start", "starter", "started", "created", "state", "ended",
          "exit_code", "stop_asked", "stop_rung", "error", "result", "generation", "generation_step", "events_offset",
          "log_offset", "command", "total_steps", "v", "name")  # fmt: skip
KINDS = ("phase", "step_total", "state", "warning", "error", "stopped", "plan", "validation", "compile", "cuda_graphs",
         "recompile", "graph_break", "sample", "checkpoint", "memory_estimate", "swap", "memory_peak", "done",
         "resumed")  # fmt: skip
EVENT_FIELDS = ("phase", "done", "total", "eta_s", "text", "remedy", "step", "file", "prompt_index", "lora", "graph",
                "state", "compiling", "exception", "cause")  # fmt: skip


def record_of(value: object) -> Callable[[Path], object]:
    return lambda folder: (folder / "run.json").write_text(json.dumps(dict.fromkeys(FIELDS, value)))


def events_of(value: object) -> Callable[[Path], object]:
    lines = [json.dumps({**dict.fromkeys(EVENT_FIELDS, value), "v": 1, "t": 1.0, "kind": kind}) for kind in KINDS]
    return lambda folder: (folder / "events.jsonl").write_text("\n".join(lines) + "\n")


def endless(folder: Path) -> None:
    """A view that never ends, in place of the table."""
    (folder / "metrics.sqlite").unlink()
    with sqlite3.connect(folder / "metrics.sqlite") as connection:
        connection.execute(
            "CREATE VIEW steps AS WITH RECURSIVE n(step) AS (SELECT 1 UNION ALL SELECT step + 1 FROM n) "
            "SELECT step, 0 AS generation, 0.0 AS t, 1.0 AS loss FROM n"
        )
        connection.execute("CREATE TABLE generations (generation, start_step, t)")


def texts(folder: Path) -> None:
    """Words where numbers should be, as sqlite allows."""
    with sqlite3.connect(folder / "metrics.sqlite") as connection:
        connection.execute("UPDATE steps SET loss = 'x', s_per_step = X'00ff', generation = 'y', ram = 9e999")


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


DAMAGE: dict[str, Callable[[Path], object]] = {
    **{f"record of {str(value)[:12]!r}": record_of(value) for value in ODD_FIELDS},
    **{f"events of {str(value)[:12]!r}": events_of(value) for value in ODD_FIELDS},
    "record as reported": lambda f: (f / "run.json").write_text('{"started":"z","v":1}'),
    "event as reported": lambda f: (f / "events.jsonl").write_text('{"v":1,"t":1,"kind":"phase","phase":["x"]}\n'),
    "deep record": lambda f: (f / "run.json").write_text("[" * 100_000),
    "deep event": lambda f: (f / "events.jsonl").write_text("[" * 100_000 + "\n"),
    "event beyond time": lambda f: (f / "events.jsonl").write_text('{"v":1,"t":1e999,"kind":"done","loss":1e999}\n'),
    "record in bytes": lambda f: (f / "run.json").write_bytes(bytes(range(256))),
    "endless metrics": endless,
    "metrics of words": texts,
    **{
        f"{name} as {kind}": replaced(name, make)
        for name in ("run.json", "events.jsonl", "log.txt", "metrics.sqlite", "alive")
        for kind, make in (("folder", os.mkdir), ("pipe", os.mkfifo), ("loop", lambda p: os.symlink(p, p)))
    },
    "files for folders": lambda f: [(f / n).rmdir() or (f / n).write_text("x") for n in ("control", "state")],
    "state without an end": lambda f: (f / "state" / "latest").write_bytes(b"\xff\x00../.." * 50),
}


@pytest.fixture
def odd(page: Page, monkeypatch: pytest.MonkeyPatch) -> Page:
    """A folder of each kind, and a good run among them."""
    monkeypatch.setattr(metrics, "QUERY_S", 0.2)
    good = make_run(page.runs, name="good", steps=3)
    for number, damage in enumerate(DAMAGE.values()):
        run = Run.create_empty(page.runs, f"odd{number:02d}")
        for source in (good.metrics_path, good.config_path, good.events_path, good.log_path):
            (run.path / source.name).write_bytes(source.read_bytes())
        damage(run.path)
    strange = os.fsencode(page.runs) + b"/\xff\xfe-run"
    os.mkdir(strange)
    Path(os.fsdecode(strange), "run.json").write_text("{}")
    return page


def test_the_page_and_the_terminal_stay_up(odd: Page, application: FastAPI) -> None:
    begun = time.monotonic()
    with TestClient(application, base_url=ADDRESS) as client:  # the start of the page puts records right
        runs = {run["name"]: run for run in client.get("/runs").json()["runs"]}
        good = next(run for name, run in runs.items() if name.startswith("good"))
        assert (good["state"], good["step"]) == ("done", 3)
        # a record that is no file, or endless, makes the folder one that the page can't know from another
        assert len(runs) >= len(DAMAGE) - 3
        for name in runs:
            answer = client.get("/live", params={"run": name, "log_offset": 0})
            assert answer.status_code in (200, 404), (name, answer.text)
            assert client.get("/live", params={"run": name, "since": 1, "until": 2}).status_code in (200, 404), name
        assert client.get("/library").status_code == 200
    states = statuses(list_runs(odd.runs))
    assert all(status.text and status.to_dict() for status in states)
    for as_json in (False, True):
        with open(os.devnull, "w", encoding="utf-8", errors="replace") as nowhere:
            assert show_status(odd.runs, None, Console(file=nowhere), as_json) == 0
    assert time.monotonic() - begun < 60


def test_an_endless_query_is_given_up_and_not_tried_again_at_once(odd: Page) -> None:
    number = list(DAMAGE).index("endless metrics")
    run = next(run for run in list_runs(odd.runs) if run.name.startswith(f"odd{number:02d}"))
    follower = run_view.RunView(run)
    follower.status()
    begun = time.monotonic()
    for _ in range(20):
        follower.series(100, 0, None, None)
        follower.metrics.count()
    assert time.monotonic() - begun < 5
