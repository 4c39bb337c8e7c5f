// Draws the tune of the form's settings: what to allow, how far it is, what was tried, and what the choice changes.

import { sendRequest } from "./bridge.js";
import { differenceTable } from "./difference_table.js";
import { el, fill, fillSvg, setText, table, whenPresent } from "./dom.js";
import { formatMemory, formatNumber } from "./format.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { askName } from "./name_dialog.js";
import { on, pageState } from "./state.js";
import { currentTab, onTabOpened } from "./tabs.js";
import { showError } from "./toasts.js";
/** @import { TuneResult, TuneState, TuneTrial } from "./plan" */

const EVERY_MS = 900;
const WORDS = { does_not_fit: "does not fit", out_of_memory: "out of memory", failed: "failed", reused: "known" };
const MOST_PROBES = 24;
const ALLOW = [
  ["precision", "Other precision", "Formats of the base weights and products: results differ slightly."],
  ["crops", "Other crops", "Shape modes that crop images to other sizes."],
];

const OTHER = "The form has changed since: this is for the settings of before.";

let ui = null;
let timer = 0;
let drawn = "";

const update = async () => {
  if (!ui || currentTab() !== "Training") return;
  clearTimeout(timer);
  try {
    draw(await getJson("/tune"));
  } catch (error) {
    showError(error);
    // a tune that is at work is asked about again
    if (!ui.bar.hidden) timer = window.setTimeout(update, 10 * EVERY_MS);
  }
};

/**
 * @param {TuneState} answer
 */
const draw = (answer) => {
  const running = answer.state === "running";
  setText(ui.progress, running ? progressWords(answer) : answer.failure);
  ui.progress.classList.toggle("warning", !running && Boolean(answer.failure));
  ui.bar.hidden = !running;
  ui.bar.value = answer.planned ? Math.min(1, (answer.probes - 1 + answer.share) / answer.planned) : 0;
  ui.start.disabled = running;
  ui.stop.hidden = !running;
  for (const input of ui.options.querySelectorAll("input")) input.disabled = running;
  clearTimeout(timer);
  if (running) timer = window.setTimeout(update, EVERY_MS);
  const key = JSON.stringify([answer.result, answer.rows, answer.other, running]);
  if (key !== drawn) drawResult(answer, running);
  drawn = key;
};

/**
 * @param {TuneState} answer
 */
const progressWords = (answer) => {
  if (!answer.probes) return answer.at;
  const left = answer.left ? t`, at most ${answer.left} left` : "";
  return t`Probe ${answer.probes} of at most ${Math.max(answer.planned, answer.probes)}${left}. ${t(answer.at)}`;
};

/**
 * @param {TuneState} answer
 * @param {boolean} running
 */
const drawResult = (answer, running) => {
  const result = answer.result;
  if (!result) return fill(ui.result);
  const plot = el("div", { class: "plot-box tune-plot" });
  fillSvg(plot, answer.svg);
  fill(
    ui.result,
    el("p", { class: "headline", id: "tune-text" }, result.text),
    answer.other ? el("p", { class: "note warning" }, OTHER) : null,
    result.notes.map((text) => el("p", { class: "note" }, text)),
    running ? null : choice(answer, result),
    trialTable(result),
    plot,
    el("p", { class: "note" }, t`Measured on ${result.machine}.`),
  );
};

/**
 * @param {TuneState} answer
 * @param {TuneResult} result
 */
const choice = (answer, result) => {
  if (result.best === null) return null;
  if (!answer.rows.length) return el("p", { class: "note", id: "tune-same" }, "The form has these settings.");
  const name = pageState.draft.preset ? `${pageState.draft.preset} tuned` : "tuned";
  const save = (to) => sendRequest("save-as", { name: to, change: result.values });
  const hint = "The form's settings with the choice, saved in presets/user on this machine.";
  return el(
    "div",
    { class: "tune-choice" },
    differenceTable(answer.rows, "After applying"),
    el(
      "div",
      { class: "buttons" },
      el(
        "button",
        { class: "primary", id: "tune-apply", onclick: () => sendRequest("apply", { change: result.values }) },
        "Apply",
      ),
      el(
        "button",
        { id: "tune-save", onclick: () => askName("Save as preset", "Preset name", name, "Save preset", save, hint) },
        "Save as preset",
      ),
    ),
  );
};

