// Asks how a run is to be trained further, shows the learning rate that follows, and starts it.

import { sendRequest } from "./bridge.js";
import { openDialog } from "./dialogs.js";
import { el, fill, fillSvg } from "./dom.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { pollRuns } from "./run_list.js";
import { chooseRun } from "./run_tab.js";
import { openTab } from "./tabs.js";
import { showError, toast } from "./toasts.js";
/** @import { RunStanding } from "./library" */

const SCHEDULES = [
  ["stretch", "The run's own schedule over the new length"],
  ["constant", "Constant from here on"],
];

/** @param {string} run */
export const openFurther = async (run) => {
  try {
    const standing = await getJson("/further", { run });
    const content = standing.state ? furtherForm(run, standing) : fromFile(run, standing);
    const box = openDialog(t`Train ${run} further`, content);
    box.classList.add("wide-dialog");
    const field = box.querySelector("input");
    if (field) field.select();
  } catch (error) {
    showError(error);
  }
};

// ---- without a saved state -------------------------------------------------------------------------------------
/** @param {string} run @param {RunStanding} standing */
const fromFile = (run, standing) => {
  const load = (event) => {
    sendRequest("load-run", { name: run, from_file: true });
    event.target.closest("dialog").close();
    openTab("Training");
  };
  return el(
    "div",
    {},
    el(
      "p",
      {},
      standing.full
        ? "This run has no saved state. A new run can continue from its newest model:"
        : "This run has no saved state. A new run can continue from its newest LoRA:",
    ),
    el("p", {}, el("code", {}, Object.values(standing.changes)[0])),
    el("p", { class: "note" }, "What such a run does not have of this one:"),
    el(
      "ul",
      { class: "plain-list" },
      standing.lost.map((text) => el("li", {}, text)),
    ),
    el(
      "div",
      { class: "buttons" },
      el(
        "button",
        { class: "primary", id: "further-load", onclick: load },
        standing.full
          ? "Load its settings, to continue from the model"
          : "Load its settings, to continue from the LoRA",
      ),
    ),
  );
};

// ---- with one --------------------------------------------------------------------------------------------------
const wishOf = (run, ui) => {
  const length = Number(ui.length.value);
  return {
    run,
    [ui.unit.value]: Number.isInteger(length) && length > 0 ? length : null,
    schedule: ui.schedules.find((radio) => radio.checked).value,
    learning_rate: ui.rate.value.trim(),
  };
};

/** @param {RunStanding} standing */
const inputs = (standing, changed) => {
  const byEpochs = standing.epochs !== null;
  const per = standing.steps_per_epoch;
  const half = Math.max(1, Math.round((standing.total ?? standing.done) / 2));
  const suggested = byEpochs
    ? Math.max(standing.epochs + 1, Math.ceil(standing.done / (per || 1)) + 1)
    : standing.done + half;
  const unit = el(
    "select",
    { id: "further-unit", "aria-label": "Unit", onchange: changed },
    el("option", { value: "steps" }, "steps"),
    el("option", { value: "epochs" }, "epochs"),
  );
  unit.value = byEpochs ? "epochs" : "steps";
  const number = { type: "number", min: 1, step: 1, id: "further-length", value: String(suggested), oninput: changed };
  const preferred = standing.schedule === "constant" || !standing.stretches ? "constant" : "stretch";
  return {
    unit,
    length: el("input", number),
    rate: el("input", {
      type: "text",
      inputmode: "decimal",
      id: "further-rate",
      placeholder: String(standing.learning_rate),
      oninput: changed,
    }),
    schedules: SCHEDULES.map(([value]) =>
      el("input", {
        type: "radio",
        name: "further-schedule",
        value,
        checked: value === preferred,
        disabled: value === "stretch" && !standing.stretches,
        onchange: changed,
      }),
    ),
  };
};

/** @param {string} run @param {RunStanding} standing */
const furtherForm = (run, standing) => {
  const sentences = el("div", { id: "further-sentences", "aria-live": "polite" });
  const drawing = el("div", { class: "drawing", id: "further-rates" });
  const attributes = { class: "primary", type: "submit", id: "further-start", disabled: true };
  const start = el("button", attributes, "Train further");
  let number = 0;
  let timer = 0;
  const plan = async () => {
    const own = ++number;
    try {
      const answer = await postJson("/further/plan", wishOf(run, ui));
      if (own !== number) return;
      fill(
        sentences,
        answer.sentences.map((text) => el("p", { class: "note" }, text)),
      );
      if (answer.svg) fillSvg(drawing, answer.svg);
      else fill(drawing);
      start.disabled = false;
    } catch (error) {
      if (own !== number) return;
      fill(sentences, el("p", { class: "warning" }, error.message));
      fill(drawing);
    }
  };
  const changed = () => {
    // an answer that is on its way is about other values
    number++;
    start.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(plan, 250);
  };
  const begin = async (event) => {
    event.preventDefault();
    start.disabled = true;
    try {
      await postJson("/further", wishOf(run, ui));
      toast(t`${run} continues from its saved state.`);
      event.target.closest("dialog").close();
      openTab("Run");
      chooseRun(run);
      pollRuns();
    } catch (error) {
      fill(sentences, el("p", { class: "warning" }, error.message));
      start.disabled = false;
    }
  };
  const ui = inputs(standing, changed);
  plan();
  return el(
    "form",
    { class: "further-form", onsubmit: begin },
    el("label", { for: "further-length" }, "Length of the whole run"),
    el("div", { class: "length-line" }, ui.length, ui.unit),
    el(
      "fieldset",
      {},
      el("legend", {}, "Learning rate"),
      SCHEDULES.map(([, label], at) => el("label", { class: "check" }, ui.schedules[at], label)),
      el("label", { class: "check", for: "further-rate" }, "Highest rate from here on", ui.rate),
    ),
    sentences,
    drawing,
    el(
      "p",
      { class: "note" },
      "The finished files stay, under a name with their step. All other settings are those of the run.",
    ),
    el("div", { class: "buttons" }, start),
  );
};
