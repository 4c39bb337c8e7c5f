// Captions images by a model on the person's disk: options, start, progress, and the difference to write.

import { CaptioningDifference } from "./captioning_difference.js";
import { CaptioningForm } from "./captioning_form.js";
import { el, fill, setText, whenPresent } from "./dom.js";
import { formatCount, formatDuration, formatWhole } from "./format.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { showError } from "./toasts.js";
/** @import { CaptioningState } from "./captioning" */

const EVERY_MS = 800;
const CALM_MS = 5000;

let timer = 0;
let ui = null;
// The request and the captions that are drawn; another count is drawn again.
let drawn = "";
let drawnAt = 0;

const start = async () => {
  ui.start.disabled = true;
  try {
    await postJson("/captioning", ui.form.options);
  } catch (error) {
    setText(ui.text, error.message);
    ui.text.className = "warning";
    ui.start.disabled = false;
    return;
  }
  watch();
};

const watch = async () => {
  clearTimeout(timer);
  /** @type {CaptioningState} */
  let state;
  try {
    state = await getJson("/captioning");
  } catch {
    timer = window.setTimeout(watch, 3 * EVERY_MS);
    return;
  }
  draw(state);
  if (state.state === "running") timer = window.setTimeout(watch, EVERY_MS);
};

/** @param {CaptioningState} state */
const draw = (state) => {
  const running = state.state === "running";
  ui.start.disabled = running;
  ui.cancel.hidden = !running;
  ui.bar.hidden = !running;
  const total = state.total || 0;
  ui.bar.firstChild.style.width = `${total ? (100 * (state.done || 0)) / total : 3}%`;
  ui.bar.classList.toggle("waiting", running && !total);
  setText(ui.start, state.captioned < state.images && !running ? "Continue" : "Make captions");
  setText(ui.text, running ? progressWords(state) : endWords(state));
  ui.text.className = !running && state.problem ? "warning" : "note";
  fill(
    ui.notes,
    (state.notes || []).map((note) => el("p", { class: "note" }, note)),
    state.failures
      ? el(
          "details",
          {},
          el("summary", {}, t`${formatCount(state.failures, "image")} without a caption`),
          el(
            "ul",
            { class: "plain-list" },
            state.failed.map((line) => el("li", {}, line)),
          ),
        )
      : null,
  );
  if (state.options && !ui.form.fields.model.value) ui.form.use(state.options);
  const key = [state.number, state.state, state.captioned].join();
  const waits = running && ui.difference.isFull && Date.now() - drawnAt < CALM_MS;
  if (key === drawn || !state.images || waits) return;
  [drawn, drawnAt] = [key, Date.now()];
  ui.difference.load();
};

/** @param {CaptioningState} state */
const progressWords = (state) => {
  if (!state.total) return `${t(state.phase || "Starting")}…`;
  const left = typeof state.left_s === "number" ? t`, about ${formatDuration(state.left_s)} left` : "";
  return t`${formatWhole(state.done)} of ${formatCount(state.total, "image")}${left}`;
};
/** @param {CaptioningState} state */
const endWords = (state) => {
  if (state.problem) return state.problem;
  if (!state.images)
    return "Captions all images of the dataset scan. You see the difference before anything is written.";
  const count = t`${formatWhole(state.captioned)} of ${formatCount(state.images, "image")} have a new caption.`;
  const cut = state.captioned + state.failures < state.images ? t(" The rest can be continued.") : "";
  return count + cut;
};

whenPresent("#captioning-root", (node) => {
  const form = new CaptioningForm();
  const difference = new CaptioningDifference();
  ui = {
    form,
    difference,
    start: el("button", { class: "primary", id: "captioning-start", onclick: start }, "Make captions"),
    cancel: el(
      "button",
      { hidden: true, id: "captioning-cancel", onclick: () => postJson("/captioning/cancel").then(watch, showError) },
      "Cancel",
    ),
    bar: el("div", { class: "progress busy", hidden: true }, el("div")),
    text: el("p", { class: "note", id: "captioning-text", "aria-live": "polite" }),
    notes: el("div", { id: "captioning-notes" }),
  };
  fill(
    node,
    form.node,
    el(
      "div",
      { class: "captioning-head" },
      ui.start,
      ui.cancel,
      el("div", { class: "captioning-state" }, ui.bar, ui.text),
    ),
    ui.notes,
    difference.node,
  );
  watch();
});
