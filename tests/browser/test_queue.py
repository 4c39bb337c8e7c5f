"""The Queue tab with real trainers: three runs, the second of which is killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from backend.queue import changes
from backend.queue.folder import QueueFolder
from backend.runs.folder import Run
from backend.runs.supervise import stop
from tests.browser.conftest import PATIENCE_MS, Server, tab, wait_for

TRAINING_MS = 240_000


def queue_run(page: Page, server: Server, base: Path, images: Path, name: str, steps: int) -> None:
    """Put a short, uncompiled run of a tiny model into the queue by the button in the bar."""
    change = {
        "model.base_model": str(base),
        "model.text_length": 16,
        "dataset.folders": [{"path": str(images)}],
        "dataset.resolution": 64,
        "dataset.min_bucket_size": 32,
        "dataset.max_bucket_size": 128,
        "dataset.cache_dir": str(server.folder / "queue-cache"),
        "network.network_dim": 4,
        "training.max_train_steps": steps,
        "compile.compile": False,
        "saving.output_dir": str(server.runs),
        "saving.output_name": name,
        "saving.save_every_n_steps": 2,
    }
    page.evaluate("change => window.monotile.act('apply', { change })", change)
    page.locator(".toast").get_by_text("Changed: ").last.wait_for()
    page.evaluate("document.querySelectorAll('.toast').forEach((toast) => toast.remove())")
    page.click("#enqueue")
    page.locator(".toast").get_by_text(f"Added “{name}” to the queue").wait_for(timeout=PATIENCE_MS)


@pytest.mark.slow
def test_the_second_of_three_is_killed_and_all_end_as_told(
    page: Page, server: Server, tiny_flux: Path, image_folder: Path
) -> None:
    folder = QueueFolder.of_page(server.folder / "page")
    try:
        for name, steps in (("q-one", 2), ("q-two", 2000), ("q-three", 2)):
            queue_run(page, server, tiny_flux, image_folder, name, steps)
        tab(page, "Queue")
        expect(page.locator(".queue-entry h2")).to_have_text(["q-one", "q-two", "q-three"])
        page.get_by_label("Move q-three up").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".queue-entry h2")).to_have_text(["q-one", "q-three", "q-two"])
        expect(page.get_by_label("Move q-three up")).to_be_focused()
        page.get_by_label("Move q-two up").click()
        card(page, "q-two").get_by_text("Remove", exact=True).click()
        page.locator(".toast").get_by_role("button", name="Undo").click()
        expect(page.locator(".queue-entry h2")).to_have_text(["q-one", "q-two", "q-three"])
        folder.update(lambda queue: replace(queue, paused_by="q-zero failed because the disk is full."))
        expect(page.locator("#queue-head [role=alert]")).to_have_text(
            "The queue has paused itself. q-zero failed because the disk is full."
        )
        page.click("#queue-switch")
        expect(page.locator("#queue-head h2")).to_have_text("The queue is on")
        expect(page.locator("#queue-head [role=alert]")).to_have_count(0)
        expect(card(page, "q-one").locator(".state")).to_have_text("Finished", timeout=TRAINING_MS)
        two = Run(str(started(folder, 1)))
        wait_for(two.has_state, 120)
        expect(card(page, "q-two").locator(".state")).to_have_text("Running")
        trainer = two.process()
        assert trainer is not None
        os.kill(trainer.pid, signal.SIGKILL)
        expect(card(page, "q-two").locator(".state")).to_have_text("Failed")
        expect(card(page, "q-two")).to_contain_text("The system killed the trainer")
        expect(page.locator(".toast.error")).to_contain_text("q-two")
        expect(card(page, "q-three").locator(".state")).to_have_text("Finished", timeout=TRAINING_MS)
        expect(card(page, "q-two").get_by_text("Resume", exact=True)).to_be_visible()
        page.get_by_text("Remove ended").click()
        expect(page.locator(".queue-entry")).to_have_count(0)
    finally:
        changes.set_on(folder, False)
        for entry in folder.read().entries:
            if entry.run is not None:
                stop(Run(entry.run), grace_s=0)


def started(folder: QueueFolder, index: int) -> str | None:
    """The run folder of an entry, once it has one."""
    wait_for(lambda: folder.read().entries[index].run is not None, 120)
    return folder.read().entries[index].run


def card(page: Page, name: str) -> Locator:
    """The entry of this name."""
    return page.locator(".queue-entry", has_text=name)
