"""The page as a person meets it: it opens, finds settings, tells mistakes beside their fields, keeps what was typed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import psutil
from playwright.sync_api import Page, Request, Route, expect

from backend.config.schema import settings
from backend.runs.folder import Run
from backend.runs.picture_table import PictureId, PictureTable, write_table
from gui import fields
from tests.browser.bulk_captions import captions_are_changed_together, near_duplicates_are_left_out
from tests.browser.conftest import Server, Watched, caption_by_model, field, go_to, load_preset, tab, type_in
from tests.gui.conftest import make_run

TABS = tuple(fields.TABS.values())


# Goes to each field as the search does; returns those that did not get the cursor, or did not show it or their help.
REACHED = """async wanted => {
  const words = text => text.replace(/\\s+/g, " ").trim();
  const seen = element => {
    const {width, height} = element.getBoundingClientRect();
    return width > 0 && height > 0 && element.checkVisibility({visibilityProperty: true, opacityProperty: true});
  };
  const missed = [];
  for (const [id, help] of wanted) {
    const there = () => {
      const box = document.getElementById(id);
      if (!box?.contains(document.activeElement) || !seen(box)) return false;
      const shown = box.querySelector(".mt-help");
      return help === null || (shown !== null && seen(shown) && words(shown.textContent) === words(help));
    };
    const end = performance.now() + 15000;
    window.monotile.goToField(id);
    while (!there() && performance.now() < end) await new Promise(requestAnimationFrame);
    if (!there()) missed.push(id);
    if (missed.length > 2) break;
  }
  return missed;
}"""


def test_every_setting_can_be_reached_and_shows_its_help(page: Page) -> None:
    # tab by tab: to show another one takes the browser longer than to find a field
    by_tab = sorted(settings(), key=lambda each: list(fields.TABS).index(fields.group_of(each).tab))
    wanted = [(fields.elem_id(each.path), each.help if each.kind != "tables" else None) for each in by_tab]
    assert len(wanted) > 100 and page.evaluate(REACHED, wanted) == []


def test_the_server_speaks_to_nobody_but_the_browser(watched: Watched) -> None:
    assert watched.server.process is not None
    connections = psutil.Process(watched.server.process.pid).net_connections(kind="inet")
    assert {c.raddr.ip for c in connections if c.raddr} <= {"127.0.0.1", "::1"}


def test_keys_are_listed_and_the_search_finds_a_setting_by_another_trainers_name(page: Page) -> None:
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Start training")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("bucket_no_upscale")
    expect(page.locator(".suggestions [role=option]")).to_have_count(1)
    page.keyboard.press("Enter")
    page.wait_for_function("window.monotile.currentTab() === 'Dataset'")
    page.wait_for_function("document.activeElement?.closest('#f-dataset-no_upscale')")
    # in a field a slash is a slash
    go_to(page, "model.base_model")
    page.keyboard.type("/")
    assert page.evaluate("document.activeElement.id") != "search"


MISTAKES = [
    ("network.network_dim", "many", "many"),
    ("network.network_dim", "", "empty"),
    ("optimizer.learning_rate", "1e", "1e"),
    ("dataset.batch_size", "0", "1 to 1024"),
    ("optimizer.optimizer_args", "momentum: 1", "can't be read"),
    ("training.max_train_steps", "-1", "-1"),
]


def test_a_mistake_is_told_beside_its_field_and_above(page: Page) -> None:
    for path, typed, words in MISTAKES:
        go_to(page, path)
        before = page.locator(field(page, path)).first.input_value()
        type_in(page, path, typed)
        problem = page.locator(f"#{fields.elem_id(path)} .field-problem.error")
        expect(problem).to_have_count(1)
        assert words in problem.inner_text() and problem.inner_text().count(".") >= 1, (path, typed)
        expect(page.locator(field(page, path)).first).to_have_attribute("aria-invalid", "true")
        tab(page, "Library")
        expect(page.locator("#problem-summary")).to_be_visible()
        page.click("#problem-summary button")
        page.wait_for_function(
            "id => document.getElementById(id)?.contains(document.activeElement)", arg=fields.elem_id(path)
        )
        type_in(page, path, before)
        expect(page.locator("#problem-summary")).to_be_hidden()
        expect(problem).to_have_count(0)


def test_a_contradiction_stands_at_the_field_that_makes_it(page: Page) -> None:
    type_in(page, "training.max_train_steps", "100")
    type_in(page, "training.max_train_epochs", "3")
    expect(page.locator("#f-training-max_train_steps .field-problem.error")).to_contain_text("twice")
    type_in(page, "training.max_train_epochs", "")
    expect(page.locator(".field-problem.error")).to_have_count(0)


def test_a_text_field_that_is_left_as_it_was_sends_nothing(watched: Watched) -> None:
    page = watched.page
    suggestions = page.locator(".suggestions")
    go_to(page, "model.base_model")
    watched.requests.clear()
    page.keyboard.type("/")
    expect(suggestions).to_be_visible()
    with page.expect_response("**/run/predict"):
        go_to(page, "network.network_dim")
    for path in ("network.network_alpha", "model.base_model"):
        go_to(page, path)
    expect(suggestions).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    # its own list is closed all the same
    expect(suggestions).to_have_count(0)
    assert len([url for url in watched.requests if "gradio_api" in url]) == 1


OLD_ANSWER = """async () => {
  const { receive } = await import(new URL("page/js/bridge.js", document.baseURI));
  receive({ number: 1, problems: [{ path: null, text: "This is past.", remedy: "", severity: "error" }] });
}"""


def test_an_edit_sends_its_field_alone_and_a_button_keeps_what_is_being_typed(watched: Watched) -> None:
    page = watched.page
    fields_sent: list[int] = []

    def count(request: Request) -> None:
        if request.method == "POST" and "gradio_api" in request.url:
            fields_sent.append(len(request.post_data_json["data"]))

    page.on("request", count)
    type_in(page, "network.network_dim", "24")
    page.wait_for_function("(window.monotile.state.draft.changedFromDefault || []).includes('network.network_dim')")
    assert fields_sent == [1]
    # half typed, when a button changes another field
    go_to(page, "saving.output_name")
    name = page.locator(field(page, "saving.output_name")).first
    name.fill("half a na")
    page.evaluate("window.monotile.act('apply', { change: { 'training.seed': 7 } })")
    page.locator(".toast").get_by_text("Changed: ").wait_for()
    expect(page.locator(field(page, "training.seed")).first).to_have_value("7")
    expect(name).to_have_value("half a na")
    assert fields_sent.pop() > 100
    name.blur()
    page.evaluate("window.monotile.act('undo')")
    expect(page.locator(field(page, "training.seed")).first).to_have_value("42")
    assert len(fields_sent) >= 2 and set(fields_sent) == {1}
    # the older of two answers can arrive last
    page.evaluate(OLD_ANSWER)
    expect(page.locator("#problem-summary")).to_be_hidden()


def test_start_without_anything_says_all_that_is_missing(page: Page, server: Server) -> None:
    page.keyboard.press("Control+Enter")
    summary = page.locator("#problem-summary")
    expect(summary).to_contain_text("No base model is chosen")
    expect(summary).to_contain_text("No image folder is given")
    assert page.evaluate("window.monotile.currentTab()") == "Model"
    expect(page.locator("#start")).to_be_enabled()


def test_a_preset_is_saved_loaded_undone_deleted_and_brought_back(page: Page) -> None:
    load_preset(page, "flux-lora")
    type_in(page, "network.network_dim", "24")
    expect(page.locator("#preset-button")).to_contain_text("1 changed")
    # the bar stays one line
    assert page.locator(".bar").evaluate("bar => bar.offsetHeight") < 70
    page.click("#save-as")
    page.fill("#ask-name", "mine")
    page.keyboard.press("Enter")
    expect(page.locator("#preset-button")).to_contain_text("mine")
    page.click("#preset-button")
    page.click("[data-preset='flux-lora-80gb']")
    expect(page.locator(".preset-side tbody tr").first).to_contain_text("Network rank (dim)")
    page.click("[data-do=load]")
    expect(page.locator(field(page, "network.network_dim")).first).to_have_value("32")
    page.click("#undo")
    expect(page.locator(field(page, "network.network_dim")).first).to_have_value("24")
    expect(page.locator("#preset-button")).to_contain_text("mine")
    page.click("#redo")
    expect(page.locator(field(page, "network.network_dim")).first).to_have_value("32")
    load_preset(page, "mine")
    page.click("#preset-button")
    page.locator(".preset-side .danger").click()
    expect(page.locator(".toast").last).to_contain_text("was deleted")
    page.locator(".toast").last.get_by_text("Undo").click()
    page.click("#preset-button")
    expect(page.locator("[data-preset='mine']")).to_have_count(1)


def test_the_demo_is_pointed_out_to_who_has_no_run_yet(page: Page) -> None:
    load_preset(page, "demo")
    page.evaluate("window.monotile.emit('runs', [])")
    expect(page.locator("#welcome")).to_contain_text("The demo is ready to start")
    # looked at at once: the page's next look at the runs finds none
    emitted = "window.monotile.emit('runs', [{name: 'fox', state: 'done'}])"
    assert page.evaluate(f"() => {{ {emitted}; return document.getElementById('welcome').hidden }}")


def test_a_file_is_imported_or_its_mistakes_are_told(page: Page, tmp_path: Path) -> None:
    good, bad = tmp_path / "good one.toml", tmp_path / "bad one.toml"
    good.write_text("# Good\n[network]\nnetwork_dim = 12\n", encoding="utf-8")
    bad.write_text('[network]\nnetwork_dimm = 4\n\n[training]\nseed = "x"\n', encoding="utf-8")
    for path in (good, bad):
        with page.expect_file_chooser() as chooser:
            page.click("#import")
        chooser.value.set_files(path)
        if path is good:
            expect(page.locator("dialog[open]")).to_contain_text("Read as settings of Monotile.")
            page.click("[data-do=save-import]")
            expect(page.locator(".toast").last).to_contain_text("Saved as “good one”.")
    expect(page.locator(".dialog .bad-list li")).to_have_count(2)
    expect(page.locator(".dialog .bad-list")).to_contain_text("Line 2")
    expect(page.locator(".dialog .bad-list")).to_contain_text("network_dim")
    page.keyboard.press("Escape")


def test_what_was_typed_outlives_a_reload_and_is_seen_in_a_second_tab(watched: Watched) -> None:
    page = watched.page
    type_in(page, "saving.output_name", "kept ${1+1} {{name}} <b>")
    page.wait_for_function("(window.monotile.state.draft.changedFromDefault || []).includes('saving.output_name')")
    page.reload()
    watched.ready()
    go_to(page, "saving.output_name")
    expect(page.locator(field(page, "saving.output_name")).first).to_have_value("kept ${1+1} {{name}} <b>")
    other = Watched(page.context.new_page(), watched.server)
    other.open()
    go_to(other.page, "saving.output_name")
    expect(other.page.locator(field(other.page, "saving.output_name")).first).to_have_value("kept ${1+1} {{name}} <b>")
    assert other.said == []


def test_scripts_that_come_after_the_page_find_it_whole(watched: Watched) -> None:
    """As where a browser or a disk is slow: what stands there already is filled as what comes later is."""
    page = watched.page
    held: list[Route] = []
    page.route("**/page/js/main.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    page.wait_for_selector("#bar-root", state="attached")
    held[0].continue_()
    watched.ready()
    expect(page.locator("#start")).to_be_enabled()
    page.click("#theme")
    expect(page.locator("body")).to_contain_class("dark")


def measured_run(server: Server, images: Path) -> Run:
    """A run that measured the images of a folder twice: the loss of the last one rose."""
    run = make_run(server.runs, "measured")
    files = sorted(images.glob("*.png"))
    ids = [PictureId("", sha256(file.read_bytes()).hexdigest(), str(file)) for file in files]
    table = PictureTable({}).with_moment("start", 0, dict.fromkeys(ids, 0.5))
    write_table(run, table.with_moment("end", 30, dict(zip(ids, [0.4] * 7 + [0.6], strict=True))))
    return run


def images_are_sorted_by_what_a_run_measured(page: Page, run: Run) -> None:
    expect(page.locator("#thumb-run")).to_have_value(run.name)
    expect(page.locator("#thumbs .tag").first).to_have_text("learnt −20.0 %")
    # by keyboard, as a select is used; it keeps the cursor
    page.locator("#thumb-order").focus()
    page.keyboard.press("v")
    expect(page.locator("#thumbs .thumb").first.locator(".tag")).to_have_text("loss rose +20.0 %")
    assert page.evaluate("document.activeElement.id") == "thumb-order"
    page.locator("#thumbs .picture").first.click()
    expect(page.locator("dialog h2")).to_have_text("picture_7.png (1 of 8)")
    expect(page.locator("#caption-losses")).to_contain_text(f"Loss in {run.name}: start 0.5 · end 0.6")
    page.click("#caption-next")
    expect(page.locator("dialog h2")).to_have_text("picture_0.png (2 of 8)")
    page.keyboard.press("Escape")
    # the select outlives the result of a scan, and with it the place of whoever uses it
    select, before = page.query_selector("#thumb-order"), page.locator("#thumbs img").first.get_attribute("src")
    page.click("[data-scan=scan]")
    expect(page.locator("#thumbs img").first).not_to_have_attribute("src", before)
    assert select.evaluate("(node) => node.isConnected")


def test_folders_and_prompts_are_edited_in_rows(page: Page, server: Server, image_folder: Path, tmp_path: Path) -> None:
    run = measured_run(server, image_folder)
    type_in(page, "saving.output_dir", str(run.path.parent))
    go_to(page, "dataset.folders")
    box = page.locator("#f-dataset-folders")
    box.get_by_text("+ Add").click()
    path = box.locator("[data-column=path] input")
    path.fill(str(image_folder.parent) + "/")
    page.locator(".suggestions [role=option]").get_by_text("images/", exact=True).click()
    expect(path).to_have_value(str(image_folder) + "/")
    page.keyboard.press("Escape")
    box.locator("[data-column=num_repeats] input").fill("two")
    box.locator("[data-column=num_repeats] input").blur()
    expect(box.locator("[data-column=num_repeats] input")).to_have_attribute("aria-invalid", "true")
    box.locator("[data-column=num_repeats] input").fill("2")
    box.locator("[data-column=num_repeats] input").blur()
    expect(page.locator("#problem-summary")).to_be_hidden()
    scan = 1 + page.evaluate("async () => (await (await fetch('scan')).json()).scan")
    page.click("[data-scan=scan]")
    expect(page.locator("#plan-headline")).to_contain_text("graph")
    # those of this scan, not of one that an earlier test made
    expect(page.locator(f"#thumbs img[src*='scan={scan}&']")).to_have_count(8)
    page.locator("#thumbs").scroll_into_view_if_needed()
    page.wait_for_function("[...document.querySelectorAll('#thumbs img')].slice(0, 4).every(i => i.naturalWidth > 0)")
    page.locator("#thumbs .picture").first.click()
    expect(page.locator("#caption-text")).not_to_have_value("")
    page.fill("#caption-text", "a written caption")
    page.click("#caption-save")
    expect(page.locator("#caption-note")).to_have_text("Saved.")
    # what is written while the next picture is on its way belongs to the one that is shown
    coming: list[Route] = []
    page.route("**/scan/caption?*", lambda route: coming.append(route))
    with page.expect_request("**/scan/caption?*"):
        page.click("#caption-next")
    page.fill("#caption-text", "a caption in the meantime")
    page.click("#caption-save")
    expect(page.locator("#thumbs [data-caption='0']")).to_have_text("a caption in the meantime")
    (held,) = coming
    held.continue_()
    page.unroute("**/scan/caption?*")
    expect(page.locator("dialog h2")).to_contain_text("(2 of 8)")
    page.fill("#caption-text", "a written caption")
    page.click("#caption-save")
    expect(page.locator("#caption-note")).to_have_text("Saved.")
    page.keyboard.press("Escape")
    expect(page.locator("#thumbs [data-caption='1']")).to_have_text("a written caption")
    assert any(file.read_text("utf-8") == "a written caption" for file in image_folder.glob("*.txt"))
    captions_are_changed_together(page, image_folder)
    near_duplicates_are_left_out(page)
    images_are_sorted_by_what_a_run_measured(page, run)
    caption_by_model(page, image_folder)
    tab(page, "Compile")
    expect(page.locator("#mode-table tbody tr")).to_have_count(4)
    tab(page, "Dataset")
    box.get_by_label("Remove").click()
    page.locator(".toast").last.get_by_text("Undo").click()
    expect(box.locator("[data-column=path] input")).to_have_value(str(image_folder) + "/")
    box.get_by_label("Remove").click()
    expect(box.locator(".row-card")).to_have_count(0)
    page.wait_for_function("!(window.monotile.state.draft.changedFromDefault || []).includes('dataset.folders')")


def test_the_base_model_is_checked_as_soon_as_it_is_typed(page: Page, tiny_flux: Path, tmp_path: Path) -> None:
    type_in(page, "model.base_model", str(tmp_path))
    expect(page.locator("#model-verdict")).to_have_class("verdict bad")
    type_in(page, "model.base_model", str(tiny_flux))
    expect(page.locator("#model-verdict")).to_contain_text("FLUX.1 found")
    type_in(page, "model.base_model", "")


def test_the_choice_of_light_or_dark_is_remembered(watched: Watched) -> None:
    page = watched.page
    page.click("#theme")
    assert page.evaluate("document.body.classList.contains('dark')")
    page.reload()
    watched.ready()
    assert page.evaluate("document.body.classList.contains('dark')")


def test_the_keyboard_shows_where_it_is(page: Page) -> None:
    page.keyboard.press("Tab")
    for _ in range(12):
        page.keyboard.press("Tab")
        style, width = page.evaluate(
            "(({ outlineStyle, outlineWidth }) => [outlineStyle, parseFloat(outlineWidth)])"
            "(getComputedStyle(document.activeElement))"
        )
        assert style != "none" and width >= 2


def test_what_the_family_lacks_is_hidden_until_it_is_sought(forgetful: Watched) -> None:
    page = forgetful.page
    go_to(page, "timesteps.discrete_flow_shift")
    go_to(page, "loss.loss_type")
    expect(page.locator("#f-loss-min_snr_gamma")).to_be_hidden()
    go_to(page, "loss.noise_offset")
    expect(page.locator("#f-loss-noise_offset")).to_be_visible()
    go_to(page, "model.family")
    page.locator("ul[role=listbox] li").filter(has_text="SDXL").click()
    page.wait_for_function("window.monotile.state.draft.lacking.includes('timesteps.weighting_scheme')")
    tab(page, "Training")
    expect(page.locator("#f-loss-min_snr_gamma")).to_be_visible()
    expect(page.locator("#f-timesteps-timestep_sampling")).to_be_hidden()
