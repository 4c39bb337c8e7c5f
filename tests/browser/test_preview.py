"""The Preview tab: a matrix of a run's checkpoints, drawn by its worker, equal to what the command draws."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, expect
from rich.console import Console

from backend.config.load import load
from backend.config.schema import SamplePrompt
from backend.preview.matrix import write_matrix
from backend.runs.folder import Run
from backend.runs.preview import process
from backend.runs.preview.folder import PreviewFolder
from backend.runs.preview.request import PreviewRequest, Row
from backend.training.sample_clips import write_clip
from tests.browser.conftest import Server, Watched, few_pictures, load_preset, tab, type_in, wait_for
from tests.tiny.previews import settings

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = ["a big zorbl in a green meadow", "a blue house in the desert"]
DRAWING_MS = 240_000


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose worker ends with these tests."""
    server = Server(tmp_path_factory.mktemp("preview")).start()
    yield server
    server.end()
    process.end(PreviewFolder.of_page(server.folder / "page"))


@pytest.fixture
def held(chromium: Browser, own_server: Server) -> Iterator[Watched]:
    """An open page of that server."""
    context = chromium.new_context(viewport={"width": 1280, "height": 1000})
    watched = Watched(context.new_page(), own_server)
    watched.open()
    yield watched
    assert watched.foreign() == [] and watched.said == []
    context.close()


def train(server: Server) -> Run:
    """The demo in 6 steps, here, saved every 2. Its blocks are traced, not compiled: what is counted is the same."""
    few = {name: few_pictures(server, name).as_posix() for name in ("concept", "held-out-concept")}
    changes = {
        "dataset.folders": f'[{{path = "{few["concept"]}"}}]',
        "dataset.resolution": "128",
        "validation.validation_folders": f'[{{path = "{few["held-out-concept"]}", name = "concept"}}]',
        "dataset.cache_dir": str(server.folder / "cache"),
        "training.max_train_steps": "6",
        "saving.save_every_n_steps": "2",
        "saving.output_dir": str(server.runs),
        "compile.compile_backend": "eager",
        "sampling.prompts": "[]",
        "validation.validation_sigmas": "[0.2]",
        "validation.validation_repeats": "1",
        "validation.validate_at_start": "false",
        "network.targets_include": '["attn.to_q"]',
    }
    loaded = load(ROOT / "presets" / "demo.toml", changes)
    assert loaded.config is not None, [problem.sentence() for problem in loaded.problems]
    # here, since transformers takes seconds to import
    from tests.tiny.training import train_here

    run, code = train_here(loaded.config)
    assert code == 0, run.status().error
    return run


# Before those that train: its server has no run yet.
def test_an_image_to_start_from_is_sent_from_the_browser(held: Watched, own_server: Server, tmp_path: Path) -> None:
    page = held.page
    Image.new("RGB", (20, 10), "red").save(tmp_path / "start.png")
    tab(page, "Preview")
    expect(page.locator("#preview-source")).to_have_value("")
    for shown in ("#preview-control-1", "#preview-frames"):
        expect(page.locator(shown)).to_be_hidden()
    load_preset(page, "wan_i2v-24gb")
    tab(page, "Run")
    tab(page, "Preview")
    expect(page.locator("#preview-control-1")).to_be_visible()
    expect(page.locator("#preview-control-2")).to_be_hidden()
    expect(page.locator("#preview-frames")).to_be_visible()
    with page.expect_file_chooser() as chooser:
        page.locator(".preview-control button").first.click()
    chooser.value.set_files(tmp_path / "start.png")
    kept = PreviewFolder.of_page(own_server.folder / "page").controls_dir
    expect(page.locator("#preview-control-1")).to_have_value(re.compile(re.escape(str(kept))))
    assert [path.read_bytes() for path in kept.iterdir()] == [(tmp_path / "start.png").read_bytes()]


