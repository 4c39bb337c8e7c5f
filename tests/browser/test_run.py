"""From Start to a LoRA in the page: what the panels show is what the run's own records say."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.notes import read_notes
from backend.runs.supervise import start as start_run
from tests.browser.conftest import Server, Watched, few_pictures, field, load_preset, tab, type_in, wait_for
from tests.gui.conftest import make_run

PANEL = """() => ({
  step: document.querySelector("#stat-step .stat-value").textContent,
  loss: document.querySelector("#stat-loss .stat-value").textContent,
  lr: document.querySelector("#stat-lr .stat-value").textContent,
  graphs: document.querySelector("#stat-graphs .stat-value").textContent,
  recompiles: document.querySelector("#stat-recompiles .stat-value").textContent,
  state: document.querySelector("#run-state").textContent,
  phase: document.querySelector("#run-phase").textContent,
})"""
STEPS = 48
# The panel from the first step on, as it is at one moment.
TRAINING = f"() => {{ const shown = ({PANEL})(); return /^[1-9]/.test(shown.step) && shown; }}"
# Minutes, where two cores also run the other half of the tests.
TRAINING_MS = 240_000


@pytest.fixture
def held(chromium: Browser, server: Server, kept_pages: list[Watched]) -> Iterator[Watched]:
    """A page of its own, for a test that ends the server: the one that tests share would report that."""
    while kept_pages:
        kept_pages.pop().page.close()
    context = chromium.new_context(viewport={"width": 1280, "height": 1000})
    watched = Watched(context.new_page(), server)
    watched.open()
    watched.start_over()
    yield watched
    assert watched.foreign() == []
    context.close()


@contextlib.contextmanager
def suspended(run: Run) -> Iterator[None]:
    """Let the trainer wait in the middle of its run, while pages and servers start: they then have its core too."""
    trainer = run.process()
    assert trainer is not None and run.is_alive(), "the run has ended"
    os.kill(trainer.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(trainer.pid, signal.SIGCONT)


def choose_quick_demo(page: Page, server: Server, steps: int) -> None:
    """The demo's preset, made short: fewer pictures, steps and samples, uncompiled, in the tests' own folder."""
    load_preset(page, "demo")
    change = {
        "dataset.folders": [{"path": str(few_pictures(server, "concept"))}],
        "dataset.resolution": 128,
        "dataset.cache_dir": str(server.folder / "cache"),
        "training.max_train_steps": steps,
        "saving.output_dir": str(server.runs),
        "validation.validation_folders": [{"path": str(few_pictures(server, "held-out-concept")), "name": "concept"}],
        "validation.validation_repeats": 1,
        "validation.validation_sigmas": [0.2],
        "sampling.prompts": [{"prompt": "a big zorbl in a green meadow", "width": 128, "height": 128, "steps": 2}],
        "compile.compile": False,
    }
    page.evaluate("change => window.monotile.act('apply', { change })", change)
    page.wait_for_function("window.monotile.state.draft.changedFromDefault.includes('compile.compile')")
    page.locator(".toast").get_by_text("Changed: ").last.wait_for()
    page.evaluate("document.querySelectorAll('.toast').forEach((toast) => toast.remove())")


def panel_agrees(page: Page, run: Run) -> bool:
    """Whether the panel shows the newest row of the run's records, whole."""
    shown = page.evaluate(PANEL)
    last = MetricsReader(run).last()
    if last is None or not shown["step"].startswith(f"{last['step']} /"):
        return False
    return shown["loss"] == number(last["loss_smooth"]) and shown["lr"] == f"{last['lr']:.2e}".replace("e-0", "e-")


def number(value: float) -> str:
    """As the page writes numbers: four significant digits."""
    return f"{float(f'{value:.3e}'):.10f}".rstrip("0").rstrip(".")


def losses_are_shown(page: Page, run: Run) -> None:
    losses = {event["set"]: event["loss"] for event in events_of(run, "validation")}
    assert losses and page.locator("#validation [data-set]").count() == len(losses)
    for name, loss in losses.items():
        cell = page.locator(f"#validation tr[data-set='{name}'] [data-value]")
        assert float(cell.get_attribute("data-value") or "nan") == pytest.approx(loss)


