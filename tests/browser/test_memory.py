"""The Memory tab: the estimate follows the form and the GPU, and its advice is one click; the Run tab's memory bar."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from backend.runs.events import EventWriter
from backend.runs.events.kinds import MemoryEstimateEvent, MemoryPeakEvent
from backend.runs.metrics import MetricsWriter
from tests.browser.conftest import field, go_to, tab, type_in
from tests.gui.conftest import make_run
from tests.tiny.kept import empty_flux

GB = 2**30


@pytest.fixture
def flux_dev(tmp_path: Path) -> Path:
    """A folder with the header of FLUX.1-dev's transformer; its 24 GB are a hole in the file."""
    header, end = {}, 0
    for name, parameter in empty_flux(19, 38).named_parameters():
        begin, end = end, end + 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    folder = tmp_path / "flux" / "transformer"
    folder.mkdir(parents=True)
    with open(folder / "diffusion_pytorch_model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)
    return tmp_path / "flux"


def test_the_estimate_follows_card_and_form_and_its_advice_is_applied_and_undone(page: Page, flux_dev: Path) -> None:
    type_in(page, "model.base_model", str(flux_dev))
    tab(page, "Memory")
    page.fill("#fit-gpu", "80")
    verdict = page.locator("#fit-verdict")
    expect(verdict).to_have_attribute("data-verdict", "fits")
    page.fill("#fit-gpu", "24")
    expect(verdict).to_have_class("verdict bad")
    expect(verdict).to_contain_text(re.compile(r"training needs 2\d\.\d GB of video memory, and the GPU has 24\.0 GB"))
    expect(page.locator("[data-stage=train] .p-weights")).to_be_visible()
    expect(page.locator("[data-stage=train]")).to_have_class(re.compile("over"))
    expect(page.locator("#fit-advice")).to_contain_text("Keep the base model in int8")
    page.click("#fit-apply")
    expect(verdict).to_have_attribute("data-verdict", "fits")
    expect(page.locator("#fit-advice")).to_have_count(0)
    go_to(page, "memory.base_quantization")
    expect(page.locator(field(page, "memory.base_quantization")).first).to_have_value("int8")
    page.locator(".toast").get_by_role("button", name="Undo").click()
    expect(verdict).to_have_attribute("data-verdict", "does_not_fit")
    type_in(page, "dataset.batch_size", "4")
    tab(page, "Memory")
    expect(page.locator("[data-stage=train] .fit-size")).not_to_have_text(re.compile(r"^26\."))
    page.fill("#fit-gpu", "")


def test_who_holds_memory_is_shown_with_the_estimate_beside_the_peak(page: Page, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", steps=4)
    type_in(page, "saving.output_dir", str(tmp_path / "runs"))
    tab(page, "Run")
    page.select_option("#run-picker", run.name)  # other tests' runs are listed too
    with MetricsWriter(run, generation=1, start_step=4) as metrics:
        card = {"allocated": 9 * GB, "reserved": 10 * GB, "peak": 9 * GB, "total": 24 * GB, "free": 11 * GB}
        row = {f"vram_{name}": size for name, size in card.items()} | {"vram_others": 2 * GB}
        metrics.add(5, loss=0.5, **row, ram=GB, ram_total=64 * GB, ram_available=30 * GB)
    EventWriter(run).write(MemoryEstimateEvent(headline="Fits.", allocated=9 * GB, ram_total=3 * GB, verdict="fits"))
    EventWriter(run).write(MemoryPeakEvent(ram_peak=3 * GB, words="estimated 9.0 GB, peak 9.3 GB (-3 %)"))
    now = page.locator("#memory-now")
    for words in ("this run11.0 GB", "other programs2.0 GB", "free11.0 GB"):
        expect(now).to_contain_text(words)
    expect(page.locator("#memory-note")).to_contain_text("Estimated 9.0 GB, peak 9.3 GB (-3 %).")
    with MetricsWriter(run, generation=2, start_step=0) as metrics:
        metrics.add(1, loss=0.5, ram=GB, ram_total=64 * GB, ram_available=30 * GB)
    for words in ("this run1.0 GB", "other programs33.0 GB", "free30.0 GB"):
        expect(now).to_contain_text(words)
