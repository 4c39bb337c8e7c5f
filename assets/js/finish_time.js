// Draws the finish time of the form's settings: what is known, a button that measures it, and what it costs.

import { el, fill, setText, whenPresent } from "./dom.js";
import { getJson, postJson } from "./http.js";
import { on } from "./state.js";
import { currentTab, onTabOpened } from "./tabs.js";
import { showError } from "./toasts.js";
/** @import { FinishState } from "./plan" */

const EVERY_MS = 700;
const PRICES = [
  ["per_hour", "Price an hour"],
  ["per_kwh", "Price a kWh"],
  ["watts", "Watts"],
];
const STORE = "monotile-prices";

/** @type {Record<string, string>} */
const prices = (() => {
  try {
    return JSON.parse(localStorage.getItem(STORE) || "{}") || {};
  } catch {
    return {};
  }
})();

let ui = null;
let timer = 0;

const update = async () => {
  if (!ui || currentTab() !== "Training") return;
  clearTimeout(timer);
  const asked = Object.fromEntries(Object.entries(prices).filter(([, value]) => Number(value) > 0));
  try {
    draw(await getJson("/finish", asked));
  } catch (error) {
    showError(error);
    // a probe that is at work is asked about again
    if (!ui.bar.hidden) timer = window.setTimeout(update, 10 * EVERY_MS);
  }
};

/**
 * @param {FinishState} answer
 */
const draw = (answer) => {
  const running = answer.state === "running";
  setText(ui.text, answer.text || "Not known yet: no run of these settings was timed on this machine.");
  setText(ui.cost, answer.cost);
  setText(ui.progress, running ? answer.at : answer.failure);
  ui.progress.classList.toggle("warning", !running && Boolean(answer.failure));
  ui.bar.hidden = !running;
  ui.bar.value = answer.share;
  ui.measure.disabled = running;
  ui.cancel.hidden = !running;
  clearTimeout(timer);
  if (running) timer = window.setTimeout(update, EVERY_MS);
};

const press = (path) => async () => {
  try {
    await postJson(path, {});
  } catch (error) {
    showError(error);
  }
  await update();
};

const priceInput = ([name, label]) =>
  el(
    "label",
    {},
    label,
    el("input", {
      type: "number",
      min: "0",
      step: "any",
      value: prices[name] || "",
      oninput: (event) => {
        prices[name] = event.target.value;
        localStorage.setItem(STORE, JSON.stringify(prices));
        update();
      },
    }),
  );

whenPresent("#finish-root", (root) => {
  ui = {
    text: el("p", { id: "finish-text" }),
    cost: el("p", { class: "note" }),
    progress: el("p", { class: "note", role: "status" }),
    bar: el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Measuring the finish time" }),
    measure: el("button", { class: "small", id: "finish-measure", onclick: press("/finish") }, "Measure"),
    cancel: el("button", { class: "small", hidden: true, onclick: press("/finish/cancel") }, "Cancel"),
  };
  fill(
    root,
    ui.text,
    ui.cost,
    el("div", { class: "buttons" }, ui.measure, ui.cancel, ui.bar),
    ui.progress,
    el("details", {}, el("summary", {}, "Cost"), el("div", { class: "finish-prices" }, PRICES.map(priceInput))),
  );
  update();
});
on("draft", update);
onTabOpened("Training", update);
