// Compares runs: their curves over each other, what they came to, the settings that differ, their samples.

import { stillOf } from "./clips.js";
import { el, fill, table } from "./dom.js";
import { formatDuration, formatNumber } from "./format.js";
import { getJson } from "./http.js";
import { lineChart } from "./line_chart.js";
import { t } from "./locale.js";
import { smoothed } from "./loss_chart.js";
import { PreviewWipe } from "./preview_wipe.js";
import { samplePicture } from "./sample_panel.js";
import { currentTab } from "./tabs.js";
import { showError } from "./toasts.js";
/** @import { ComparedLine, ComparedRow, ComparedRun, Comparison } from "./library" */

export const MOST_COMPARED = 6;
const SECONDS = {
  label: "Time",
  format: (value) => formatDuration(value),
  incrs: [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400],
};
const NEWEST = "newest";

let panel = null;
/** @type {Comparison | null} */
let shown = null;
let timer = 0;
const view = { by: "steps", smoothing: 90, key: "", sample: "" };

export const comparisonPanel = () => {
  clearTimeout(timer);
  shown = null;
  panel = el("section", { class: "card", id: "comparison", hidden: true, "aria-label": "Comparison" });
  return panel;
};
export const closeComparison = () => {
  clearTimeout(timer);
  shown = null;
  if (panel) panel.hidden = true;
};
/** @param {string[]} names */
export const showComparison = async (names) => {
  clearTimeout(timer);
  try {
    const answer = await getJson("/compare", { run: names });
    const key = JSON.stringify(answer);
    if (!shown || key !== view.key) {
      const first = !shown || panel.hidden;
      Object.assign(view, { key });
      shown = answer;
      draw();
      if (first) panel.scrollIntoView({ block: "start", behavior: "smooth" });
    }
    if (answer.runs.some((run) => run.live))
      timer = setTimeout(() => shown && currentTab() === "Library" && showComparison(names), 5000);
  } catch (error) {
    showError(error);
  }
};

const dot = (place) => el("i", { class: "run-dot", style: `background: var(--mt-run-${place + 1})` });
const named = (run, place) => el("span", { class: "run-name", translate: "no" }, dot(place), run.name);

// ---- curves ----------------------------------------------------------------------------------------------------
// The value between the two points around x; null outside of the line.
const valueAt = (xs, ys, x, from) => {
  let at = from;
  while (at < xs.length && xs[at] < x) at++;
  if (at >= xs.length || (at === 0 && xs[0] > x)) return [null, at];
  if (xs[at] === x || at === 0) return [ys[at], at];
  const [a, b] = [ys[at - 1], ys[at]];
  if (a === null || b === null) return [b, at];
  return [a + ((b - a) * (x - xs[at - 1])) / (xs[at] - xs[at - 1] || 1), at];
};
/** @type {(line: ComparedLine) => number[]} */
const placesOf = (line) => (view.by === "time" ? line.seconds : line.steps);

// All lines over one set of places, since a chart has one: measured points stay where they are.
const columnsOf = (runs) => {
  const places = new Set(runs.flatMap((run) => [...placesOf(run), ...placesOf(run.held_out)]));
  const xs = [...places].sort((a, b) => a - b);
  const columns = {};
  runs.forEach((run, number) => {
    const own = placesOf(run);
    const losses = smoothed(run.losses, view.smoothing / 100);
    let from = 0;
    const mean = xs.map((x) => {
      const [value, at] = valueAt(own, losses, x, from);
      from = Math.max(0, at - 1);
      return value;
    });
    columns[`loss${number}`] = { mean };
    const measured = new Map(placesOf(run.held_out).map((x, at) => [x, run.held_out.losses[at]]));
    columns[`held${number}`] = { mean: xs.map((x) => measured.get(x) ?? null) };
  });
  return { xs, columns };
};

const drawCurves = (root) => {
  const { runs } = shown;
  const plot = el("div", { class: "plot", id: "compare-plot" });
  fill(root, plot);
  const chart = lineChart(plot, {
    label: "Loss of the compared runs",
    empty: "None of these runs has made a step.",
    height: 320,
    format: (value) => formatNumber(value, 4),
    x: view.by === "time" ? SECONDS : undefined,
    series: runs.flatMap((run, at) => {
      const colour = `--mt-run-${at + 1}`;
      const line = { label: run.name, key: `loss${at}`, colour, width: 2 };
      const held = { label: t`${run.name}, held out`, key: `held${at}`, colour, width: 1.4, dash: [5, 4], dot: 6 };
      return run.held_out.steps.length ? [line, held] : [line];
    }),
  });
  const { xs, columns } = columnsOf(runs);
  chart.set(xs, columns);
};
const curves = () => {
  const root = el("div", {});
  const redraw = () => drawCurves(root);
  const by = el(
    "select",
    { id: "compare-by", onchange: () => ((view.by = by.value), redraw()) },
    el("option", { value: "steps" }, "Steps"),
    el("option", { value: "time" }, "Time of training"),
  );
  by.value = view.by;
  const smoothing = el("input", {
    type: "range",
    id: "compare-smoothing",
    min: 0,
    max: 99,
    value: view.smoothing,
    oninput: () => ((view.smoothing = Number(smoothing.value)), redraw()),
  });
  // Once the panel has its width.
  requestAnimationFrame(redraw);
  return [
    el(
      "div",
      { class: "preview-slider" },
      el("label", {}, "Over ", by),
      el("label", { class: "smooth" }, "Smoothing ", smoothing),
      el("span", { class: "note" }, "Solid: training loss. Dashed with dots: held-out loss at fixed noise."),
    ),
    root,
  ];
};

