"""Clips on the Dataset tab: one strip for each, its windows and what is left out, from a scan of real files."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from backend.dataset.items import ClipReport, Window
from gui import form
from gui.clip_strips import clip_facts, frame_times
from tests.gui.conftest import Page
from tests.tiny.clips import grey_of, write_clip

RATE = 16.0


def report(seconds: float, *windows: tuple[float, int]) -> ClipReport:
    cut = tuple(Window(start, frames, RATE) for start, frames in windows)
    return ClipReport(path="a.mp4", seconds=seconds, rate=24.0, frames=1, windows=cut, used=0.0)


def test_what_is_in_no_window_is_dropped() -> None:
    shown = clip_facts(report(4.0, (2.0, 16), (0.5, 8), (0.75, 8)))
    assert [(part["start"], part["end"]) for part in shown["dropped"]] == [(0.0, 0.5), (1.25, 2.0), (3.0, 4.0)]
    assert [window["start"] for window in shown["windows"]] == [0.5, 0.75, 2.0]
    assert (shown["lengths"], shown["count"], shown["taken_rate"]) == ([8, 16], 3, 16.0)
    # a rounded end is no part that is left out, and no window reaches beyond the clip
    whole = clip_facts(report(0.99, (0.0, 16)))
    assert whole["dropped"] == [] and whole["windows"][0]["end"] == 0.99
    many = clip_facts(report(99.0, *((number / 16, 9) for number in range(500))))
    assert (len(many["windows"]), many["count"]) == (120, 500)


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 33)), min_size=1, max_size=12), st.floats(0.1, 12))
def test_each_moment_is_in_a_window_or_dropped(windows: list[tuple[float, int]], seconds: float) -> None:
    shown = clip_facts(report(seconds, *windows))
    assert len(shown["windows"]) == shown["count"] == len(windows)
    spans = [(start, start + frames / RATE) for start, frames in windows]
    for part in shown["dropped"]:
        assert 0 <= part["start"] < part["end"] <= seconds
        middle = (part["start"] + part["end"]) / 2
        assert not any(start < middle < end for start, end in spans)
    covered = sum(part["end"] - part["start"] for part in shown["dropped"])
    moments = np.linspace(0, seconds, 2001)
    free = [not any(start <= moment <= end for start, end in spans) for moment in moments]
    # parts of less than half a frame are left out of the list
    assert abs(np.mean(free) * seconds - covered) <= 0.5 / RATE * (len(windows) + 1) + seconds / 1000


@given(st.integers(16, 4096), st.integers(16, 4096), st.floats(0.05, 9999))
def test_a_strip_has_frames_over_the_whole_clip(width: int, height: int, seconds: float) -> None:
    times = frame_times(seconds, width, height)
    assert 4 <= len(times) <= 24 and times == sorted(times) and times[0] > 0 and times[-1] < seconds


def test_the_page_shows_a_strip_for_each_clip_and_edits_its_caption_once(
    page: Page, application: Any, image_folder: Path
) -> None:
    write_clip(image_folder / "walk.mp4", frames=25, rate=16)
    (image_folder / "walk.txt").write_text("a grey walk", encoding="utf-8")
    application.state.draft.keep(
        form.defaults()
        | {
            "saving.output_dir": str(page.runs),
            "model.family": "wan",
            "dataset.folders": [{"path": str(image_folder)}],
            "video.target_frames": "9",
            "video.frame_extraction": "chunk",
        }
    )
    assert page.client.post("/scan").status_code == 200
    end = time.monotonic() + 60
    while (state := page.client.get("/scan").json())["state"] == "running" and time.monotonic() < end:
        time.sleep(0.05)
    counts = state["result"]["counts"]
    assert (counts["images"], counts["clips"], counts["windows"], counts["with_caption"]) == (8, 1, 2, 9)
    answer = page.client.get("/scan/items").json()
    assert [item["clip"] is None for item in answer["items"]] == [True] * 8 + [False]
    clip = answer["items"][-1]
    assert clip["name"] == "walk.mp4" and [part["start"] for part in clip["clip"]["windows"]] == [0.0, 0.5625]
    assert [round(part["start"], 4) for part in clip["clip"]["dropped"]] == [1.125]

    query = {"scan": answer["scan"], "item": clip["index"]}
    sent = page.client.get("/strip", params=query)
    assert (sent.status_code, sent.headers["content-type"]) == (200, "image/jpeg")
    strip = np.asarray(Image.open(io.BytesIO(sent.content)).convert("L")).astype(float)
    times = frame_times(25 / 16, 64, 48)
    assert strip.shape == (48, 64 * len(times))
    shown = [strip[:, 64 * place : 64 * place + 64].mean() for place in range(len(times))]
    assert all(abs(grey - grey_of(int(moment * 16))) < 4 for grey, moment in zip(shown, times, strict=True))
    assert page.client.get("/strip", params={**query, "item": 0}).status_code == 404
    assert page.client.get("/strip", params={**query, "scan": answer["scan"] + 1}).status_code == 404
    small = page.client.get("/thumb", params=query)
    assert abs(np.asarray(Image.open(io.BytesIO(small.content)).convert("L")).mean() - grey_of(0)) < 4

    page.client.post("/scan/caption", json={"scan": answer["scan"], "item": clip["index"], "text": "a run"})
    assert (image_folder / "walk.txt").read_text(encoding="utf-8") == "a run"
    assert page.client.get("/scan/items").json()["items"][-1]["caption"] == "a run"
