// Shows the basic settings or all of them. At the basic level a setting is also shown where somebody has to see it: it
// differs from its default, has a problem, or was searched for. No value changes with the level.

import { el, fill, setText, whenPresent } from "./dom.js";
import { formatCount } from "./format.js";
import { postJson } from "./http.js";
import { t } from "./locale.js";
import { on, pageState } from "./state.js";
import { onTabOpened } from "./tabs.js";
import { toast } from "./toasts.js";
/** @import { Level, Setting } from "./server" */

const CHOICES = /** @type {[Level, string][]} */ ([
  ["basic", "Basic settings"],
  ["all", "All settings"],
]);
const REASONS = {
  changed: "Shown because it differs from the default.",
  problem: "Shown because it has a problem.",
  sought: "Shown because you searched for it or used it.",
};

// What this browser showed last comes before what the server was told last, maybe by another browser.
const KEPT = "monotile-level";
/** @type {() => Level | null} */
const keptLevel = () => {
  try {
    const kept = localStorage.getItem(KEPT);
    return kept === "basic" || kept === "all" ? kept : null;
  } catch {
    return null;
  }
};
/** @type {Level | null} */
let ownLevel = keptLevel();
const level = () => ownLevel ?? pageState.draft.level ?? "all";
const sought = new Set();

/** @param {Level} wanted */
const choose = (wanted) => {
  ownLevel = wanted;
  // Who asks for few settings is not shown those of an earlier search.
  if (wanted === "basic") sought.clear();
  try {
    localStorage.setItem(KEPT, wanted);
  } catch {
    // Private windows may refuse storage; the server keeps the choice.
  }
  postJson("/level", { level: wanted }).catch((error) => toast(t`The choice is not kept: ${t(error.message)}`));
  draw();
};

/**
 * Shows a setting whatever its level, from now on. id: of its field.
 *
 * @param {string} id
 */
export const seek = (id) => {
  sought.add(id);
  draw();
};

/** @type {(setting: Setting) => keyof typeof REASONS | null} */
const reasonFor = (setting) => {
  if ((pageState.draft.changedFromDefault || []).includes(setting.path)) return "changed";
  if (pageState.problems.some((problem) => problem.id === setting.id)) return "problem";
  return sought.has(setting.id) ? "sought" : null;
};
// Whether a setting is shown; what the family lacks is hidden at every level.
const isShown = (setting, reason, basicOnly) =>
  Boolean(reason) || (!(pageState.draft.lacking || []).includes(setting.path) && (setting.basic || !basicOnly));

const drawField = (setting, reason, basicOnly, shown) => {
  const field = document.getElementById(setting.id);
  if (!field) return;
  field.classList.toggle("is-hidden", !shown);
  field.classList.toggle("sought", sought.has(setting.id));
  const text = basicOnly && !setting.basic && reason ? REASONS[reason] : "";
  const note = field.querySelector(".why-shown");
  if (!text) note?.remove();
  else if (!note) field.append(el("div", { class: "why-shown" }, text));
  else if (note.textContent !== text) note.textContent = text;
};

// Panels that hold nothing but what needs to be seen are unfolded, once for each such setting.
const unfolded = new Set();
const unfold = (id) => {
  const end = performance.now() + 2000;
  // One that Gradio has just drawn may fold itself again.
  const ensure = () => {
    const head = /** @type {HTMLElement | null} */ (document.querySelector(`#${id} > .label-wrap`));
    if (head && head.offsetParent && !head.classList.contains("open")) head.click();
    if (performance.now() < end) setTimeout(ensure, 200);
  };
  ensure();
};
const drawFolds = (shown, urgent) => {
  for (const id of new Set(pageState.settings.flatMap((s) => s.folds))) {
    const inside = pageState.settings.filter((s) => s.folds.includes(id));
    const fold = document.getElementById(id);
    fold?.classList.toggle("is-hidden", !inside.some((s) => shown.has(s)));
    const fresh = inside.filter((s) => urgent.has(s) && !unfolded.has(`${id} ${s.path}`));
    if (!fold?.offsetParent || !fresh.length || inside.some((s) => s.basic && shown.has(s))) continue;
    fresh.forEach((s) => unfolded.add(`${id} ${s.path}`));
    unfold(id);
  }
};

/** @type {(slot: HTMLElement, basicOnly: boolean, hidden: Setting[]) => void} */
const drawSwitch = (slot, basicOnly, hidden) => {
  for (const box of slot.querySelectorAll("input")) box.checked = (box.value === "basic") === basicOnly;
  const panel = slot.closest("[role=tabpanel]") || document.body;
  const count = hidden.filter((s) => panel.contains(document.getElementById(s.folds[0]))).length;
  const text = count ? formatCount(count, "setting of this tab is hidden.", "settings of this tab are hidden.") : "";
  setText(slot.querySelector(".level-count"), text);
};

let waiting = false;
// All fields at once, after everything that a message of the server changes, and before the browser paints.
const draw = () => {
  if (waiting) return;
  waiting = true;
  queueMicrotask(() => {
    waiting = false;
    const basicOnly = level() === "basic";
    const shown = new Set();
    const urgent = new Set();
    const hidden = [];
    for (const setting of pageState.settings) {
      const reason = reasonFor(setting);
      const here = isShown(setting, reason, basicOnly);
      if (here) shown.add(setting);
      else if (isShown(setting, reason, false)) hidden.push(setting);
      if (basicOnly && !setting.basic && (reason === "changed" || reason === "problem")) urgent.add(setting);
      drawField(setting, reason, basicOnly, here);
    }
    drawFolds(shown, urgent);
    /** @type {NodeListOf<HTMLElement>} */
    const slots = document.querySelectorAll(".level-slot");
    slots.forEach((slot) => drawSwitch(slot, basicOnly, hidden));
  });
};

whenPresent(".level-slot", (slot) => {
  const choice = ([name, title]) =>
    el(
      "label",
      {},
      el("input", { type: "radio", name: slot.id, value: name, onchange: () => choose(name) }),
      el("span", {}, title),
    );
  fill(
    slot,
    el(
      "fieldset",
      { class: "level" },
      el("legend", { class: "offscreen" }, "Which settings are shown"),
      CHOICES.map(choice),
    ),
    el("span", { class: "level-count", role: "status" }),
  );
  draw();
});
whenPresent("[id^='f-'].block, .k-tables[id^='f-'], .panel, .more", draw);
for (const news of /** @type {const} */ (["draft", "problems", "settings"])) on(news, draw);
onTabOpened(null, draw);
// What somebody works on stays where it is, also once it is back at its default.
document.addEventListener("focusin", ({ target }) => {
  const field = target instanceof Element && target.closest("[id^='f-'].block, .k-tables[id^='f-']");
  if (field) sought.add(field.id);
});
// Another window of this browser has changed it.
window.addEventListener("storage", ({ key }) => {
  if (key !== KEPT) return;
  ownLevel = keptLevel();
  draw();
});
