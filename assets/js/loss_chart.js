// Draws a run's loss, measured and smoothed.

import { formatNumber } from "./format.js";
import { lineChart } from "./line_chart.js";
/** @import { Series } from "./server" */

export const smoothed = (values, share) => {
  // Bias-corrected, so that the line starts at the first value and not at zero.
  let sum = 0;
  let weight = 0;
  return values.map((v) => {
    if (v === null || v === undefined) return weight ? sum / weight : null;
    sum = share * sum + (1 - share) * v;
    weight = share * weight + (1 - share);
    return sum / weight;
  });
};

// ui: the tab's elements. onzoom(range or null) is called when a person zooms.
/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {(range: {since: number, until: number} | null) => void} onzoom
 */
export const lossChart = (ui, onzoom) => {
  const chart = lineChart(ui.loss, {
    label: "Training loss over steps",
    empty: "The chart starts with the first step.",
    height: 330,
    format: (v) => formatNumber(v, 4),
    series: [
      { label: "Loss", key: "loss", colour: "--mt-faint", width: 1, band: true },
      { label: "Smoothed", key: "smooth", colour: "--mt-accent", width: 2.2 },
    ],
    onzoom,
  });
  return {
    ...chart,
    /** @param {Series | null} series */
    draw(series) {
      if (!series) return;
      const share = Number(ui.smoothing.value) / 100;
      chart.set(series.step, { ...series, smooth: { mean: smoothed(series.loss.mean, share) } });
    },
  };
};
