// Draws one line chart over steps, on uPlot: a mean line with its extremes, a zoom that stays, colours from the page.

import { el } from "./dom.js";
import { language, t } from "./locale.js";
import { on } from "./state.js";
import uPlot from "../vendor/uplot/uPlot.esm.js";

const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim() || "#888";

// series: [{label, key, colour: "--css-variable", width, band, dash, show}] ; data arrives through set(steps, columns).
// onzoom(range|null) is called when a person zooms, so that the server can be asked for finer data.
/**
 * @typedef {object} Line
 * @property {string} label
 * @property {string} key The column that it draws.
 * @property {string} colour A variable of the style sheet.
 * @property {number} [width]
 * @property {boolean} [band] Whether its extremes are drawn behind it.
 * @property {number[]} [dash]
 * @property {boolean} [show]
 * @property {number} [dot] The size in px of its points, where it is drawn as points alone.
 */
/** @typedef {{since: number, until: number}} Zoom */
const STEPS = {
  label: "Step",
  format: (value) => Math.round(value).toLocaleString(language),
  incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 2500, 5000, 10000, 50000, 100000],
};
/**
 * @param {HTMLElement} root
 * @param {object} options
 * @param {Line[]} options.series
 * @param {(value: number) => string} options.format
 * @param {number} [options.height]
 * @param {boolean} [options.zeroBased]
 * @param {boolean} [options.powers] Ticks at powers of two.
 * @param {(range: Zoom | null) => void} [options.onzoom]
 * @param {string} options.label
 * @param {string} [options.empty]
 * @param {{label: string, format: (value: number) => string, incrs: number[]}} [options.x] What it is drawn over.
 */
export const lineChart = (
  root,
  { series, format, height = 240, zeroBased = false, powers = false, onzoom, label, empty, x = STEPS },
) => {
  let plot = null;
  let steps = [];
  let columns = {};
  let zoomed = null;
  let last = "";
  let logarithmic = false;

  const lines = () =>
    series.flatMap((s) => {
      const line = {
        label: t(s.label),
        stroke: colour(s.colour),
        width: s.width ?? 1.6,
        dash: s.dash,
        points: s.dot
          ? { show: true, size: s.dot, fill: colour(s.colour) }
          : { show: (u, i) => u.data[i].filter((v) => v !== null && v !== undefined).length === 1, size: 5 },
        spanGaps: true,
        value: (u, v) => (v === null || v === undefined ? "–" : format(v)),
        show: s.show ?? true,
      };
      if (!s.band) return [line];
      const edge = {
        label: "edge",
        class: "mt-edge",
        stroke: "transparent",
        width: 0,
        points: { show: false },
        spanGaps: true,
        value: () => "",
      };
      return [line, edge, { ...edge }];
    });
  const bands = () => {
    /** @type {uPlot.Band[]} */
    const filled = [];
    let at = 1;
    for (const s of series) {
      if (s.band) filled.push({ series: [at + 2, at + 1], fill: colour(s.colour) + "2e" });
      at += s.band ? 3 : 1;
    }
    return filled;
  };
  const table = () => [
    steps,
    ...series.flatMap((s) => {
      const column = columns[s.key] || { mean: [], min: [], max: [] };
      return s.band ? [column.mean, column.min, column.max] : [column.mean];
    }),
  ];

  // Without a cursor the legend shows the newest values.
  const atRest = (u) => {
    const newest = u.data[0].length - 1;
    if (newest >= 0 && (u.cursor.left ?? -1) < 0) u.setLegend({ idx: newest }, false);
  };

  /** @type {uPlot.Scale.Range} */
  const range = (u, low, high) => {
    if (low === null || high === null || low === undefined) return [0, 1];
    if (logarithmic) return uPlot.rangeLog(low > 0 ? low : 1e-6, high > 0 ? high : 1, 10, false);
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    return [zeroBased ? 0 : low - pad, high + pad];
  };
  const build = () => {
    plot?.destroy();
    const axis = {
      stroke: colour("--mt-muted"),
      grid: { stroke: colour("--mt-line"), width: 1 },
      ticks: { stroke: colour("--mt-line"), width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
    };
    plot = new uPlot(
      {
        width: Math.max(240, root.clientWidth),
        height,
        cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 }, focus: { prox: 24 } },
        legend: { show: true, live: true },
        scales: {
          x: {
            time: false,
            range: (u, low, high) =>
              zoomed ? [zoomed.since, zoomed.until] : low === high ? [low - 0.5, low + 0.5] : [low, high],
          },
          y: { range, distr: logarithmic ? 3 : 1 },
        },
        series: [
          { label: t(x.label), value: (u, v) => (v === null ? "–" : x.format(v)) },
          ...lines(),
        ],
        bands: bands(),
        axes: [
          {
            ...axis,
            size: 32,
            space: 60,
            incrs: x.incrs,
            ...(x === STEPS ? {} : { values: (u, ticks) => ticks.map(x.format) }),
          },
          {
            ...axis,
            size: 58,
            values: (u, ticks) => ticks.map((v) => (v === null ? "" : format(v))),
            ...(powers ? { incrs: Array.from({ length: 50 }, (_, i) => 2 ** i) } : {}),
          },
        ],
        hooks: {
          setCursor: [atRest],
          ready: [atRest],
          setSelect: [
            (u) => {
              if (u.select.width < 4) return;
              zoomed = {
                since: u.posToVal(u.select.left, "x"),
                until: u.posToVal(u.select.left + u.select.width, "x"),
              };
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              redraw();
              onzoom?.(zoomed);
            },
          ],
        },
      },
      table(),
      root,
    );
    root.querySelector(".u-over").addEventListener("dblclick", () => api.reset());
  };
  const placeholder = el("p", { class: "plot-empty note" }, empty || "No data yet.");
  const redraw = () => {
    if (!steps.length) {
      plot?.destroy();
      plot = null;
      return root.replaceChildren(placeholder);
    }
    placeholder.remove();
    if (!plot) return build();
    plot.setData(table(), false);
    // After the frame in which uPlot draws, and empties its legend.
    requestAnimationFrame(() => plot && atRest(plot));
    plot.setScale(
      "x",
      zoomed ? { min: zoomed.since, max: zoomed.until } : { min: steps[0] ?? 0, max: steps[steps.length - 1] ?? 1 },
    );
  };

  root.setAttribute("role", "img");
  root.setAttribute("aria-label", t(label));
  const api = {
    set(newSteps, newColumns) {
      steps = newSteps;
      columns = newColumns;
      const newest = series.map((s) => columns[s.key]?.mean?.slice(-2));
      const key = JSON.stringify([steps.length, steps[steps.length - 1], newest]);
      if (key === last && (plot || !steps.length)) return;
      last = key;
      redraw();
    },
    refresh: () => plot && ((last = ""), redraw()),
    reset() {
      if (!zoomed) return;
      zoomed = null;
      redraw();
      onzoom?.(null);
    },
    clear() {
      zoomed = null;
      last = "";
      api.set([], {});
    },
    rebuild: () => plot && build(),
    log(on) {
      logarithmic = on;
      api.rebuild();
    },
  };
  new ResizeObserver(
    () => plot && root.clientWidth > 0 && plot.setSize({ width: Math.max(240, root.clientWidth), height }),
  ).observe(root);
  on("theme", () => setTimeout(api.rebuild, 50));
  return api;
};
