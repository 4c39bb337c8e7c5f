"""A row a step: written without stalling, read at the same time, downsampled without losing an extreme."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.runs.metrics import COLUMNS, MetricsReader, MetricsWriter
from tests.tiny.runs import eventually

ROOT = Path(__file__).resolve().parents[2]


def test_rows_come_back_as_written(run):
    with MetricsWriter(run) as writer:
        writer.add(1, loss=0.5, lr=1e-4, graphs=2, ram=3_000_000_000, epoch=0.5)
        writer.add(2, loss=float("nan"), grad_norm=float("inf"))
    reader = MetricsReader(run)
    assert reader.count() == 2
    first, second = reader.tail(5)
    assert (first["step"], first["generation"], first["loss"], first["lr"]) == (1, 0, 0.5, 1e-4)
    assert (first["graphs"], first["ram"], first["epoch"]) == (2, 3_000_000_000, 0.5)
    assert isinstance(first["graphs"], int) and first["vram_peak"] is None
    assert second["loss"] is None and second["grad_norm"] is None  # what JSON has no word for
    assert reader.last() == second
    json.dumps([first, second], allow_nan=False)


def test_nothing_there_reads_as_nothing(run):
    reader = MetricsReader(run)
    assert (reader.count(), reader.last(), reader.tail(3), reader.generations()) == (0, None, [], [])
    assert reader.range(columns=["loss"]) == {
        "step": [], "first": [], "generation": [], "size": 1, "loss": {"min": [], "max": [], "mean": []}
    }  # fmt: skip
    run.metrics_path.touch()
    assert reader.last() is None


def test_unknown_columns_are_refused(run):
    with MetricsWriter(run) as writer, pytest.raises(TypeError, match="losss"):
        writer.add(1, losss=1.0)
    with pytest.raises(ValueError, match="losss; known: loss,"):
        MetricsReader(run).range(columns=["losss"])
    with pytest.raises(ValueError, match="0 buckets"):
        MetricsReader(run).range(width=0)


def fill(path: Path, rows: list[tuple[int, float, float]]) -> None:
    """Put many rows in at once, below the writer's own schema."""
    MetricsWriter(path).close()
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO steps (step, generation, t, loss, vram_peak) VALUES (?, 0, 0, ?, ?)", rows)


def test_a_hundred_thousand_rows_keep_their_extremes(run):
    dice = random.Random(1)
    rows = [(step, dice.random(), dice.randrange(10**9)) for step in range(1, 100_001)]
    rows[70_000] = (70_001, 99.0, 7)  # one step's spike, and another's dip
    rows[31_415] = (31_416, -5.0, 2 * 10**9)
    fill(run.metrics_path, rows)
    series = MetricsReader(run).range(width=800, columns=["loss", "vram_peak", "lr"])
    assert 400 < len(series["step"]) <= 800 and series["size"] == 128
    assert series["step"][-1] == 100_000 and series["first"][0] == 1
    for position, (first, last) in enumerate(zip(series["first"], series["step"], strict=True)):
        inside = rows[first - 1 : last]
        for name, column in (("loss", 1), ("vram_peak", 2)):
            values = [row[column] for row in inside]
            assert series[name]["min"][position] == min(values)
            assert series[name]["max"][position] == max(values)
            assert series[name]["mean"][position] == pytest.approx(sum(values) / len(values))
    assert max(series["loss"]["max"]) == 99.0 and min(series["loss"]["min"]) == -5.0
    assert set(series["lr"]["mean"]) == {None}
    assert len(json.dumps(series)) < 200_000


def test_buckets_stay_where_they_are_while_a_run_grows(run):
    fill(run.metrics_path, [(step, float(step), 0) for step in range(1, 1001)])
    reader = MetricsReader(run)
    whole = reader.range(width=100, columns=["loss"])
    part = reader.range(since=whole["first"][40], width=whole["size"] * 100, columns=["loss"])
    assert whole["size"] == 16 and part["size"] == 1
    earlier = reader.range(until=900, width=100, columns=["loss"])
    assert earlier["size"] == 16 and earlier["step"][:-1] == whole["step"][: len(earlier["step"]) - 1]
    assert reader.range(since=1001, columns=["loss"])["step"] == []


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.integers(0, 5000), unique=True, min_size=1, max_size=80),
    width=st.integers(1, 60),
    since=st.integers(0, 5000),
)
def test_every_row_is_in_one_bucket(tmp_path_factory, steps, width, since):
    path = tmp_path_factory.mktemp("buckets") / "m.sqlite"
    fill(path, [(step, float(step), 0) for step in steps])
    series = MetricsReader(path).range(since=since, width=width, columns=["loss"])
    assert len(series["step"]) <= width
    kept = sorted(step for step in steps if step >= since)
    spans = list(zip(series["loss"]["min"], series["loss"]["max"], strict=True))
    assert [step for step in kept if sum(low <= step <= high for low, high in spans) != 1] == []
    assert (not kept and not spans) or (spans[0][0], spans[-1][1]) == (kept[0], kept[-1])


