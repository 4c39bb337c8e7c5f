"""Changes captions of many images on an open page, leaves near-duplicates out, and undoes it."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.conftest import go_to, wait_for


def captions_are_changed_together(page: Page, folder: Path) -> None:
    """Of a scanned folder of eight images, one of which has the caption "a written caption"."""

    def texts() -> dict[str, str]:
        return {path.name: path.read_text("utf-8") for path in folder.glob("*.txt")}

    before = texts()
    page.locator("#bulk-root > summary").click()
    page.select_option("#bulk-kind", "add")
    page.fill("#bulk-text", "rain, tall grass")
    page.click("#bulk-preview")
    expect(page.locator("#bulk-count")).to_have_text("8 captions in 8 files will change.")
    expect(page.locator("#bulk-differences ins")).to_have_text([", rain, tall grass"] * 8)
    assert texts() == before
    page.click("#bulk-apply")
    wait_for(lambda: texts() == {name: f"{text.strip()}, rain, tall grass" for name, text in before.items()}, 30)
    # by a tag: only the images that have it, and a replacement in these alone
    page.locator("#tag-table > summary").click()
    expect(page.locator("[data-tag='tall grass'] .count")).to_have_text("8")
    page.locator("[data-tag='a written caption']").click()
    expect(page.locator("#thumb-count")).to_have_text("1 image")
    expect(page.locator("#thumbs .thumb")).to_have_count(1)
    page.select_option("#bulk-kind", "replace")
    page.fill("#bulk-find", r"(tall) (\w+)$")
    page.fill("#bulk-text", r"\2, \1")
    page.check("#bulk-regex")
    page.click("#bulk-preview")
    expect(page.locator("#bulk-count")).to_have_text("1 caption in 1 file will change.")
    page.click("#bulk-apply")
    wait_for(lambda: sum(text.endswith("rain, grass, tall") for text in texts().values()) == 1, 30)
    # the newest first, also after the page was closed
    expect(page.locator(".bulk-undo")).to_contain_text("(1 file,")
    page.click("#bulk-undo")
    wait_for(lambda: all(text.endswith("rain, tall grass") for text in texts().values()), 30)
    expect(page.locator(".bulk-undo")).to_contain_text("Add “rain, tall grass” at the end (8 files,")
    page.click("#bulk-undo")
    wait_for(lambda: texts() == before, 30)
    page.click("#filter-clear")
    expect(page.locator("#thumbs [data-caption='1']")).to_have_text("a written caption")
    expect(page.locator("#bulk-undo")).to_have_count(0)


def near_duplicates_are_left_out(page: Page) -> None:
    """Of the same images, three groups of which look alike; undone like any change of the form."""
    page.locator("#near-root > summary").click()
    page.click("#near-start")
    groups = page.locator(".near-group")
    expect(groups).to_have_count(3)
    leave, excluded = groups.first.locator(".near-leave"), page.locator("#f-dataset-excluded_images textarea")
    leave.click()
    expect(leave).to_have_text("Train all of them")
    expect(groups.first.locator(".left-out")).to_have_count(1)
    # the larger one stays
    go_to(page, "dataset.excluded_images")
    expect(excluded).to_have_value(re.compile(r"^\S*picture_1\.png$"))
    expect(groups.nth(1).locator(".near-leave")).to_have_text("Keep one, leave the others out")
    page.locator(".toast", has_text="Excluded images").get_by_text("Undo").click()
    expect(leave).to_have_text("Keep one, leave the others out")
    expect(excluded).to_have_value("")
