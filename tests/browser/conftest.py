"""A real server in its own process, and Chromium to look at it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    expect,
    sync_playwright,
)

from backend.base.paths import PROJECT_ROOT
from backend.runs.folder import Run, list_runs
from backend.runs.supervise import stop

ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Two cores are shared with a trainer that compiles: nothing here is about speed.
PATIENCE_MS = 60_000
expect.set_options(timeout=30_000)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs a browser."""
    browser = {path for path in {item.path for item in items} if Path(__file__).parent in path.parents}
    for item in items:
        if item.path in browser:
            item.add_marker(pytest.mark.browser)


class Server:
    """``python -m gui`` with its files below one folder."""

    def __init__(self, folder: Path, port: int | None = None, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self.port}/"

    @property
    def runs(self) -> Path:
        """Where the presets of these tests put their runs."""
        return self.folder / "runs"

    def start(self) -> Server:
        """Start it and wait until the page answers, which may be on another port than the one that was asked for."""
        command = [sys.executable, "-m", "gui", "--no-browser", "--port", str(self.port), "--data", str(self.folder)]
        log = open(self.folder / "server.log", "a", encoding="utf-8")  # noqa: SIM115 - the process keeps it
        self.process = subprocess.Popen(
            command, cwd=PROJECT_ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT, text=True
        )
        wait_for(self._answers, 120, lambda: (self.folder / "server.log").read_text(encoding="utf-8"))
        return self

    def _answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, "the server ended"
        log = (self.folder / "server.log").read_text("utf-8")
        if not (ports := re.findall(r"Monotile is at http://127\.0\.0\.1:(\d+)/", log)):
            return False
        self.port = int(ports[-1])
        with contextlib.suppress(OSError), urlopen(self.url + "runs", timeout=5) as answer:
            return answer.status == 200
        return False

    def end(self, how: int = signal.SIGTERM) -> None:
        """Stop the server, and only the server."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=20)

    def newest(self) -> Run:
        """The run that was started last."""
        return list_runs(self.runs)[0]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what: Callable[[], bool], seconds: float, why: Callable[[], str] = lambda: "") -> None:
    """Ask until it is so; the test fails with ``why()`` when it never is."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds} s in vain. {why()}"
        time.sleep(0.2)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium; Playwright's own builds are never fetched."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "Chromium is missing: apt-get install chromium"
    browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that do not stop it."""
    started = Server(tmp_path_factory.mktemp("server")).start()
    yield started
    started.end()
    for run in list_runs(started.runs):
        stop(run, grace_s=0)


def few_pictures(server: Server, folder: str) -> Path:
    """A folder with two pictures of one of the demo's folders, and their captions."""
    few = server.folder / f"few-{folder}"
    few.mkdir(exist_ok=True)
    for picture in sorted((PROJECT_ROOT / "assets" / "demo" / folder).glob("*.png"))[:2]:
        for file in (picture, picture.with_suffix(".txt")):
            shutil.copy(file, few)
    return few


# The page has no global of its own: what tests call and read is imported from its modules.
HANDLE = """async () => {
  const load = (name) => import(new URL(`page/js/${name}.js`, document.baseURI));
  const [{ pageState, emit }, { sendRequest }, { goToField }, { currentTab }] = await Promise.all(
    ["state", "bridge", "field_jump", "tabs"].map(load),
  );
  window.monotile = { state: pageState, emit, act: sendRequest, goToField, currentTab };
}"""


ALL_SETTINGS = "localStorage.getItem('monotile-level') || localStorage.setItem('monotile-level', 'all')"


