"""Plans of clips: buckets over frames and sizes, a static count for each length, graphs, and seconds of video."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from backend.dataset.items import ClipReport, DatasetScan, Item, Scan, Window
from backend.plan.make_plan import make_plan
from backend.plan.memory.work import work_of, work_of_settings
from backend.plan.plan import Plan
from backend.plan.static_counts import padded_size, static_counts
from backend.plan.terminal import render
from backend.runs.events.kinds import PlanEvent
from backend.shapes.shape_runtime import ShapeRuntime
from gui.plans import for_page
from tests.tiny.clips import FAMILY, add_family
from tests.tiny.plan_items import config, items_of

GEOMETRY = replace(FAMILY.default_geometry, frame_step=4)
WIDE, TALL = (832, 480), (480, 832)


def clips_of(rows: Iterable[tuple[tuple[int, int], int]]) -> tuple[Item, ...]:
    """An item for each (size, frames); a picture where there is one frame."""
    rows = list(rows)
    items = items_of([size for size, _ in rows])
    return tuple(
        replace(item, window=Window(0.0, frames, 16.0) if frames > 1 else None)
        for item, (_, frames) in zip(items, rows, strict=True)
    )


def scan_of(rows: Iterable[tuple[tuple[int, int], int]]) -> DatasetScan:
    items = clips_of(rows)
    clips = [
        ClipReport(path=str(i.path), seconds=8.0, rate=16.0, frames=128, windows=(i.window,), used=i.window.seconds)
        for i in items
        if i.window is not None
    ]
    return DatasetScan(Scan(items, clips=tuple(clips)))


def plan_of(rows: Iterable[tuple[tuple[int, int], int]], **sections: Any) -> Plan:
    sections["dataset"] = {"resolution": 640, **sections.get("dataset", {})}
    sections["model"] = {"family": "clips"}
    return make_plan(config(**sections), scan_of(rows), GEOMETRY, FAMILY)


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    add_family(monkeypatch)


MIXED = [(WIDE, 81)] * 3 + [(TALL, 81)] * 3 + [(WIDE, 33)] * 4 + [(WIDE, 1), (TALL, 1)]


def test_buckets_hold_the_tokens_of_all_frames() -> None:
    plan = plan_of(MIXED, compile={"shape_mode": "off"})
    sizes = {(row["width"], row["height"], row.get("frames")): row for row in plan.bucket_rows()}
    assert set(sizes) == {(832, 480, 81), (480, 832, 81), (832, 480, 33), (832, 480, None), (480, 832, None)}
    assert sizes[832, 480, 81]["tokens"] == 32760 and sizes[832, 480, 33]["tokens"] == 14040
    assert sizes[832, 480, None]["tokens"] == 1560 and "seconds" not in sizes[832, 480, None]
    assert sizes[832, 480, 81]["seconds"] == pytest.approx(3 * 81 / 16, abs=0.01)


def test_batches_hold_clips_of_one_size_and_length() -> None:
    for mode in ("off", "dynamic", "exact_buckets", "static"):
        plan = plan_of(MIXED, compile={"shape_mode": mode}, dataset={"batch_size": 2})
        for epoch in range(3):
            for batch in plan.batches(epoch):
                buckets = [plan.fits[index].bucket for index in batch]
                assert len({bucket.frames for bucket in buckets}) == 1, mode
                if mode in ("off", "dynamic"):
                    assert len(set(buckets)) == 1


def test_static_has_a_count_for_each_length_and_a_graph_for_each_count() -> None:
    plan = plan_of(MIXED)
    budget = plan.static_token_counts[0]
    assert plan.static_token_counts == (budget, 9 * budget, 21 * budget) and plan.static_token_count == 21 * budget
    assert [shape.image_tokens for shape in plan.graphs.training] == list(plan.static_token_counts)
    assert 0 <= plan.chosen.padding < 0.05 and "become 3, one for clips of each length" in plan.reason
    fixed = plan_of(MIXED, compile={"compile_dynamic": "false"})
    assert fixed.graphs.training_graphs == 3 and fixed.graphs.unpadded == 3
    runtime = ShapeRuntime.from_plan(config(model={"family": "clips"}), plan, "cpu", torch.float32)
    for fit in plan.fits:
        assert runtime.image_size([fit.bucket.tokens]) == padded_size(fit.bucket.tokens, plan.static_token_counts)
    asked = plan_of(MIXED, compile={"static_token_count": 2000})
    assert asked.static_token_counts == (2000, 18000, 42000)


def test_pictures_alone_have_one_count_as_ever() -> None:
    plan = plan_of([(WIDE, 1), (TALL, 1), ((640, 640), 1)])
    assert len(plan.static_token_counts) == 1 and plan.graphs.training_graphs == 1
    assert [group.name for group in plan.chosen.groups] == ["all sizes"] and plan.footage is None
    assert "clips" not in plan.to_dict() and "frames" not in plan.bucket_rows()[0]


@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4000)), max_size=8),
    samples=st.lists(st.integers(1, 90_000), max_size=4),
    asked=st.none() | st.integers(1, 5000),
)
def test_every_row_is_held_by_the_least_count(
    rows: list[tuple[int, int]], samples: list[int], asked: int | None
) -> None:
    tokens = [(frames, frames * each) for frames, each in rows]
    counts = static_counts(asked, tokens, samples)
    assert list(counts) == sorted(set(counts))
    if asked is None:
        assert all(padded_size(each, counts) in counts for _, each in tokens)
        assert bool(counts) == bool(rows)
        # a sample between two counts is not padded to many times its size
        between = [each for each in samples if counts and counts[0] < each <= counts[-1]]
        assert all(padded_size(each, counts) <= each * 1.25 for each in between)


def test_seconds_used_and_left_out_are_in_plan_terminal_event_and_page() -> None:
    plan = plan_of(MIXED)
    used = (6 * 81 + 4 * 33) / 16
    words = f"10 windows of 10 clips: {used:.1f} s of video used, {80 - used:.1f} s left out"
    assert words in plan.lines()
    data = plan.to_dict()
    assert data["clips"] == {
        "clips": 10, "windows": 10, "used": round(used, 2), "dropped": round(80 - used, 2), "words": words
    }  # fmt: skip
    assert PlanEvent(**data).clips == data["clips"]
    console = Console(file=io.StringIO(), width=160)
    console.print(render(plan))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert words in text and "848x480x81" in text and f"{3 * 81 / 16:.1f} s" in text


def test_the_page_shows_frames_with_the_size() -> None:
    cfg = config(model={"family": "clips"}, dataset={"resolution": 640}, compile={"shape_mode": "off"})
    page = for_page(cfg, scan_of(MIXED))
    assert ("832×480×81", 3, False) in page["bars"] and ("832×480", 1, False) in page["bars"]
    assert "832 × 480 × 81" in page["bucket_of"].values()
    assert any("s of video used" in line for line in page["lines"])


def test_memory_counts_the_tokens_of_the_longest_clip_and_pixels_of_a_piece() -> None:
    plan = plan_of(MIXED, compile={"shape_mode": "off"})
    cfg = config(model={"family": "clips"}, dataset={"resolution": 640})
    work = work_of(cfg, plan)
    assert work.training.image == 32760 and work.largest_picture == 832 * 480 * 4
    long = config(model={"family": "clips"}, dataset={"resolution": 640}, video={"target_frames": [33, 81]})
    guess = work_of_settings(long, GEOMETRY, 512)
    assert guess.training.image == 1600 * 21 and guess.largest_picture == 640 * 640 * 4


def test_old_plans_of_events_still_open() -> None:
    event = PlanEvent(mode="static", static_token_count=4096)
    assert event.static_token_counts is None and event.clips is None


def test_a_set_count_holds_rows_of_sections_that_have_more_tokens() -> None:
    """A section's row has its start and what is behind it: more than its latent frames' tokens."""
    assert static_counts(100, [(10, 1190), (10, 1100)], []) == (1190,)
    assert static_counts(100, [(1, 90), (3, 290)], []) == (100, 300)