@pytest.mark.slow
def test_a_matrix_of_checkpoints_is_drawn_and_equals_the_command(held: Watched, own_server: Server) -> None:
    from backend.preview.__main__ import main

    run, page = train(own_server), held.page
    assert [each.step for each in run.checkpoints()] == [2, 4, 6]
    type_in(page, "saving.output_dir", str(own_server.runs))
    tab(page, "Preview")
    expect(page.locator("#preview-source")).to_have_value(run.name)
    page.fill("#preview-prompts", "\n".join(PROMPTS))
    for name, value in {"width": 96, "height": 80, "steps": 3, "guidance_scale": 1, "seed": 7}.items():
        page.fill(f"#preview-{name}", str(value))
    # as where another language is chosen
    page.reload()
    held.ready()
    expect(page.locator("#preview-source")).to_have_value(run.name)
    expect(page.locator("#preview-prompts")).to_have_value("\n".join(PROMPTS))
    expect(page.locator("#preview-seed")).to_have_value("7")
    page.locator("#preview-files").select_option([each.path.name for each in run.checkpoints()])
    expect(page.locator("#preview-memory")).to_have_attribute("data-verdict", "fits")
    expect(page.locator("#preview-memory")).to_contain_text("the preview computes in RAM")
    # the run has ended: there is nothing to follow
    expect(page.locator("#preview-follow")).to_be_disabled()
    page.click("#preview-draw")
    expect(page.locator("#preview-status")).to_have_attribute("data-state", "done", timeout=DRAWING_MS)
    expect(page.locator("#preview-status")).to_contain_text("0 recompiles")
    expect(page.locator("#preview-status")).to_contain_text("first picture after")
    expect(page.locator("#preview-matrix tbody tr")).to_have_count(3)
    expect(page.locator("#preview-matrix tbody img")).to_have_count(6)
    expect(page.locator("#preview-row")).to_contain_text("step 2")

    # the last checkpoint was measured; the slider goes over all of them
    page.locator("#preview-slider").fill("2")
    expect(page.locator("#preview-row")).to_have_text(re.compile(r"step 6 · loss \d\.\d{4}"))
    page.locator("#preview-slider").fill("1")
    expect(page.locator("#preview-row")).to_contain_text("step 4")
    page.wait_for_function("[...document.querySelectorAll('#preview-pictures img')].every((i) => i.naturalWidth > 0)")
    folder = PreviewFolder.of_page(own_server.folder / "page")
    shown = [page.locator("#preview-pictures img").nth(at).get_attribute("src") or "" for at in range(2)]
    served = [page.request.get(address).body() for address in shown]

    compare(held)
    out = own_server.folder / "out"
    arguments = ["--run", str(run.path), "--matrix", "checkpoints", "--out", str(out), "--seed", "7"]
    arguments += ["--width", "96", "--height", "80", "--steps", "3", "--guidance", "1"]
    for words in PROMPTS:
        arguments += ["--prompt", words]
    assert main(arguments, Console(file=io.StringIO())) == 0
    for number, body in enumerate(served, 1):
        with Image.open(io.BytesIO(body)) as ours, Image.open(out / f"02-0{number}.png") as theirs:
            assert ours.size == (96, 80) and ours.tobytes() == theirs.tobytes() and ours.info == theirs.info
    see_the_page(held, out / "index.html")

    assert folder.is_alive()
    page.click("#preview-end")
    wait_for(lambda: not folder.is_alive(), 60)
    expect(page.locator("#preview-end")).to_be_disabled()


PLAYS = "(video) => !video.paused && video.currentTime > 0.1 && video.videoWidth > 0"
TOGETHER = """() => {
  const [a, b] = ["left", "right"].map((name) => document.querySelector(`#preview-${name}, #${name}`));
  return a.currentTime > 0.1 && !b.paused && Math.abs(a.currentTime - b.currentTime) < 0.3;
}"""


def drawn_clips(folder: PreviewFolder) -> str:
    """A finished request of two checkpoints' clips, as a worker leaves it."""
    prompt = SamplePrompt(prompt="a ball rolls", frames=33, width=64, height=48)
    rows = tuple(Row(name=f"step {step}", step=step) for step in (2, 4))
    cfg = settings(ROOT / "assets" / "demo" / "video" / "base", "wan")
    request = PreviewRequest(config=cfg, rows=rows, prompts=(prompt,))
    identity = folder.submit(request)
    for cell in request.cells():
        frames = [np.full((48, 64, 3), 40 + 90 * cell.row + number, np.uint8) for number in range(33)]
        write_clip(folder.pictures_dir(identity) / cell.file, frames, 16.0, {"parameters": "a ball", "monotile": "{}"})
    pictures = [{"row": cell.row, "column": cell.column, "file": cell.file} for cell in request.cells()]
    folder.write_status(identity, {"state": "done", "pictures": pictures, "notes": []})
    write_matrix(request, folder.pictures_dir(identity))
    return identity


