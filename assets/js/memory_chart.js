// Draws a run's memory over its steps, and which programs use it now.

import { el, fill } from "./dom.js";
import { formatMemory } from "./format.js";
import { lineChart } from "./line_chart.js";
import { t } from "./locale.js";
/** @import { MetricsRow, RunFacts, Series } from "./server" */

const LINES = {
  vram: [
    { label: "Allocated", key: "vram_allocated", colour: "--mt-accent", width: 2, band: true },
    { label: "Reserved", key: "vram_reserved", colour: "--mt-blue", width: 1.6 },
    { label: "Peak", key: "vram_peak", colour: "--mt-amber", width: 1.4, dash: [4, 4] },
  ],
  ram: [{ label: "RAM of this run", key: "ram", colour: "--mt-accent", width: 2, band: true }],
};
// Charts the GPU's memory, or RAM where a run has no GPU.
export const memoryChart = (root) => {
  let kind = null;
  let chart = null;
  return {
    kind: () => kind,
    clear() {
      kind = null;
      fill(root);
    },
    /** @param {Series} series */
    draw(series) {
      const measured = series.vram_allocated?.mean.some((v) => v !== null) ? "vram" : "ram";
      if (measured !== kind) {
        kind = measured;
        fill(root);
        chart = lineChart(root, {
          label: kind === "vram" ? "VRAM over steps" : "RAM over steps",
          empty: "The chart starts with the first step.",
          format: formatMemory,
          zeroBased: true,
          powers: true,
          series: LINES[kind],
        });
      }
      chart.set(series.step, series);
    },
  };
};
/**
 * @param {Element} place
 * @param {MetricsRow | null} row
 */
export const drawMemoryNow = (place, row) => {
  const onGpu = Boolean(row?.vram_total);
  const total = onGpu ? row.vram_total : row?.ram_total;
  if (!total) return fill(place);
  const others = onGpu ? row.vram_others : null;
  const ours = onGpu
    ? others === null || others === undefined
      ? row.vram_reserved
      : total - row.vram_free - others
    : row.ram;
  const free = onGpu ? row.vram_free : row.ram_available;
  const rest = Math.max(0, total - free - ours);
  /** @type {[string, string, number][]} */
  const parts = [
    ["ours", "this run", ours],
    [
      "others",
      onGpu && (others === null || others === undefined) ? "other programs and CUDA" : "other programs",
      rest,
    ],
    ["free", "free", free],
  ];
  fill(
    place,
    el(
      "div",
      {
        class: "fit-track now",
        role: "img",
        "aria-label": parts.map(([, title, bytes]) => `${t(title)} ${formatMemory(bytes)}`).join(", "),
      },
      parts
        .slice(0, 2)
        .map(([name, , bytes]) =>
          el("span", { class: `fit-part n-${name}`, style: `width:${(100 * bytes) / total}%` }),
        ),
    ),
    el(
      "ul",
      { class: "fit-legend" },
      parts.map(([name, title, bytes]) =>
        el(
          "li",
          {},
          el("span", { class: `fit-key n-${name}` }),
          el("span", {}, title),
          el("strong", {}, formatMemory(bytes)),
        ),
      ),
    ),
  );
};
/**
 * @param {RunFacts["memory"]} facts
 */
export const memorySentence = (facts) => {
  if (!facts) return "";
  if (facts.words) return `${capitalized(facts.words)}.`;
  if (facts.ram_peak)
    return t`RAM: estimated ${formatMemory(facts.ram_estimated)}, peak ${formatMemory(facts.ram_peak)}.`;
  return facts.headline || "";
};
/**
 * @param {RunFacts["swap"]} swap
 * @param {MetricsRow | null} last
 */
export const swapSentence = (swap, last) => {
  if (!swap) return "";
  const ms = (seconds) => t`${Math.round(1000 * seconds)} ms`;
  const wait =
    last?.swap_wait === null || last?.swap_wait === undefined
      ? ""
      : t` The last step waited ${ms(last.swap_wait)} for transfers.`;
  return (
    t`Block swap: ${swap.blocks} of ${swap.of} blocks, ${formatMemory(swap.host)} in RAM. ` +
    t`Transfers alone take ${ms(swap.step_limit_seconds)} a step.${wait}`
  );
};
// The chart is that of the first process; here is what each holds.
/**
 * @param {RunFacts["processes"] | undefined} processes
 */
export const processesSentence = (processes) => {
  if (!processes?.length) return "";
  const each = processes.map(
    ({ device, memory, total }, number) =>
      t`${number}: ${device}, ${formatMemory(memory)} of ${formatMemory(total)}`,
  );
  return t`${processes.length} processes train together (${each.join("; ")}). The chart shows the first.`;
};
const capitalized = (text) => text[0].toUpperCase() + text.slice(1);