/**
 * @param {TuneResult} result
 */
const trialTable = (result) => {
  const place = (trial) => (trial.finish === null ? Infinity : trial.finish);
  const sorted = [...result.trials].sort((a, b) => place(a) - place(b) || a.number - b.number);
  const headings = ["", "Candidate", "Finish", "Against now", "s/step", "Compile", "Peak memory"];
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Candidates" },
    table(
      headings,
      sorted.map((trial) => trialRow(trial, trial.number === result.best)),
      { class: "facts tune-trials", id: "tune-trials" },
    ),
  );
};

/**
 * @param {TuneTrial} trial
 * @param {boolean} best
 */
const trialRow = (trial, best) => {
  const ran = trial.finish !== null;
  const about = [...trial.changes.map((text) => t`Changes: ${t(text)}.`), trial.reason].filter(Boolean);
  const compile = trial.compiling ? `${formatNumber(trial.compiling, 2)} s` : "–";
  const needs = trial.estimated ? t`about ${formatMemory(trial.estimated)}` : "–";
  const percent = trial.against === null ? "–" : `${trial.against > 0 ? "+" : ""}${Math.round(100 * trial.against)} %`;
  const state = WORDS[trial.state];
  return el(
    "tr",
    { class: best ? "chosen" : ran ? "" : "left-out", "data-state": trial.state },
    el("td", {}, String(trial.number)),
    el(
      "td",
      {},
      trial.name,
      best ? el("span", { class: "tag" }, "best") : null,
      about.map((text) => el("div", { class: "note" }, text)),
    ),
    el("td", {}, ran ? trial.took : state, ran && state ? ` (${t(state)})` : null),
    el("td", { class: ran && trial.against < 0 ? "good" : "" }, ran && trial.number ? percent : "–"),
    el("td", {}, ran ? formatNumber(trial.step, 3) : "–"),
    el("td", {}, ran ? compile : "–", ran && trial.compiling && !trial.compiled_anew ? " (cached)" : null),
    el("td", {}, ran ? (trial.peak ? formatMemory(trial.peak) : "–") : needs),
  );
};

const press = (path, body) => async () => {
  try {
    await postJson(path, body());
  } catch (error) {
    showError(error);
  }
  await update();
};

const asked = () => {
  const option = (name) => ui.options.querySelector(`[name=${name}]`);
  const probes = Math.round(Number(option("probes").value)) || MOST_PROBES;
  return {
    allow: ALLOW.map(([name]) => name).filter((name) => option(name).checked),
    by_class: option("by_class").checked,
    probes: Math.min(100, Math.max(1, probes)),
  };
};

const checkBox = ([name, label, help]) =>
  el("label", { title: help }, el("input", { type: "checkbox", name }), el("span", {}, label));

const makeOptions = () =>
  el(
    "fieldset",
    { class: "tune-options" },
    el("legend", {}, "Try also"),
    ALLOW.map(checkBox),
    checkBox(["by_class", "Each block class", "Measures what compiling each class of blocks saves."]),
    el(
      "label",
      { title: "Each is a training of about 20 seconds, with compiling before it." },
      el("span", {}, "Probes at most"),
      el("input", { type: "number", name: "probes", min: "1", max: "100", value: String(MOST_PROBES) }),
    ),
  );

whenPresent("#tune-root", (root) => {
  const stop = press("/tune/cancel", () => ({}));
  ui = {
    options: makeOptions(),
    bar: el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Tuning" }),
    progress: el("p", { class: "note", role: "status" }),
    start: el("button", { class: "small", id: "tune-start", onclick: press("/tune", asked) }, "Tune"),
    stop: el("button", { class: "small", id: "tune-stop", hidden: true, onclick: stop }, "Stop"),
    result: el("div", { id: "tune-result" }),
  };
  drawn = "";
  fill(root, ui.options, el("div", { class: "buttons" }, ui.start, ui.stop, ui.bar), ui.progress, ui.result);
  update();
});
on("draft", update);
onTabOpened("Training", update);
