// Draws norms of what the LoRA changes in its layers. Only runs with a limit (scale_weight_norms) measure any.

import { el, setText } from "./dom.js";
import { formatCount, formatNumber } from "./format.js";
import { lineChart } from "./line_chart.js";
import { t } from "./locale.js";
/** @import { MetricsRow, Series } from "./server" */

// card: where the chart goes, hidden without measurements. Returns draw(series, last), of a run's rows.
export const normChart = (card) => {
  const plot = el("div", { class: "plot", id: "norms-plot" });
  const note = el("p", { class: "note", id: "norms-note" });
  card.append(plot, note);
  card.hidden = true;
  let chart = null;
  /** @type {(series: Series | null, last: MetricsRow | null) => void} */
  return (series, last) => {
    card.hidden = !series?.norm_max?.mean.some((v) => v !== null);
    if (card.hidden) return chart?.clear();
    chart ||= lineChart(plot, {
      label: "Norms of the layers' changes over steps",
      height: 180,
      format: (v) => formatNumber(v, 3),
      zeroBased: true,
      series: [
        { label: "Largest", key: "norm_max", colour: "--mt-accent", width: 2, band: true },
        { label: "Mean", key: "norm_mean", colour: "--mt-blue", width: 1.6 },
      ],
    });
    chart.set(series.step, series);
    const scaled = last.layers_scaled ?? null;
    setText(note, scaled === null ? "" : t`${formatCount(scaled, "layer")} scaled back to the limit in the last step.`);
  };
};
