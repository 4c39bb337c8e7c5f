"""The page behind a reverse proxy at a path, on a machine whose environment names a SOCKS proxy, on another port."""

from __future__ import annotations

import socket
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Server, Watched, tab
from tests.browser.proxy import below

ROOT = "/tools/monotile"


def test_the_page_works_below_a_path_with_a_socks_proxy_in_the_environment(tmp_path: Path, chromium: Browser) -> None:
    """The port that was asked for is in use, as its terminal says with the one that is served instead."""
    environment = {"ALL_PROXY": "socks5://127.0.0.1:9", "all_proxy": "socks5://127.0.0.1:9", "GRADIO_ROOT_PATH": ROOT}
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        server = Server(tmp_path, taken, environment).start()
    assert f"Port {taken} is in use" in (tmp_path / "server.log").read_text("utf-8") and server.port != taken
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    try:
        with below(ROOT, server.port) as address:
            watched = Watched(context.new_page(), server)
            failed: list[str] = []
            page = watched.page
            page.on("response", lambda answer: failed.append(answer.url) if answer.status >= 400 else None)
            page.goto(address)
            watched.ready()
            # Scripts, the style sheet, the logo, an event of Gradio's, and a route of ours.
            watched.start_over()
            page.wait_for_function("document.querySelector('#bar-root .brand img').naturalWidth > 0")
            assert page.evaluate("[...document.styleSheets].some(s => s.href?.includes('/page/css/bar.css'))")
            tab(page, "Run")
            expect(page.locator("#run-empty")).to_be_visible()
            dropped_files_are_imported(page)
            dialogs_keep_within_their_edge(page)
            assert failed == [] and watched.said == []
            assert [url for url in watched.requests if not url.startswith((address, "data:", "blob:"))] == []
            page.close()
    finally:
        context.close()
        server.end()


DATASET = """
[general]
caption_extension = ".txt"
[[datasets]]
resolution = 768
[[datasets.subsets]]
image_dir = "/data/fox"
num_repeats = 3
"""
DROP = """([name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


def dropped_files_are_imported(page: Page) -> None:
    """A picture is named as one; another trainer's data set says what becomes of the other settings."""
    page.evaluate(DROP, ["fox.png", "\x00PNG is no text"])
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text("can't be imported")
    expect(dialog).to_contain_text("NUL")
    page.keyboard.press("Escape")
    page.evaluate(DROP, ["dataset.toml", DATASET])
    expect(dialog).to_contain_text("All other settings stay as they are")
    page.keyboard.press("Escape")


def dialogs_keep_within_their_edge(page: Page) -> None:
    """The name's field ends before the dialog does, on a wide and on a narrow page."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.evaluate("async () => (await import(new URL('page/js/presets.js', document.baseURI))).savePresetAs()")
        page.locator("#ask-name").fill("w" * 80)
        edges = page.evaluate(
            "() => { const box = document.querySelector('dialog[open]'), name = document.querySelector('#ask-name');"
            " const right = (node) => node.getBoundingClientRect().right;"
            " return [right(name), right(box), innerWidth, box.scrollWidth - box.clientWidth]; }"
        )
        assert edges[0] < edges[1] - 8 and edges[1] <= edges[2] and edges[3] <= 0, (width, edges)
        page.keyboard.press("Escape")