// ---- tables ----------------------------------------------------------------------------------------------------
/** @type {(title: string, rows: ComparedRow[], none: string) => any} */
const rowsTable = (title, rows, none) => [
  el("h3", {}, title),
  rows.length
    ? el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
        table(
          ["", ...shown.runs.map(named)],
          rows.map((row) =>
            el(
              "tr",
              { "data-row": row.path || row.label },
              el("th", { title: row.path || null }, row.label),
              row.values.map((value, at) => el("td", { class: row.best === at ? "best" : "" }, value || "–")),
            ),
          ),
          { class: "facts compared" },
        ),
      )
    : el("p", { class: "note" }, none),
];

// ---- samples ---------------------------------------------------------------------------------------------------
/** @typedef {{prompt: string, files: (string | undefined)[]}} Column */

// What all runs drew of one prompt at one step; before that, the newest of each prompt, whatever its step.
/**
 * @param {ComparedRun[]} runs
 * @returns {Column[]}
 */
const sampleColumns = (runs) => {
  /** @type {Map<string, Column>} */
  const columns = new Map();
  const put = (key, prompt, at, file) => {
    if (!columns.has(key)) columns.set(key, { prompt, files: runs.map(() => undefined) });
    columns.get(key).files[at] = file;
  };
  runs.forEach((run, at) =>
    run.samples.forEach((sample) => {
      const prompt = sample.prompt || "sample";
      put(`${NEWEST}|${prompt}`, t`newest: ${prompt}`, at, sample.file);
      if (sample.step !== null) put(`${sample.step}|${prompt}`, t`step ${sample.step}: ${prompt}`, at, sample.file);
    }),
  );
  const several = [...columns.entries()].filter(([, column]) => column.files.filter(Boolean).length > 1);
  const order = (key) => (key.startsWith(NEWEST) ? Infinity : Number(key.split("|")[0]));
  return several.sort((a, b) => order(b[0]) - order(a[0])).map(([, column]) => column);
};
const splitFile = (name) => {
  const at = name.indexOf("/");
  return [name.slice(0, at), name.slice(at + 1)];
};

const samples = () => {
  const { runs } = shown;
  const columns = sampleColumns(runs);
  const title = el("h3", {}, "Samples");
  if (!columns.length) return [title, el("p", { class: "note" }, "These runs drew no samples of the same prompt.")];
  const strip = el("div", { class: "compared-samples" });
  const choice = el(
    "select",
    {
      id: "compare-sample",
      onchange: () => {
        const at = Number(choice.value);
        view.sample = columns[at].prompt;
        show(at);
      },
    },
    columns.map((column, at) => el("option", { value: String(at) }, column.prompt.slice(0, 100))),
  );
  const show = (at) =>
    fill(
      strip,
      runs.map((run, place) => {
        const file = columns[at].files[place];
        const address = file && samplePicture(run.name, stillOf(file));
        return el(
          "figure",
          {},
          file ? el("img", { src: address, alt: `${columns[at].prompt}, ${run.name}`, loading: "lazy" }) : null,
          el("figcaption", {}, named(run, place), file ? null : " drew none"),
        );
      }),
    );
  // of a run at work all is drawn again every few seconds
  const at = Math.max(
    0,
    columns.findIndex((column) => column.prompt === view.sample),
  );
  choice.value = String(at);
  show(at);
  const wipe = new PreviewWipe(
    (row, column) => columns[column]?.files[row] && `${runs[row].name}/${columns[column].files[row]}`,
    (name) => samplePicture(...splitFile(name)),
    "wipe",
  );
  wipe.show({ rows: runs, prompts: columns }, true);
  return [title, el("label", { class: "sample-choice" }, "Sample ", choice), strip, wipe.node];
};

const draw = () => {
  const focused = panel.contains(document.activeElement) ? document.activeElement.id : "";
  panel.hidden = false;
  fill(
    panel,
    el(
      "div",
      { class: "card-head" },
      el("h2", {}, t`Comparison of ${shown.runs.length} runs`),
      el("button", { id: "compare-close", onclick: closeComparison }, "Close"),
    ),
    curves(),
    rowsTable("Results", shown.results, "These runs have no results yet."),
    rowsTable("Settings that differ", shown.settings, "The settings of these runs are the same."),
    samples(),
  );
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
};
