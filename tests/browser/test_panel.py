"""The Run panel over runs with known records: its verdicts, its zoom, its pictures, and text that is never code."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from backend.config.load import load
from backend.config.schema import with_values
from backend.runs.events import EventWriter
from backend.runs.events.kinds import (
    AttentionEvent,
    CompileStateEvent,
    CudaGraphsEvent,
    GraphBreakEvent,
    GraphEvent,
    PlanEvent,
    RecompileEvent,
    ResumedEvent,
    SampleEvent,
    WarningEvent,
)
from backend.runs.folder import Run
from backend.runs.metrics import MetricsWriter
from tests.browser.conftest import HANDLE, go_to, tab, type_in, wait_for
from tests.gui.conftest import make_run
from tests.tiny.runs import set_fields


@pytest.fixture
def panel(page: Page, tmp_path: Path) -> tuple[Page, Run]:
    """The Run tab of a page that looks into a folder with one finished run."""
    run = make_run(tmp_path / "runs", steps=400)
    type_in(page, "saving.output_dir", str(tmp_path / "runs"))
    tab(page, "Run")
    page.select_option("#run-picker", run.name)  # other tests' runs are listed too
    return page, run


# Whether what is drawn of the smoothed loss has its middle in that of the loss chart.
IN_THE_MIDDLE = """() => {
  const canvas = document.querySelector("#loss-plot canvas"), over = document.querySelector("#loss-plot .u-over");
  if (!canvas || !over) return false;
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const drawn = copy.getContext("2d", { willReadFrequently: true });
  drawn.fillStyle = getComputedStyle(document.body).getPropertyValue("--mt-accent").trim();
  drawn.fillRect(0, 0, 1, 1);
  const [red, green, blue] = drawn.getImageData(0, 0, 1, 1).data;
  drawn.drawImage(canvas, 0, 0);
  const area = over.getBoundingClientRect(), whole = canvas.getBoundingClientRect();
  const scale = canvas.width / whole.width;
  const [left, top] = [area.left - whole.left, area.top - whole.top].map((px) => Math.round(px * scale));
  const [width, height] = [area.width, area.height].map((px) => Math.round(px * scale));
  const data = drawn.getImageData(left, top, width, height).data;
  let [count, across, down] = [0, 0, 0];
  for (let at = 0; at < width * height; at++) {
    if (data[4 * at] !== red || data[4 * at + 1] !== green || data[4 * at + 2] !== blue) continue;
    count += 1, across += at % width, down += Math.floor(at / width);
  }
  return count > 0 && [across / count / width, down / count / height].every((share) => Math.abs(share - 0.5) < 0.04);
}"""


def test_a_zoom_stays_while_the_run_goes_on(panel: tuple[Page, Run]) -> None:
    page, run = panel
    over = page.locator("#loss-plot .u-over")
    expect(over).to_be_visible()
    box = over.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=5)
    with page.expect_request(lambda request: "since=" in request.url) as asked:
        page.mouse.up()
    since, until = (int(asked.value.url.split(f"{name}=")[1].split("&")[0]) for name in ("since", "until"))
    assert 80 <= since <= 120 and 180 <= until <= 220
    whole = page.get_by_text("Reset zoom")
    expect(whole).to_be_visible()
    with MetricsWriter(run, generation=1, start_step=400) as metrics:
        metrics.add(401, loss=0.5, loss_smooth=0.5)
    with page.expect_request(lambda request: "/live" in request.url and f"since={since}" in request.url):
        pass
    expect(page.locator("#stat-step .stat-value")).to_contain_text("40")
    with page.expect_request(lambda request: "/live" in request.url and "since=" not in request.url):
        whole.click()
    expect(whole).to_be_hidden()
    page.locator("#log-scale").check()
    page.locator("#smoothing").fill("0")
    expect(page.locator("#loss-plot canvas")).to_have_count(1)
    # the axes of one step open around it, so that its point is in the middle of both
    page.locator("#log-scale").uncheck()
    single = make_run(run.path.parent, "single", steps=1)
    page.select_option("#run-picker", single.name, timeout=30_000)
    page.wait_for_function(IN_THE_MIDDLE, timeout=10_000)


# Drops a settings file of another trainer on the page.
DROPPED = """(text) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], "theirs.toml"));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
}"""


def choose_language(page: Page, code: str) -> None:
    """Choose a language in the bar and wait for the page in it."""
    page.click("#language")
    with page.expect_event("load"):
        page.click(f"[data-language={code}]")
    expect(page.locator("html")).to_have_attribute("data-language", code)
    expect(page.locator("html")).to_have_attribute("lang", code)
    page.wait_for_selector("#f-model-base_model .mt-help", state="attached")
    page.evaluate(HANDLE)


def test_the_page_is_shown_in_german_and_back_with_what_was_typed(panel: tuple[Page, Run]) -> None:
    page, run = panel
    picker, folder = page.locator("#run-picker"), page.locator("#f-saving-output_dir")
    choose_language(page, "de")
    expect(page.get_by_role("tab", name="Lauf", exact=True)).to_have_attribute("aria-selected", "true")
    page.select_option("#run-picker", run.name)
    expect(page.locator("#run-state")).to_have_text("Fertig")
    expect(picker.locator(f"option[value='{run.name}']")).to_have_text(f"{run.name} · fertig")
    expect(page.locator("#card-samples figcaption").first).to_have_text("Schritt 400")
    go_to(page, "saving.output_dir")
    expect(folder.get_by_text("Ausgabeordner", exact=True)).to_be_visible()
    expect(folder.locator("input, textarea").first).to_have_value(str(run.path.parent))
    expect(folder.locator(".mt-help")).to_contain_text("Jeder Lauf bekommt")
    # the search knows both names, and a problem of the form is told in the page's language
    for word in ("Lernrate", "Learning rate"):
        page.fill("#search", word)
        expect(page.locator(".suggestions [role=option]").first).to_contain_text("Lernrate")
    page.fill("#search", "")
    page.click("#start")
    expect(page.locator("#problem-summary")).to_contain_text("Kein Basismodell gewählt.")
    page.evaluate(DROPPED, 'network_module = "networks.lora_flux"\nclip_skip = 2\nnetwork_dim = 48\n')
    left = page.locator(".import-notes", has_text="Nicht importiert (2)")
    expect(left.locator("li").first).to_have_text(
        "Zeile 2: clip_skip = 2: Text-Encoder werden an dem Layer benutzt, den die eigene Pipeline des Modells benutzt"
    )
    expect(page.locator("dialog[open] > .note, dialog[open] .note").first).to_contain_text("Argumente von sd-scripts")
    page.keyboard.press("Escape")
    expect(left).to_have_count(0)
    # and what is wrong in a file of ours
    page.evaluate(DROPPED, '[network]\nnetwork_dimm = 4\nnetwork_alpha = "x"\n')
    expect(page.locator("dialog[open] .bad-list li")).to_have_text(
        [
            "Zeile 2: network.network_dimm: Es gibt keine Einstellung „network_dimm“ in [network]. "
            "Ist network.network_dim gemeint?",
            'Zeile 3: network.network_alpha: Muss eine Zahl sein, nicht "x". network_alpha = 16.0 schreiben.',
        ]
    )
    page.keyboard.press("Escape")
    choose_language(page, "en")
    go_to(page, "saving.output_dir")
    expect(folder.get_by_text("Output folder", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Run", exact=True).click()
    page.select_option("#run-picker", run.name)
    expect(page.locator("#run-state")).to_have_text("Finished")


def test_weight_norms_are_drawn_for_runs_that_limit_them(panel: tuple[Page, Run]) -> None:
    page, run = panel
    expect(page.locator("#loss-plot canvas")).to_be_visible()
    expect(page.locator("#card-norms")).to_be_hidden()
    with MetricsWriter(run, generation=1, start_step=400) as metrics:
        for step in (401, 402):
            metrics.add(step, loss=0.5, norm_max=1.0, norm_mean=0.25, layers_scaled=step - 400)
    expect(page.locator("#norms-note")).to_have_text("2 layers scaled back to the limit in the last step.")
    expect(page.locator("#norms-plot canvas")).to_be_visible()
    expect(page.locator("#norms-plot .u-legend")).to_contain_text("0.25")
    other = make_run(run.path.parent, "hare")
    page.locator("#run-picker option").nth(1).wait_for(state="attached")
    page.select_option("#run-picker", other.name)
    expect(page.locator("#card-norms")).to_be_hidden()


def test_nothing_is_told_of_a_run_before_its_first_answer(panel: tuple[Page, Run]) -> None:
    """The state and the numbers of the run before it would be read as its own."""
    page, run = panel
    state, verdict, step = page.locator("#run-state"), page.locator("#compile-verdict"), page.locator("#stat-step")
    expect(state).to_have_text("Finished")
    expect(verdict).not_to_have_text("")
    expect(page.locator("#further")).to_be_visible()
    expect(page.locator("#run-folder")).to_contain_text(run.name)
    other = make_run(run.path.parent, "later")
    page.locator(f"#run-picker option[value={other.name}]").wait_for(state="attached")
    held: list[Route] = []
    page.route(f"**/live?run={other.name}&**", lambda route: held.append(route))
    page.select_option("#run-picker", other.name)
    expect(state).to_be_hidden()
    expect(verdict).to_be_hidden()
    expect(step.locator(".stat-value")).to_have_text("–")
    expect(page.locator("#further")).to_be_hidden()
    for place in ("#memory-now", "#memory-note", "#run-folder"):
        expect(page.locator(place)).to_have_text("")
    wait_for(lambda: held, 10)
    for route in held:
        route.continue_()
    page.unroute(f"**/live?run={other.name}&**")
    expect(state).to_have_text("Finished")
    expect(step.locator(".stat-value")).not_to_have_text("–")
    expect(page.locator("#run-folder")).to_contain_text(other.name)


def test_the_compile_panel_is_green_amber_or_red_with_the_reason(panel: tuple[Page, Run]) -> None:
    page, run = panel
    verdict = page.locator("#compile-verdict")
    events = EventWriter(run)
    events.write(PlanEvent(steps={"epochs": 6.25}))
    events.write(CompileStateEvent(state="compiled", reason=None, planned=4))
    expect(verdict).to_have_class("verdict good")
    expect(page.locator("#stat-epoch .stat-value")).to_have_text("6.25 / 6.25")
    expect(page.locator("#stat-graphs .stat-value")).to_have_text("4 / 4")
    expect(page.locator("#stat-recompiles")).to_have_class("stat good")
    events.write(CompileStateEvent(state="fallback", reason="No C compiler was found.", planned=4))
    expect(verdict).to_have_class("verdict warn")
    expect(verdict).to_contain_text("fell back to eager (not compiled). No C compiler was found.")
    events.write(CompileStateEvent(state="compiled", reason=None, planned=4))
    for _ in range(3):
        events.write(GraphBreakEvent(reason="a call that torch can't trace", file="denoise.py", line=97))
    with MetricsWriter(run, generation=1, start_step=400) as metrics:
        metrics.add(401, loss=0.5, graphs=4, recompiles=0, breaks=3, limit_hits=1)
    expect(verdict).to_have_class("verdict warn")
    expect(verdict).to_contain_text("Compiled, with 3 graph breaks")
    expect(page.locator("#compile-reasons")).to_contain_text("Graph break · 3 times")
    expect(page.locator("#stat-limits")).to_have_class("stat warn")
    # Linear layers left out on purpose: nothing is planned, and breaks are what was asked for.
    events.write(CompileStateEvent(state="compiled", reason=None, planned=None))
    expect(verdict).to_have_class("verdict good")
    expect(page.locator("#stat-graphs .stat-value")).to_have_text("4")
    events.write(CompileStateEvent(state="compiled", reason=None, planned=4))
    reason = "caption length went from 128 to 256 ${1+1} {{x}} <i>"
    events.write(RecompileEvent(reason=reason, block="double", setting="caption_buckets"))
    with MetricsWriter(run, generation=1, start_step=400) as metrics:
        metrics.add(401, loss=0.5, graphs=5, recompiles=1, breaks=0)
    expect(verdict).to_have_class("verdict bad")
    expect(verdict).to_contain_text(reason)
    expect(page.locator("#compile-reasons")).to_contain_text("Fix: caption_buckets")
    expect(page.locator("#stat-recompiles")).to_have_class("stat bad")
    for text in ("First.", "Second.", "Third."):
        events.write(WarningEvent(text=text, remedy=""))
    expect(page.locator("#run-warnings > .warning")).to_have_text("Third.")
    page.locator("#run-warnings summary").click()
    expect(page.locator("#run-warnings details .warning")).to_have_text(["Second.", "First."])
    # A process that resumes the run counts anew; until its first step its events tell.
    set_fields(run.record_path, generation=2)
    events.write(ResumedEvent(step=401))
    events.write(GraphEvent(graph=1, block="double", seconds=2.5, cached=True, gradients=True))
    expect(page.locator("#stat-graphs .stat-value")).to_have_text("1")
    expect(page.locator("#stat-recompiles .stat-value")).to_have_text("0")
    expect(page.locator("#stat-compile .stat-value")).to_have_text("2.5 s")
    expect(page.locator("#stat-hits .stat-value")).to_have_text("1")
    assert_measured(events, verdict)
    events.write(CudaGraphsEvent(state="left out", reason="the card does not wait for the processor"))
    expect(verdict).to_contain_text("CUDA graphs are left out: the card does not wait for the processor.")


def assert_measured(events: EventWriter, verdict: Locator) -> None:
    """What recording saves, and which attention is the fastest, with the package that does not load."""
    recorded = {"shapes": 2, "seconds": 1.5, "kept": 3 << 30, "plain_ms": 620.0, "replay_ms": 134.0}
    events.write(CudaGraphsEvent(state="recorded", **recorded))
    expect(verdict).to_contain_text("CUDA graphs: the passes of 2 shapes are replayed, which uses 3.0 GB of memory.")
    expect(verdict).to_contain_text("A forward and backward pass takes 134 ms; before, it took 620 ms.")
    times = {"form": "1 x 4608 tokens", "milliseconds": {"sdpa": 2.25, "flex": 2.09}}
    left_out = {"fa4": "flash-attn-4 is installed but does not load (ImportError: no)", "fa3": "fa3 is not installed"}
    events.write(AttentionEvent(route="flex", detail="flex attention", how="measured", left_out=left_out, **times))
    text = "Attention: flex (flex attention), the fastest of those measured for 1 x 4608 tokens:"
    text += " flex 2.09 ms, sdpa 2.25 ms."
    expect(verdict).to_contain_text(f"{text} flash-attn-4 is installed but does not load (ImportError: no).")
    expect(verdict).not_to_contain_text("fa3")


def test_samples_open_large_and_paths_are_copied(panel: tuple[Page, Run]) -> None:
    page, run = panel
    from PIL import Image

    for step in (0, 400):
        Image.new("RGB", (64, 64), (step % 255, 80, 90)).save(run.samples_dir / f"s{step}.png")
        EventWriter(run).write(
            SampleEvent(step=step, prompt_index=1, file=f"samples/s{step}.png", prompt="a <b>bold</b> fox")
        )
    strip = page.locator(".sample-row").filter(has_text="a <b>bold</b> fox")
    expect(strip.locator("img")).to_have_count(2)
    expect(strip.locator("figcaption").first).to_have_text("before training")
    strip.locator("button").first.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Before training")
    page.keyboard.press("ArrowRight")
    expect(dialog).to_contain_text("Step 400")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    page.locator("#run-files").get_by_text("Copy path").first.click()
    expect(page.locator(".toast").last).to_contain_text("Copied")


def test_the_compile_tab_and_the_panel_say_when_a_compile_has_paid(panel: tuple[Page, Run]) -> None:
    page, run = panel
    settings = load(run.config_path).config
    assert settings is not None
    for compiles, seconds in ((True, 0.125), (False, 0.1875)):
        other = Run.create(with_values(settings, {"compile.compile": compiles}))
        with MetricsWriter(other) as metrics:
            for step in range(1, 20):
                metrics.add(
                    step,
                    loss=1.0,
                    s_per_step=seconds,
                    compile_seconds=30.0 if compiles else 0.0,
                    graphs=4 * compiles,
                    syncs=0,
                )
        if compiles:
            compiled = other
    tab(page, "Compile")
    expect(page.locator("#payback-note")).to_contain_text("pays off after 480 steps")
    expect(page.locator("#cache-export")).to_be_visible()
    expect(page.locator("#cache-import")).to_be_enabled()
    tab(page, "Run")
    page.locator("#run-picker").select_option(compiled.name)
    expect(page.locator("#compile-payback")).to_contain_text("after 480 steps")
    expect(page.locator("#stat-syncs")).to_contain_text("0")
