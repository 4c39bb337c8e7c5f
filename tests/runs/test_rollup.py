"""The curve that grows with a run says what reading all of its rows would."""

from __future__ import annotations

import random

import pytest

from backend.runs.metrics import MetricsReader, MetricsWriter
from backend.runs.rollup import Rollup

COLUMNS = ("loss", "ram", "lr")


def assert_same(series, whole):
    assert {key: series[key] for key in ("step", "first", "generation", "size")} == {
        key: whole[key] for key in ("step", "first", "generation", "size")
    }
    for name in COLUMNS:
        assert series[name]["min"] == whole[name]["min"] and series[name]["max"] == whole[name]["max"]
        assert series[name]["mean"] == pytest.approx(whole[name]["mean"])


def joined(before, news):
    """What the page does with an answer (assets/js/chart.js)."""
    if "from" not in news:
        return news
    kept = sum(first < news["from"] for first in before["first"])
    both = {key: [*before[key][:kept], *news[key]] for key in ("step", "first", "generation")}
    both |= {
        name: {kind: [*before[name][kind][:kept], *news[name][kind]] for kind in ("min", "max", "mean")}
        for name in COLUMNS
    }
    return both | {"size": news["size"]}


def test_what_is_new_joined_to_what_was_sent_is_the_whole(run):
    dice = random.Random(3)
    reader, rollup = MetricsReader(run), Rollup(MetricsReader(run), COLUMNS)
    shown, mark, sent = {}, None, 0
    assert rollup.series(50)[0]["step"] == []
    with MetricsWriter(run) as writer:
        step = 0
        for _ in range(40):
            for _ in range(dice.choice([0, 1, 1, 7, 60, 3000])):
                step += 1
                writer.add(step, loss=dice.random() if dice.random() > 0.1 else None, ram=dice.randrange(10**9))
            writer.flush()
            news, mark = rollup.series(50, mark)
            shown, sent = joined(shown, news), sent + len(news["step"])
            assert_same(shown, reader.range(width=50, columns=COLUMNS))
    again, same_mark = rollup.series(50, mark)
    assert same_mark == mark and len(again["step"]) <= 1
    assert_same(rollup.series(7)[0], reader.range(width=7, columns=COLUMNS))


def test_a_resume_takes_back_what_was_overtaken(run):
    reader, rollup, mark = MetricsReader(run), Rollup(MetricsReader(run), COLUMNS), None
    with MetricsWriter(run) as writer:
        for step in range(1, 301):
            writer.add(step, loss=1.0)
    shown, mark = rollup.series(50, mark)
    with MetricsWriter(run, generation=1, start_step=200) as writer:
        news, mark = rollup.series(50, mark)
        assert "from" not in news
        assert_same(news, reader.range(width=50, columns=COLUMNS))
        for step in range(201, 301):  # as many again, so that only the generation tells
            writer.add(step, loss=2.0)
        writer.flush()
        assert_same(joined(news, rollup.series(50, mark)[0]), reader.range(width=50, columns=COLUMNS))


def test_a_long_run_is_read_once(run, monkeypatch):
    with MetricsWriter(run) as writer:
        for step in range(1, 20_001):
            writer.add(step, loss=1.0)
    rollup = Rollup(MetricsReader(run), COLUMNS)
    _, mark = rollup.series(100)
    asked = []
    buckets = rollup.reader.buckets
    monkeypatch.setattr(rollup.reader, "buckets", lambda *arguments: asked.append(arguments[:2]) or buckets(*arguments))
    with MetricsWriter(run, generation=0, start_step=20_000) as writer:
        writer.add(20_001, loss=3.0)
        writer.flush()
        rollup.series(100, mark)  # the start is a new one: all is read
        _, mark = rollup.series(100)
        asked.clear()
        writer.add(20_002, loss=4.0)
        writer.flush()
        news, _ = rollup.series(100, mark)
    assert asked == [(20_002, 20_002)]
    assert len(news["step"]) == 1 and news["loss"]["max"] == [4.0]
