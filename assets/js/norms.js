// Norms of what the LoRA changes in its layers. Only runs with a limit for them (scale_weight_norms) measure any.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, text } = m;

  // card: where the chart goes, hidden without measurements. Returns draw(series, last), of a run's rows.
  m.norms = (card) => {
    const plot = el("div", { class: "plot", id: "norms-plot" });
    const note = el("p", { class: "note", id: "norms-note" });
    card.append(plot, note);
    card.hidden = true;
    let chart = null;
    return (series, last) => {
      card.hidden = !series?.norm_max?.mean.some((v) => v !== null);
      if (card.hidden) return chart?.clear();
      chart ||= m.chart(plot, {
        label: "Norms of the layers' changes over steps",
        height: 180,
        format: (v) => m.number(v, 3),
        zeroBased: true,
        series: [
          { label: "Largest", key: "norm_max", colour: "--mt-accent", width: 2, band: true },
          { label: "Mean", key: "norm_mean", colour: "--mt-blue", width: 1.6 },
        ],
      });
      chart.set(series.step, series);
      const scaled = last.layers_scaled ?? null;
      text(note, scaled === null ? "" : `${m.count(scaled, "layer")} scaled back to the limit in the last step.`);
    };
  };
})();