class Watched:
    """A page whose console and requests are watched: nothing may go wrong in silence, nothing may leave the machine."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.server = server
        self.said: list[str] = []
        self.requests: list[str] = []
        self.is_used = False
        page.set_default_timeout(PATIENCE_MS)
        # Whether a page starts with few settings or all of them depends on whether this machine has runs already.
        page.add_init_script(ALL_SETTINGS)
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.said.append(f"{message.text} ({message.location['url']})")

    def open(self) -> Page:
        """Go to the page and wait until the form is filled."""
        self.page.goto(self.server.url)
        self.ready()
        return self.page

    def ready(self) -> None:
        """Wait until the form is filled. It may be out of sight: a refreshed page opens the tab of before."""
        self.page.wait_for_selector("#f-model-base_model .mt-help", state="attached")
        self.page.evaluate(HANDLE)

    def start_over(self) -> None:
        """Bring the form to the defaults: the draft outlives a page, and so a test."""
        self.page.evaluate("window.monotile.act('load', {name: ''})")
        self.page.locator(".toast").get_by_text("Loaded the defaults").wait_for()
        self.page.evaluate("document.querySelectorAll('.toast').forEach((toast) => toast.remove())")

    def put_back(self) -> bool:
        """Leave the page to the next test as a new one would be; False where that is not how it looks."""
        page = self.page
        page.unroute_all()
        page.evaluate("document.querySelectorAll('.toast').forEach((toast) => toast.remove())")
        if page.viewport_size != {"width": 1280, "height": 900} or not page.evaluate(AS_OPENED):
            return False
        page.evaluate("() => (localStorage.clear(), sessionStorage.clear())")
        page.evaluate(ALL_SETTINGS)
        tab(page, "Model")
        page.evaluate("() => (document.activeElement.blur(), scrollTo(0, 0))")
        page.mouse.move(1, 1)
        self.requests.clear()
        self.is_used = True
        return True

    def foreign(self) -> list[str]:
        """Requests to anything but our own server."""
        own = (self.server.url, "data:", "blob:")
        return [url for url in self.requests if not url.startswith(own)]


@pytest.fixture(scope="session")
def usual(chromium: Browser) -> Iterator[BrowserContext]:
    """1280 x 900 in light colours. One for all tests: the page's files are read and compiled once."""
    # A smooth scroll is drawn many times over, and most tests only pass by; pages of their own have it.
    context = chromium.new_context(
        viewport={"width": 1280, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    yield context
    context.close()


# Whether a page is as one that was just opened, but for what its modules remember of searches. One that has drawn most
# of the settings takes longer for everything than to open another.
AS_OPENED = """() => !document.querySelector("dialog[open], body.dark, .offline:not([hidden])")
  && document.getElementById("search").value === "" && localStorage.getItem("monotile-level") === "all"
  && [...document.querySelectorAll("#tabs .tabitem")].filter((each) => each.checkVisibility()).length === 1
  && !document.querySelector(".suggestions [role=option]") && document.querySelectorAll("[id^='f-']").length < 120
  && document.documentElement.dataset.language === "en"
"""


@pytest.fixture(scope="session")
def kept_pages() -> list[Watched]:
    """The page that the tests of one worker share, once it is open: opening it takes longer than most of them do."""
    return []


@pytest.fixture
def watched(usual: BrowserContext, server: Server, kept_pages: list[Watched]) -> Iterator[Watched]:
    """An open page with the default settings, its first tab shown. One that a test has left otherwise is closed."""
    held = kept_pages.pop() if kept_pages else Watched(usual.new_page(), server)
    try:
        if held.page.url == "about:blank":
            held.open()
        held.start_over()
        yield held
        assert held.said == []
        assert held.foreign() == []
        if held.put_back():
            kept_pages.append(held)
    finally:
        for each in usual.pages:
            if not any(each is kept.page for kept in kept_pages):
                with contextlib.suppress(Error):  # a page that never opened has none
                    each.evaluate("localStorage.clear()")
                each.close()


@pytest.fixture
def forgetful(watched: Watched) -> Watched:
    """The same, where no test before has searched for a setting or used it."""
    if watched.is_used:
        watched.page.reload()
        watched.ready()
    return watched


@pytest.fixture
def page(watched: Watched) -> Page:
    """The open page itself."""
    return watched.page


def tab(page: Page, title: str) -> None:
    """Open a tab."""
    button = page.get_by_role("tab", name=title, exact=True)
    button.click()
    page.wait_for_function("title => window.monotile.currentTab() === title", arg=title)


def field(page: Page, path: str) -> str:
    """The selector of a setting's input."""
    box = "#f-" + path.replace(".", "-")
    return f"{box} input, {box} textarea"


def go_to(page: Page, path: str) -> None:
    """Open what hides a setting and put the cursor in it, as the search does."""
    page.evaluate("id => window.monotile.goToField(id)", "f-" + path.replace(".", "-"))
    inside = "id => document.getElementById(id)?.contains(document.activeElement)"
    page.wait_for_function(inside, arg="f-" + path.replace(".", "-"))


def type_in(page: Page, path: str, text: str) -> None:
    """Type into a text field and leave it, as a person does."""
    go_to(page, path)
    page.fill(field(page, path), "")
    page.locator(field(page, path)).first.press_sequentially(text)
    page.locator(field(page, path)).first.blur()


def load_preset(page: Page, name: str) -> None:
    """Choose a preset, see the difference, load it."""
    page.click("#preset-button")
    page.click(f"[data-preset='{name}']")
    page.wait_for_selector("[data-do=load]")
    if page.locator("#keep-own").is_visible():
        page.uncheck("#keep-own")
    page.click("[data-do=load]")
    page.wait_for_function(
        "name => window.monotile.state.draft.preset === name && !(window.monotile.state.draft.changed || []).length",
        arg=name,
    )


def caption_by_model(page: Page, folder: Path) -> None:
    """Caption the scanned images by a real model: looked at beside the old ones, edited, left out, written, undone."""
    # here, since transformers takes seconds to import
    from tests.tiny.captioners import build

    model = build("blip", folder.parent / "blip")
    before = {path.name: path.read_text("utf-8") for path in folder.glob("*.txt")}
    page.get_by_role("button", name="Captions by a model").click()
    page.fill("#captioning-model", str(model.parent))
    page.locator("#captioning-model").blur()
    expect(page.locator("#captioning-about")).to_contain_text("has no config.json")
    page.fill("#captioning-model", str(model))
    page.locator("#captioning-model").blur()
    page.keyboard.press("Escape")
    expect(page.locator("#captioning-about")).to_contain_text("BLIP")
    expect(page.locator("#captioning-task")).to_be_hidden()
    page.select_option("#captioning-existing", "append")
    page.fill("#captioning-trigger", "zyx")
    page.locator("#captioning-root summary", has_text="More").click()
    for name, value in {"device": "cpu", "max-tokens": "4", "beams": "1"}.items():
        page.fill(f"#captioning-{name}", value)
    page.click("#captioning-start")
    rows = page.locator("#captioning-rows > li")
    expect(page.locator("#captioning-text")).to_have_text("8 of 8 images have a new caption.", timeout=4 * PATIENCE_MS)
    expect(rows).to_have_count(8)
    assert {path.name: path.read_text("utf-8") for path in folder.glob("*.txt")} == before
    expect(rows.first.locator(".captioning-old")).to_have_text("a caption in the meantime")
    expect(rows.first.locator("textarea")).to_have_value(re.compile("^zyx, a caption in the meantime, ."))
    rows.nth(1).locator("input").uncheck()
    rows.nth(2).locator("textarea").fill("by hand")
    page.locator("#captioning-write").click()
    expect(page.locator(".toast").last).to_contain_text("Caption files written: 7.")
    after = {path.name: path.read_text("utf-8") for path in folder.glob("*.txt")}
    assert sum(text.startswith("zyx, ") for text in after.values()) == 6 and "by hand" in after.values()
    expect(page.locator("#thumbs [data-caption='2']")).to_have_text("by hand")
    expect(rows).to_have_count(1)
    expect(page.locator("#captioning-writing")).to_be_hidden()
    page.locator(".toast").last.get_by_text("Undo").click()
    expect(rows).to_have_count(8)
    assert {path.name: path.read_text("utf-8") for path in folder.glob("*.txt")} == before
