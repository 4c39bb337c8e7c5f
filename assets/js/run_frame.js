// Builds the elements of the Run tab.

import { el, fill, setText } from "./dom.js";
import { address } from "./http.js";

const section = (id, title, ...content) => {
  const head = el("div", { class: "card-head" }, el("h2", {}, title));
  return el("section", { class: "card", id }, head, content);
};
const stat = (id, label) =>
  el(
    "div",
    { class: "stat", id: `stat-${id}` },
    el("span", { class: "stat-value" }, "–"),
    el("span", { class: "stat-label" }, label),
  );
// Fills a tile.
export const setStat = (id, value, tone) => {
  const node = document.getElementById(`stat-${id}`);
  if (!node) return;
  setText(node.firstElementChild, value);
  node.className = `stat ${tone || ""}`;
};

const noRuns = () =>
  el(
    "div",
    { class: "empty", id: "run-empty" },
    el("img", { src: address("/page/logo.svg"), alt: "", width: 56 }),
    el("h2", {}, "No runs yet"),
    el(
      "p",
      {},
      "Choose a base model and a dataset, then press Start training. Runs started in a terminal appear here too.",
    ),
  );

// The elements that change. actions: what the buttons do.
const elementsOf = (actions) => {
  const smooth = el("input", {
    type: "range",
    id: "smoothing",
    min: 0,
    max: 99,
    value: 90,
    "aria-label": "Smoothing of the loss line",
    oninput: () => (setText(ui.smoothValue, `${smooth.value} %`), actions.smooth()),
  });
  const progress = el("div");
  const ui = {
    empty: noRuns(),
    body: el("div", { id: "run-body", hidden: true }),
    picker: el("select", { id: "run-picker", "aria-label": "Run", onchange: (e) => actions.choose(e.target.value) }),
    state: el("span", { class: "state", id: "run-state" }),
    stop: el("button", { id: "stop", class: "danger", onclick: () => actions.request("stop") }, "Stop"),
    save: el("button", { id: "save-now", onclick: () => actions.request("save") }, "Save now"),
    sample: el("button", { id: "sample-now", onclick: () => actions.request("sample") }, "Sample now"),
    resume: el("button", { id: "resume", onclick: () => actions.resume() }, "Resume"),
    further: el("button", { id: "further", onclick: () => actions.further() }, "Train further…"),
    phase: el("div", { class: "phase", id: "run-phase" }),
    eta: el("div", { class: "eta", id: "run-eta" }),
    bar: el(
      "div",
      { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, id: "run-progress" },
      progress,
    ),
    progress,
    trouble: el("div", { class: "trouble", id: "run-error", role: "alert", hidden: true }),
    warnings: el("div", { id: "run-warnings" }),
    loss: el("div", { class: "plot tall", id: "loss-plot" }),
    memory: el("div", { class: "plot", id: "memory-plot" }),
    memoryNow: el("div", { class: "fit-now", id: "memory-now" }),
    memoryNote: el("p", { class: "note", id: "memory-note" }),
    smoothValue: el("output", {}, "90 %"),
    resetZoom: el("button", { class: "small", hidden: true, onclick: () => actions.wholeRun() }, "Reset zoom"),
    compile: el("div", { class: "verdict", id: "compile-verdict" }),
    payback: el("p", { class: "note", id: "compile-payback" }),
    finish: el("p", { class: "note", id: "run-finish" }),
    reasons: el("div", { id: "compile-reasons" }),
    validation: el("div", { id: "validation" }),
    validationPlot: el("div", { class: "plot", id: "validation-plot" }),
    samples: el("div", { id: "samples" }),
    files: el("div", { id: "run-files" }),
    log: el("pre", { class: "log", id: "run-log", tabindex: 0, "aria-label": "Log of the run" }),
    follow: el("input", { type: "checkbox", id: "follow" }),
    folder: el("div", { id: "run-folder" }),
    norms: section("card-norms", "Weight norms"),
    smoothing: smooth,
  };
  ui.follow.checked = true;
  return ui;
};

const lossCard = (ui, actions) => {
  const card = section("card-loss", "Loss", ui.loss);
  const log = el("input", { type: "checkbox", id: "log-scale", onchange: () => actions.logScale(log.checked) });
  card.firstElementChild.append(
    el(
      "div",
      { class: "card-tools" },
      ui.resetZoom,
      el("label", { class: "smooth" }, log, "Log scale"),
      el("label", { class: "smooth" }, "Smoothing", ui.smoothing, ui.smoothValue),
    ),
  );
  return card;
};

const compileCard = (ui) =>
  section(
    "card-compile",
    "Compile",
    ui.compile,
    el(
      "div",
      { class: "stats" },
      stat("graphs", "graphs"),
      stat("recompiles", "recompiles"),
      stat("breaks", "graph breaks"),
      stat("compile", "compile time"),
      stat("hits", "cache hits"),
      stat("misses", "cache misses"),
      stat("limits", "recompile limit hits"),
      stat("syncs", "GPU waits per step"),
    ),
    ui.payback,
    ui.reasons,
  );

const logCard = (ui) => {
  const card = section("card-log", "Log", ui.log);
  card.firstElementChild.append(el("label", { class: "smooth" }, ui.follow, "Scroll with the log"));
  return card;
};

const topCard = (ui) =>
  el(
    "div",
    { class: "run-top card" },
    el(
      "div",
      { class: "run-line" },
      ui.picker,
      ui.state,
      el("div", { class: "run-buttons" }, ui.sample, ui.save, ui.resume, ui.further, ui.stop),
    ),
    el("div", { class: "run-progress-line" }, ui.phase, ui.eta),
    ui.bar,
    ui.finish,
    el(
      "div",
      { class: "stats now" },
      stat("step", "step"),
      stat("loss", "loss (last ~50 steps)"),
      stat("lr", "learning rate"),
      stat("speed", "per step"),
      stat("epoch", "epoch"),
      stat("memory", "memory"),
    ),
    ui.folder,
  );

// Draws the tab into its place and returns the elements that change. actions: what its buttons do.
export const runFrame = (root, actions) => {
  const ui = elementsOf(actions);
  const memoryCard = section("card-memory", "Memory", ui.memory, ui.memoryNow, ui.memoryNote);
  fill(
    ui.body,
    topCard(ui),
    ui.trouble,
    ui.warnings,
    el("div", { class: "columns" }, lossCard(ui, actions), memoryCard),
    ui.norms,
    compileCard(ui),
    el(
      "div",
      { class: "columns" },
      section("card-validation", "Validation loss", ui.validationPlot, ui.validation),
      section("card-files", "Saved files", ui.files),
    ),
    section("card-samples", "Samples", ui.samples),
    logCard(ui),
  );
  fill(root, ui.empty, ui.body);
  return ui;
};

/** @typedef {ReturnType<typeof runFrame>} RunFrame */
