"""Who can use the page: what axe finds, contrast, narrow screens, few settings or all, and help texts shown whole."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from backend.config.schema import settings
from gui import fields
from tests.browser.conftest import Server, Watched, field, go_to, tab, type_in
from tests.gui.conftest import make_run

TABS = tuple(fields.TABS.values())


# What reaches beyond the right edge, except inside of what scrolls by itself.
TOO_WIDE = """() => [...document.querySelectorAll(".gradio-container *")]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".strip, .scroll, .u-wrap"))
  .map((e) => `${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`)"""


def test_nothing_is_wider_than_a_telephone(chromium: Browser, server: Server) -> None:
    make_run(server.runs, "a-run-with-quite-a-long-name-of-its-own")
    context = chromium.new_context(viewport={"width": 390, "height": 844})
    held = Watched(context.new_page(), server)
    page = held.open()
    type_in(page, "saving.output_dir", str(server.runs))
    for title in TABS:
        tab(page, title)
        if title == "Library":
            page.wait_for_selector(".run-card")
        page.wait_for_timeout(300)
        assert page.evaluate(TOO_WIDE) == [], title
    show_all_tabs(page)
    # colours are those of a wide page
    assert axe_violations(page, {"rules": {"color-contrast": {"enabled": False}}}) == []
    context.close()


def show_all_tabs(page: Page) -> None:
    """Show what all opened tabs hold, one below the other: axe then goes through the page once and not ten times."""
    page.add_style_tag(content="#tabs .tabitem { display: flex !important }")


def axe_violations(page: Page, options: dict | None = None) -> list[str]:
    """What breaks WCAG 2.1 A and AA on the page as it is shown, by axe-core."""
    page.evaluate(Axe().axe_script)
    options = {
        "resultTypes": ["violations"],
        "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
        **(options or {}),
    }
    violations = page.evaluate("options => axe.run(document, options).then((result) => result.violations)", options)
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}" for rule in violations for node in rule["nodes"]
    ]


# Every text on the page whose colour is too near to the colour behind it.
CONTRAST = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const channel = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (colour.startsWith("rgb") && parse(colour)[3] > 0.95) return parse(colour);
    }
    return [255, 255, 255, 1];
  };
  const bad = [];
  for (const e of document.querySelectorAll(".gradio-container *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const box = e.getBoundingClientRect();
    const style = getComputedStyle(e);
    if (!own || !box.width || !box.height || style.visibility === "hidden" || !style.color.startsWith("rgb")) continue;
    if (e.closest("[disabled], .icon, svg, [aria-hidden=true]")) continue;
    const [a, b] = [light(parse(style.color)), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const least = parseFloat(style.fontSize) >= 18.66 ? 3 : 4.5;
    if (ratio < least) bad.push(`${ratio.toFixed(2)} ${e.className} ${e.textContent.trim().slice(0, 40)}`);
  }
  return [...new Set(bad)];
}"""


def test_every_text_can_be_read(page: Page, server: Server) -> None:
    """WCAG AA: 4.5 to 1 for text, 3 to 1 for large text; and all else that axe finds, with a finished run shown."""
    run = make_run(server.runs, "seen")
    type_in(page, "saving.output_dir", str(server.runs))
    for title in TABS:
        tab(page, title)
        if title == "Run":
            page.select_option("#run-picker", run.name)
            expect(page.locator("#run-state")).to_have_text("Finished")
        page.wait_for_timeout(300)
    show_all_tabs(page)
    # Chromium lets a colour that changes little by little wait while it is out of sight.
    page.emulate_media(reduced_motion="reduce")
    for dark in (False, True):
        assert page.evaluate("document.body.classList.contains('dark')") is dark
        assert page.evaluate(CONTRAST) == [], dark
        assert axe_violations(page) == [], dark
        page.click("#theme")


CHANGED = "paths => String(window.monotile.state.draft.changedFromDefault) === String(paths)"


def test_basic_settings_are_shown_alone_with_those_that_need_to_be_seen(watched: Watched) -> None:
    """A changed setting, one with a problem and one that was searched for stay; no value changes; it is remembered."""
    page = watched.page
    type_in(page, "loss.huber_c", "0.3")
    page.wait_for_function(CHANGED, arg=["loss.huber_c"])
    tab(page, "Training")
    page.locator("#level-training").get_by_label("Basic settings").check()
    expect(page.locator("#f-optimizer-learning_rate")).to_be_visible()
    for hidden in ("#f-timesteps-timestep_sampling", "#g-timesteps", "#g-metadata", "#f-loss-loss_type"):
        expect(page.locator(hidden)).to_be_hidden()
    # its folded panels unfold, and it says why it is there
    expect(page.locator("#f-loss-huber_c")).to_contain_text("Shown because it differs from the default")
    count = "#level-training .level-count"
    expect(page.locator(count)).to_contain_text("settings of this tab are hidden")
    before = page.locator(count).inner_text()
    go_to(page, "optimizer.weight_decay")
    expect(page.locator("#f-optimizer-weight_decay")).to_contain_text("searched for it")
    assert int(page.locator(count).inner_text().split()[0]) == int(before.split()[0]) - 1
    type_in(page, "optimizer.weight_decay", "much")
    expect(page.locator("#f-optimizer-weight_decay .why-shown")).to_contain_text("differs from the default")
    type_in(page, "optimizer.weight_decay", "0.01")
    page.wait_for_function(CHANGED, arg=["loss.huber_c"])
    page.reload()
    watched.ready()
    tab(page, "Training")
    expect(page.locator("#g-timesteps")).to_be_hidden()
    # another browser of this person starts where this one was
    page.evaluate("localStorage.removeItem('monotile-level')")
    assert page.evaluate("window.monotile.state.draft.level") == "basic"
    page.locator("#level-training input[value=basic]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#g-timesteps")).to_be_visible()
    expect(page.locator(count)).to_have_text("")


# Whether the help is shown and does not cover a list.
APART = """selector => {
  const [list, help] = [selector, ".help-popover"].map((each) => document.querySelector(each).getBoundingClientRect());
  return list.height && help.height && (help.bottom <= list.top + 1 || list.bottom <= help.top + 1);
}"""


def test_a_long_help_is_shown_whole_above_the_page(page: Page) -> None:
    """While the pointer rests on it or its field is used; Escape closes it alone, and nothing moves."""
    popover = page.locator(".help-popover")
    text = next(each.help for each in settings() if each.path == "network.network_dim")
    help_text = page.locator("#help-f-network-network_dim")
    help_text.scroll_into_view_if_needed()
    places = "[...document.querySelectorAll('[id^=f-]')].map((e) => e.offsetTop)"
    before = page.evaluate(places)
    help_text.hover()
    expect(popover).to_have_text(text)
    popover.hover()
    page.wait_for_timeout(400)
    expect(popover).to_be_visible()
    assert page.evaluate(places) == before
    page.mouse.move(2, 2)
    expect(popover).to_be_hidden()
    page.locator(field(page, "network.network_dim")).first.focus()
    expect(popover).to_have_text(text)
    page.keyboard.press("Escape")
    expect(popover).to_be_hidden()
    assert page.evaluate("document.activeElement.closest('#f-network-network_dim') !== null")
    # a list that opens below or above stays in sight
    go_to(page, "network.network_type")
    page.locator("#f-network-network_type ul[role=listbox]").wait_for()
    page.wait_for_function(APART, arg="#f-network-network_type ul[role=listbox]")