@pytest.mark.slow
def test_the_demo_from_preset_to_lora(watched: Watched, server: Server) -> None:
    page = watched.page
    choose_quick_demo(page, server, STEPS)
    page.click("#save-as")
    page.fill("#ask-name", "quick demo")
    page.keyboard.press("Enter")
    expect(page.locator("#preset-button")).to_contain_text("quick demo")
    assert (server.folder / "presets" / "quick demo.toml").is_file()

    page.keyboard.press("Control+Enter")
    page.wait_for_function("window.monotile.currentTab() === 'Run'")
    run = server.newest()
    expect(page.locator("#run-picker")).to_have_value(run.name)
    first = page.wait_for_function(TRAINING, timeout=TRAINING_MS).json_value()
    assert first["state"] == "Running"
    expect(page.locator("#compile-verdict")).to_contain_text("Compile is off")

    # A refresh and a second tab show the same run while it goes on.
    with suspended(run):
        page.reload()
        watched.ready()
        other = Watched(page.context.new_page(), server)
        other.open()
        for each in (page, other.page):
            each.wait_for_function("window.monotile.currentTab() === 'Run'")
            expect(each.locator("#run-picker")).to_have_value(run.name)
        assert other.said == []
        other.page.close()
    wait_for(lambda: page.evaluate(PANEL)["step"] != first["step"], 120)

    expect(page.locator("#run-state")).to_have_text("Finished", timeout=TRAINING_MS)
    wait_for(lambda: panel_agrees(page, run), 20, lambda: f"{page.evaluate(PANEL)} {MetricsReader(run).last()}")
    assert MetricsReader(run).count() == STEPS
    lora = run.checkpoints()[-1].path
    expect(page.locator("#run-files")).to_contain_text(str(lora))
    assert page.locator("#samples img").count() == len(run.samples()) >= 1
    page.wait_for_function("[...document.querySelectorAll('#samples img')].every(i => i.naturalWidth > 0)")
    losses_are_shown(page, run)
    expect(page.locator("#run-log")).to_contain_text("Done")
    assert page.locator("#loss-plot canvas").count() == 1
    with page.expect_download() as download:
        page.locator("#run-files").get_by_text("Download").first.click()
    assert Path(download.value.path()).read_bytes() == lora.read_bytes()
    tab(page, "Library")
    # Another folder in the form hides no run that was started here.
    watched.start_over()
    page.reload()
    watched.ready()
    tab(page, "Library")
    card = page.locator(f".run-card[data-run='{run.name}']")
    expect(card).to_contain_text("finished")
    # A process of its own reads the file and tells which programs load it.
    card.get_by_text("Check", exact=True).first.click()
    keys = len(safetensors_names(lora))
    expect(page.locator(".lora-file tr", has_text="ComfyUI")).to_contain_text(f"{keys} of {keys}", timeout=120_000)
    find_tag_and_compare(page, run, make_run(server.runs, "other", steps=STEPS))


