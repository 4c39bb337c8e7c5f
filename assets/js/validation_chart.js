// Draws a run's validation losses over its steps, with the lowest marked.

import { el, fill } from "./dom.js";
import { formatNumber } from "./format.js";
import { lineChart } from "./line_chart.js";
/** @import { RunFacts, Validation } from "./server" */

const COLOURS = ["--mt-accent", "--mt-blue", "--mt-amber"];

// The lines of a chart: one for each set, in dashes for pictures that are trained, and a dot at the lowest.
/**
 * @param {string[]} keys
 * @param {Map<string, Validation[]>} sets
 */
const linesOf = (keys, sets) => [
  ...keys.map((key, number) => ({
    label: sets.get(key)[0].set,
    key,
    colour: COLOURS[number % COLOURS.length],
    width: 2,
    dash: sets.get(key)[0].trained ? [5, 4] : undefined,
  })),
  { label: "Lowest", key: "lowest", colour: "--mt-good", width: 0, dot: 9 },
];

// Rows by set, of which one of validation pictures may have the name of that of training pictures.
/**
 * @param {Validation[]} rows
 * @returns {Map<string, Validation[]>}
 */
export const bySet = (rows) => {
  const sets = new Map();
  for (const row of rows) {
    const key = `${row.trained ? "trained" : "held out"} ${row.set}`;
    sets.set(key, [...(sets.get(key) || []), row]);
  }
  return sets;
};

// root: where the chart goes, hidden until there are two steps to draw. Returns draw(facts of a run).
export const validationChart = (root) => {
  let chart = null;
  let drawn = "";
  root.hidden = true;
  return {
    clear() {
      root.hidden = true;
      chart?.clear();
    },
    /** @param {RunFacts} facts */
    draw({ validation, best }) {
      const steps = [...new Set(validation.map((row) => row.step))].sort((a, b) => a - b);
      root.hidden = steps.length < 2;
      if (root.hidden) return;
      const sets = bySet(validation);
      const keys = [...sets.keys()];
      const wanted = keys.join("\n");
      if (drawn !== wanted) {
        drawn = wanted;
        const place = el("div", {});
        fill(root, place);
        chart = lineChart(place, {
          label: "Validation loss over steps",
          height: 180,
          format: (v) => formatNumber(v, 4),
          series: linesOf(keys, sets),
        });
      }
      const columns = { lowest: { mean: steps.map((step) => (step === best?.step ? best.loss : null)) } };
      for (const [key, rows] of sets) {
        const losses = new Map(rows.map((row) => [row.step, row.loss]));
        columns[key] = { mean: steps.map((step) => losses.get(step) ?? null) };
      }
      chart.set(steps, columns);
    },
  };
};
