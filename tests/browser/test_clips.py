"""Samples of video models on the page: they play, show their frames, and stay as they are while others come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from backend.runs.events import EventWriter
from backend.runs.events.kinds import SampleEvent
from backend.runs.folder import Run
from backend.runs.samples import sheet_of
from backend.training.sample_clips import write_clip
from tests.browser.conftest import Server, Watched, go_to, load_preset, tab, type_in, wait_for
from tests.gui.conftest import make_run

PLAYS = """(video) => !video.paused && video.currentTime > 0.1 && video.videoWidth > 0"""
# Minutes, where two cores also run the other half of the tests.
TRAINING_MS = 240_000
TEXTS = {"parameters": "a ball", "monotile": "{}"}


@pytest.fixture
def run(server: Server) -> Iterator[Run]:
    """A finished run with three sample clips of one prompt and two pictures of another, as the trainer writes them."""
    made = make_run(server.runs, "clips")
    for step in (0, 10, 20):
        draw(made, step)
    yield made


def draw(run: Run, step: int) -> None:
    """Write the clip of a step: a bright bar that moves, 2 s long."""
    frames = [np.full((96, 160, 3), 40 + step * 4, np.uint8) for _ in range(33)]
    for number, frame in enumerate(frames):
        frame[:, number * 4 : number * 4 + 20] = (250, 220, 40)
    path = run.samples_dir / f"step{step:08d}-1.mp4"
    write_clip(path, frames, 16.0, TEXTS)
    names = {"file": f"samples/{path.name}", "sheet": f"samples/{sheet_of(path).name}"}
    EventWriter(run).write(SampleEvent(step=step, prompt_index=1, prompt="a bar moves", **names))


def show(page: Page, run: Run) -> None:
    # the form's folder is one of those whose runs are listed
    type_in(page, "saving.output_dir", str(run.path.parent))
    tab(page, "Run")
    page.select_option("#run-picker", run.name)
    expect(page.locator("#samples video")).to_have_count(3)
    page.locator("#samples video").last.scroll_into_view_if_needed()
    # their frames are there, and nothing moves any more
    page.wait_for_function("""() => [...document.querySelectorAll("#samples video")].every((v) => v.poster
      && Math.abs(v.offsetWidth / v.offsetHeight - 160 / 96) < 0.05)""")


def test_a_clip_plays_and_goes_on_while_the_panel_is_drawn_again(watched: Watched, run: Run) -> None:
    page = watched.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if ".mp4" in request.url else None)
    show(page, run)
    last = page.locator("#samples video").last
    expect(last).to_have_attribute("poster", f"{watched.server.url}image?run={run.name}&file=step00000020-1.sheet.png")
    assert asked == [], "a clip is asked for before somebody plays it"
    state = last.evaluate("v => [v.muted, v.loop, v.controls, v.preload, v.paused]")
    assert state == [True, True, True, "none", True]
    last.evaluate("v => v.play()")
    handle = last.element_handle()
    page.wait_for_function(PLAYS, arg=handle)
    assert last.evaluate("v => [v.videoWidth, v.videoHeight, Math.round(v.duration * 16)]") == [160, 96, 33]
    # a place that was not loaded yet needs a part of the file
    last.evaluate("v => { v.pause(); v.currentTime = 1.5; }")
    page.wait_for_function("v => !v.seeking && Math.abs(v.currentTime - 1.5) < 0.1", arg=handle)
    last.evaluate("v => v.play()")
    page.wait_for_function(PLAYS, arg=handle)

    draw(run, 30)
    expect(page.locator("#samples video")).to_have_count(4)
    assert handle.evaluate("v => v.isConnected && !v.paused"), "a new sample stopped the one that played"
    page.reload()
    watched.ready()
    expect(page.locator("#samples video")).to_have_count(4)
    expect(page.locator("#samples img")).to_have_count(1)


def test_an_enlarged_clip_plays_at_once_with_its_frames_beside_it(watched: Watched, run: Run) -> None:
    page = watched.page
    show(page, run)
    page.locator("#samples").get_by_role("button", name="Enlarge a bar moves, step 10").click()
    box = page.locator("dialog")
    page.wait_for_function(PLAYS, arg=box.locator("video").element_handle())
    wait_for(lambda: box.locator("img").evaluate("i => i.naturalWidth") == 3 * 160, 10)
    box.get_by_role("button", name="Next →").click()
    expect(box).to_contain_text("Step 20")
    expect(box.locator("video")).to_have_attribute("aria-label", "a bar moves, step 20")
    box.get_by_role("button", name="Next →").click()
    expect(box).to_contain_text("Before training")
    page.keyboard.press("Escape")
    tab(page, "Library")
    expect(page.locator(f"[data-run='{run.name}'] img, .library img").first).to_be_visible()


def test_on_a_narrow_page_nothing_overflows(chromium: Browser, server: Server, run: Run, tmp_path: Path) -> None:
    context = chromium.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    watched = Watched(context.new_page(), server)
    page = watched.open()
    assert page.evaluate("document.body.classList.contains('dark')")
    show(page, run)
    page.locator("#samples").get_by_role("button", name="Enlarge a bar moves, step 0").click()
    page.wait_for_function(PLAYS, arg=page.locator("dialog video").element_handle())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    width = page.locator("dialog").evaluate("d => d.scrollWidth - d.clientWidth")
    assert width <= 1
    context.close()


def choose_quick_video_demo(page: Page, server: Server) -> None:
    """The video demo's preset, made short: few steps, one sample, uncompiled, in the tests' own folder."""
    load_preset(page, "demo-video")
    type_in(page, "dataset.cache_dir", str(server.folder / "cache"))
    type_in(page, "training.max_train_steps", "3")
    type_in(page, "saving.output_dir", str(server.runs))
    go_to(page, "sampling.prompts")
    page.locator("#f-sampling-prompts").get_by_label("Remove").last.click()
    page.locator("#f-sampling-prompts [data-column=steps] input").fill("2")
    page.locator("#f-sampling-prompts [data-column=steps] input").blur()
    go_to(page, "compile.compile")
    page.locator("#f-compile-compile input").uncheck()
    page.wait_for_function("window.monotile.state.draft.changedFromDefault.includes('compile.compile')")


@pytest.mark.slow
def test_the_video_demo_from_its_strips_to_a_sample_that_plays(watched: Watched, server: Server) -> None:
    page = watched.page
    choose_quick_video_demo(page, server)
    tab(page, "Dataset")
    expect(page.locator("#f-video-target_frames")).to_be_visible()
    page.click("[data-scan=scan]")
    strips = page.locator("#thumbs .clip-strip")
    expect(strips).to_have_count(7)
    robot = page.locator("figure.thumb.clip", has_text="robot-hops.mp4")
    robot.scroll_into_view_if_needed()
    page.wait_for_function("f => f.querySelector('img').naturalWidth > 100", arg=robot.element_handle())
    # 38 frames hold four pieces of 9, and two of 17 on a line of their own
    expect(robot.locator(".clip-lane")).to_have_count(2)
    expect(robot.locator(".clip-window")).to_have_count(6)
    expect(robot.locator(".clip-dropped")).to_have_count(1)
    frames, window = (robot.locator(name).first.bounding_box() for name in (".clip-frames", ".clip-window"))
    assert frames is not None and window is not None
    assert abs(window["width"] / frames["width"] - (9 / 16) / (38 / 16)) < 0.02

    page.keyboard.press("Control+Enter")
    page.wait_for_function("window.monotile.currentTab() === 'Run'")
    expect(page.locator("#run-picker")).to_have_value(server.newest().name)
    expect(page.locator("#run-state")).to_have_text("Finished", timeout=TRAINING_MS)
    videos = page.locator("#samples video")
    expect(videos).to_have_count(2)
    videos.last.scroll_into_view_if_needed()
    expect(videos.last).to_have_attribute("poster", re.compile(r"sheet\.png$"))
    videos.last.evaluate("v => v.play()")
    page.wait_for_function(PLAYS, arg=videos.last.element_handle())
    assert videos.last.evaluate("v => [v.videoWidth, v.videoHeight, Math.round(v.duration * 16)]") == [96, 64, 17]


def test_a_family_shows_only_settings_that_apply(forgetful: Watched) -> None:
    page = forgetful.page
    tab(page, "Dataset")
    expect(page.locator("#f-video-target_frames")).to_be_hidden()
    go_to(page, "sampling.prompts")
    page.locator("#f-sampling-prompts").get_by_text("+ Add", exact=True).click()
    frames = page.locator("#f-sampling-prompts [data-column=frames]")
    expect(frames).to_be_hidden()
    load_preset(page, "demo-video")
    go_to(page, "sampling.prompts")
    expect(frames.first).to_be_visible()
    expect(page.locator("#f-sampling-prompts [data-column=control_image]").first).to_be_hidden()
    expect(page.locator("#f-sampling-prompts [data-column=guidance_scale]").first).to_be_hidden()
    tab(page, "Dataset")
    expect(page.locator("#f-video-target_frames")).to_be_visible()
    expect(page.locator("#f-dataset-folders [data-column=control_path]").first).to_be_hidden()