WRITER = """
import os, signal, sys, time
from backend.runs.metrics import MetricsWriter
writer = MetricsWriter(sys.argv[1], commit_every_s=0.01)
for step in range(1, int(sys.argv[2]) + 1):
    writer.add(step, loss=step / 2)
    time.sleep(0.0005)
writer.close() if sys.argv[3] == "close" else (writer.flush(), os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_reader_reads_while_another_process_writes(run):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(run.metrics_path), "2000", "close"], cwd=ROOT)
    reader, counts = MetricsReader(run), set()
    while process.poll() is None:
        rows = reader.tail(5000)
        counts.add(len(rows))
        assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
        assert all(row["loss"] == row["step"] / 2 for row in rows)
    assert process.returncode == 0
    assert len(counts) > 3, "the reader never saw the series half done"
    assert reader.count() == 2000


def test_a_killed_writer_leaves_what_was_flushed(run):
    killed = subprocess.run([sys.executable, "-c", WRITER, str(run.metrics_path), "300", "kill"], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert MetricsReader(run).count() == 300
    with MetricsWriter(run, generation=1, start_step=200) as writer:
        writer.add(201, loss=1.0)
    assert MetricsReader(run).count() == 201


def test_rows_wait_for_a_busy_file_and_add_does_not(run):
    with MetricsWriter(run, commit_every_s=0.01) as writer:
        holder = sqlite3.connect(run.metrics_path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        for step in range(1, 1001):
            writer.add(step, loss=0.0)
        assert not writer.flush(timeout_s=0.1)
        holder.execute("ROLLBACK")
        holder.close()
        assert writer.flush(timeout_s=60)
        assert MetricsReader(run).count() == 1000


def test_a_disk_that_is_full_for_a_while_costs_no_row(run, caplog):
    with MetricsWriter(run, commit_every_s=0.01) as writer:
        commit, refuse = writer._commit, [True]

        class Refusing:
            def __init__(self, connection):
                self.connection = connection

            def __getattr__(self, name):
                return getattr(self.connection, name)

            def __enter__(self):
                if refuse[0]:
                    raise sqlite3.OperationalError("database or disk is full")
                return self.connection.__enter__()

            def __exit__(self, *error):
                return self.connection.__exit__(*error)

        writer._commit = lambda connection: commit(Refusing(connection))
        for step in range(1, 11):
            writer.add(step, loss=1.0)
        assert not writer.flush(timeout_s=0.1)
        eventually(lambda: "database or disk is full" in caplog.text, "the refusal is logged")
        refuse[0] = False
        assert writer.flush(timeout_s=60)
    assert MetricsReader(run).count() == 10
    assert caplog.text.count("can't be written") == 1


def test_a_resume_is_a_new_generation_in_one_series(run):
    with MetricsWriter(run) as writer:
        for step in range(1, 51):
            writer.add(step, loss=1.0)
    with MetricsWriter(run, generation=1, start_step=40) as writer:
        for step in range(41, 61):
            writer.add(step, loss=2.0)
    with MetricsWriter(run, generation=2, start_step=55) as writer:
        writer.add(56, loss=3.0)
    rows = MetricsReader(run).tail(1000)
    assert [row["step"] for row in rows] == list(range(1, 57))
    assert [row["generation"] for row in rows] == [0] * 40 + [1] * 15 + [2]
    assert [row["loss"] for row in rows] == [1.0] * 40 + [2.0] * 15 + [3.0]
    series = MetricsReader(run).range(width=4, columns=["loss"])
    assert series["generation"][-1] == 2 and series["step"][-1] == 56
    assert [(g["generation"], g["start_step"]) for g in MetricsReader(run).generations()] == [(0, 0), (1, 40), (2, 55)]
    # What was overtaken is set aside, not destroyed.
    with sqlite3.connect(run.metrics_path) as connection:
        aside = connection.execute("SELECT step, generation FROM discarded ORDER BY generation, step").fetchall()
    assert aside == [(n, 0) for n in range(41, 51)] + [(n, 1) for n in range(56, 61)]


def test_a_file_of_an_older_version_is_read_and_continued(run):
    with sqlite3.connect(run.metrics_path) as connection:
        connection.execute("CREATE TABLE steps (step INTEGER PRIMARY KEY, generation INTEGER, t REAL, loss REAL)")
        connection.execute("INSERT INTO steps VALUES (1, 0, 5.0, 0.25)")
    reader = MetricsReader(run)
    assert reader.last() == dict.fromkeys(COLUMNS) | {"step": 1, "generation": 0, "t": 5.0, "loss": 0.25}
    assert reader.range(columns=["lr", "loss"])["lr"]["mean"] == [None]
    with MetricsWriter(run, generation=1, start_step=1) as writer:
        writer.add(2, lr=0.5)
    assert [row["lr"] for row in reader.tail(2)] == [None, 0.5]


def test_a_broken_file_is_kept_aside(run, caplog):
    run.metrics_path.write_bytes(b"this is no database, whatever its name says" * 100)
    assert MetricsReader(run).count() == 0
    with MetricsWriter(run) as writer:
        writer.add(1, loss=1.0)
    assert MetricsReader(run).count() == 1
    assert len(list(run.path.glob("metrics-broken-*.sqlite"))) == 1 and "is broken" in caplog.text


@pytest.mark.parametrize("name", ["a?b#c%20.sqlite", "ü [1] & 'x'.sqlite"])
def test_any_path(tmp_path, name):
    with MetricsWriter(tmp_path / name) as writer:
        writer.add(1, loss=1.0)
    assert MetricsReader(tmp_path / name).count() == 1
    assert all(path.name.startswith(name) for path in tmp_path.iterdir())
