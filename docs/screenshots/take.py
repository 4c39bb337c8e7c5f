"""Takes the pictures of the page for the README: ``python docs/screenshots/take.py http://127.0.0.1:7860/``.

The page must be open, with the demo's preset loaded and its run shown: best while it trains. Needs Debian's Chromium
and playwright (requirements-test.txt). Nothing on the page is changed, except that the dataset is scanned.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

HERE = Path(__file__).resolve().parent
ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


# Folders of the machine are nobody's business: paths begin with the project's own.
SHORT = """(above) => document.querySelectorAll(".path-line code").forEach((code) => {
  code.textContent = code.textContent.replace(above, "");
})"""


# Those in sight; the others wait until they are scrolled to.
LOADED = """() => [...document.querySelectorAll("#thumbs img")]
  .filter((image) => image.getBoundingClientRect().top < innerHeight)
  .every((image) => image.naturalWidth > 0)"""


def take(page: Page, name: str) -> None:
    """Write a picture of what is seen."""
    page.evaluate(SHORT, f"{HERE.parents[1]}/")
    page.screenshot(path=HERE / f"{name}.png")


@contextmanager
def opened(browser: Browser, url: str, scheme: str, width: int, height: int) -> Iterator[Page]:
    """The page in one size and colour, its form filled."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(url)
    page.wait_for_selector("#start")
    page.wait_for_selector("#f-model-base_model .mt-help", state="attached")
    yield page
    context.close()


def show(page: Page, tab: str, ready: str) -> None:
    """Open a tab and wait for what makes it worth looking at; then for charts and pictures to settle."""
    page.get_by_role("tab", name=tab, exact=True).click()
    page.wait_for_selector(ready)
    page.wait_for_timeout(2500)


def show_images(page: Page) -> None:
    """Scroll to the images of the Dataset tab, which lie below its settings, and wait until they are loaded."""
    page.evaluate("document.querySelector('#image-filters').scrollIntoView()")
    page.mouse.wheel(0, -140)
    page.wait_for_function(LOADED)
    page.wait_for_timeout(500)


def scan(page: Page) -> None:
    """Scan the dataset, so that the Dataset and Compile tabs have something to show."""
    show(page, "Dataset", "[data-scan=scan]")
    page.click("[data-scan=scan]")
    page.wait_for_selector("#plan-headline")


def main() -> None:
    """Take all pictures into this folder."""
    parser = argparse.ArgumentParser(description="Take the pictures for the README.")
    parser.add_argument("url", help="address of an open page")
    url = parser.parse_args().url
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        with opened(browser, url, "light", 1280, 900) as page:
            scan(page)
        for scheme in ("light", "dark"):
            for tab, ready, height in (
                ("Run", "#loss-plot canvas", 1180),
                ("Dataset", "#thumbs img", 1300),
                ("Compile", "#mode-table", 1120),
                ("Training", "#timesteps-plot svg", 1280),
            ):
                with opened(browser, url, scheme, 1280, height) as page:
                    show(page, tab, ready)
                    if tab == "Dataset":
                        show_images(page)
                    take(page, f"{tab.lower()}-{scheme}")
        with opened(browser, url, "dark", 390, 844) as page:
            show(page, "Run", "#loss-plot canvas")
            take(page, "run-narrow")
        browser.close()


if __name__ == "__main__":
    main()