def test_clips_play_and_are_compared_at_the_same_moment(held: Watched, own_server: Server) -> None:
    folder, page = PreviewFolder.of_page(own_server.folder / "page"), held.page
    identity = drawn_clips(folder)
    tab(page, "Preview")
    video = page.locator("#preview-pictures video")
    expect(video).to_have_count(1)
    assert video.evaluate("v => [v.muted, v.loop, v.controls]") == [True, True, True]
    video.evaluate("v => v.play()")
    page.wait_for_function(PLAYS, arg=video.element_handle())
    # in the matrix their frames, of which nothing moves
    expect(page.locator("#preview-matrix tbody img")).to_have_count(2)
    expect(page.locator("#preview-matrix img").first).to_have_attribute("src", re.compile(r"01-01\.sheet\.png"))
    page.click("#preview-compare summary")
    page.click("#preview-play")
    page.wait_for_function(TOGETHER)
    page.locator("#preview-edge").fill("20")
    expect(page.locator("#preview-right")).to_have_attribute("style", re.compile("20%"))
    page.locator("#preview-stills").check()
    expect(page.locator("img#preview-left")).to_have_attribute("src", re.compile(r"01-01\.sheet\.png"))
    with page.expect_download() as download:
        page.click("#preview-save")
    with zipfile.ZipFile(download.value.path()) as archive:
        assert {"grid.png", "02-01.mp4", "02-01.sheet.png"} <= set(archive.namelist())
    own = page.context.new_page()
    own.goto((folder.pictures_dir(identity) / "index.html").as_uri())
    own.wait_for_function(TOGETHER)
    expect(own.locator("#table img").last).to_have_attribute("src", "02-01.sheet.png")
    own.locator("#still").check()
    expect(own.locator("img#right")).to_have_attribute("src", "02-01.sheet.png")
    own.close()


def compare(held: Watched) -> None:
    """The tab's wipe shows two rows; its losses are a column; the matrix is saved as one file."""
    page = held.page
    expect(page.locator("tr[data-row='2'] td").first).to_have_text(re.compile(r"\d\.\d{5}"))
    page.click("#preview-compare summary")
    page.locator("#preview-edge").fill("20")
    expect(page.locator("#preview-right")).to_have_attribute("style", re.compile("20%"))
    expect(page.locator("#preview-left")).to_have_attribute("src", re.compile(r"01-01\.png"))
    expect(page.locator("#preview-right")).to_have_attribute("src", re.compile(r"03-01\.png"))
    page.select_option("#preview-a", "1")
    page.select_option("#preview-column", "1")
    expect(page.locator("#preview-left")).to_have_attribute("src", re.compile(r"02-02\.png"))
    with page.expect_download() as download:
        page.click("#preview-save")
    with zipfile.ZipFile(download.value.path()) as archive:
        assert {"grid.png", "index.html", "01-01.png", "03-02.png"} <= set(archive.namelist())


def see_the_page(held: Watched, path: Path) -> None:
    """The page that the command writes works from the disk: its slider, its wipe, its loss column."""
    page = held.page.context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: held.said.append(str(error)))
    page.goto(path.as_uri())
    expect(page.locator("#table tr")).to_have_count(4)
    expect(page.locator("tr[data-row='2'] td").first).to_have_text(re.compile(r"\d\.\d{5}"))
    page.locator("#row").fill("1")
    expect(page.locator("#name")).to_contain_text("step 4")
    expect(page.locator("#pictures img").first).to_have_attribute("src", "02-01.png")
    page.locator("#edge").fill("20")
    expect(page.locator("#right")).to_have_attribute("style", re.compile("20%"))
    expect(page.locator("#left")).to_have_attribute("src", "01-01.png")
    expect(page.locator("#right")).to_have_attribute("src", "03-01.png")
    page.wait_for_function("[...document.images].every((i) => i.complete && i.naturalWidth > 0)")
    assert all(url.startswith("file:") for url in asked)
    page.close()