def find_tag_and_compare(page: Page, run: Run, other: Run) -> None:
    """Search by the keyboard, a tag that the folder keeps, two runs compared, the report, and a longer training."""
    card = page.locator(f".run-card[data-run='{run.name}']")
    page.keyboard.press("Escape")  # the dialog of before
    expect(page.locator("dialog[open]")).to_have_count(0)
    tag = card.get_by_placeholder("Add tag")
    tag.fill("first try")
    tag.press("Enter")
    wait_for(lambda: read_notes(run).tags == ("first try",), 60)
    expect(card.locator(".run-tag")).to_contain_text("#first try")
    page.locator("h2").first.click()
    page.keyboard.press("/")
    page.keyboard.type('tag:"first try" finished')
    expect(page.locator("#library-count")).to_contain_text("1 of ")
    expect(page.locator(".run-card")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(page.locator(f".run-card[data-run='{other.name}']")).to_have_count(1)
    for each in (run, other):
        page.get_by_label(f"Compare {each.name}").check()
    page.click("#library-compare")
    expect(page.locator("#compare-plot canvas")).to_have_count(1)
    expect(page.locator("tr[data-row='optimizer.learning_rate'] td")).to_have_count(2)
    best = min(event["loss"] for event in events_of(other, "validation"))
    expect(page.locator("tr[data-row='Best held-out loss'] td").last).to_contain_text(f"{best:.5f}")
    page.select_option("#compare-by", "time")
    page.click("#compare-close")
    with page.expect_popup() as popup:
        card.get_by_text("Report", exact=True).click()
    expect(popup.value.locator("h1")).to_have_text(run.name, timeout=60_000)
    expect(popup.value.locator("body")).to_contain_text("SHA-256")
    popup.value.close()
    card.get_by_text("Train further", exact=False).click()
    page.fill("#further-length", str(STEPS + 2))
    expect(page.locator("#further-sentences")).to_contain_text(f"after step {STEPS} of {STEPS + 2}")
    expect(page.locator("#further-rates polyline")).to_have_count(1)
    expect(page.locator("#further-start")).to_be_enabled()
    page.keyboard.press("Escape")


def safetensors_names(path: Path) -> frozenset[str]:
    """The keys of a file."""
    from backend.families.files.headers import read_header

    return read_header(path).names


def events_of(run: Run, kind: str) -> list[dict]:
    """The run's events of one kind."""
    from tests.tiny.event_lines import event_lines

    return event_lines(run, kind)


def test_a_run_survives_its_server_and_is_stopped_from_the_page(held: Watched, server: Server) -> None:
    page = held.page
    choose_quick_demo(page, server, 5000)
    page.click("#start")
    page.wait_for_function("window.monotile.currentTab() === 'Run'")
    run = server.newest()
    page.wait_for_function(TRAINING, timeout=TRAINING_MS)

    page.click("#start")
    expect(page.locator(".toast").last).to_contain_text("still running")

    with suspended(run):
        server.end(signal.SIGKILL)
        expect(page.locator(".offline")).to_be_visible()
        assert run.is_alive()
        server.start()
        expect(page.locator(".offline")).to_be_hidden()
        # The form works on with the new server, and knows what was in it.
        type_in(page, "network.network_dim", "many")
        expect(page.locator("#f-network-network_dim .field-problem")).to_have_count(1)
        type_in(page, "network.network_dim", "16")
        expect(page.locator("#problem-summary")).to_be_hidden()
        expect(page.locator("#preset-button")).to_contain_text("demo")
        tab(page, "Run")
        expect(page.locator("#run-picker")).to_have_value(run.name)
    before = page.evaluate(PANEL)["step"]
    wait_for(lambda: page.evaluate(PANEL)["step"] != before, 60)

    page.click("#save-now")
    wait_for(lambda: len(run.checkpoints()) >= 1, 120)
    page.click("#stop")
    expect(page.locator("#run-state")).to_have_text("Stopped", timeout=TRAINING_MS)
    wait_for(lambda: not run.is_alive(), 60)
    wait_for(lambda: panel_agrees(page, run), 20, lambda: f"{page.evaluate(PANEL)} {MetricsReader(run).last()}")
    # Its way back: deleted in the library and restored.
    tab(page, "Library")
    card = page.locator(f".run-card[data-run='{run.name}']")
    card.get_by_text("Delete", exact=True).click()
    expect(card).to_have_count(0)
    page.locator(".toast").last.get_by_text("Undo").click()
    expect(card).to_have_count(1)
    assert run.path.is_dir()


def test_a_trainer_that_dies_at_start_tells_why_and_a_run_from_elsewhere_is_seen(
    watched: Watched, server: Server
) -> None:
    """The page shows the exception's own words as text; and a run that no page started appears by itself."""
    import sys

    from backend.config.load import parse

    page = watched.page
    tab(page, "Run")
    config = parse({"saving": {"output_dir": str(server.runs), "output_name": "elsewhere"}}).config
    assert config is not None
    run = Run.create(config)
    code = "import time; time.sleep(3); raise MemoryError('planted ${7*7} {{this}} <b>')"
    # The page looks in the folder that its form names.
    type_in(page, "saving.output_dir", str(server.runs))
    tab(page, "Run")
    start_run(None, run, command=[sys.executable, "-c", code])
    expect(page.locator("#run-picker")).to_have_value(run.name)
    expect(page.locator("#run-state")).to_have_text("Failed")
    expect(page.locator("#run-error")).to_be_visible()
    expect(page.locator("#run-error .remedy")).not_to_be_empty()
    expect(page.locator("#run-log")).to_contain_text("planted ${7*7} {{this}} <b>")
    assert page.locator(field(page, "saving.output_dir")).count() >= 0
