// Draws a run's validation losses.

import { el, fill, table } from "./dom.js";
import { formatFixed, formatNumber } from "./format.js";
import { lossTable } from "./image_losses.js";
import { t } from "./locale.js";
import { fillEmpty } from "./run_states.js";
import { bySet } from "./validation_chart.js";
/** @import { RunFacts, RunStatus, Validation } from "./server" */

// What the run concluded: the best step, why it ended early, and how the average compares.
/**
 * @param {RunFacts} facts
 */
const conclusions = ({ best, early_stop: earlyStop, average }) =>
  [best, earlyStop, average].flatMap((each) => (each?.words ? el("p", { class: "note" }, each.words) : []));

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunFacts} facts
 * @param {RunStatus} status
 */
export const drawValidation = (ui, facts, status) => {
  drawSets(ui, facts, status);
  const images = lossTable(facts.pictures || []);
  if (images) ui.validation.append(images);
};

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunFacts} facts
 * @param {RunStatus} status
 */
const drawSets = (ui, facts, status) => {
  const rows = facts.validation || [];
  if (!rows.length)
    return fillEmpty(
      ui.validation,
      status,
      "No validation loss yet. Set a validation split on the Dataset tab, or validation folders on the Sampling tab.",
      "This run measured no validation loss.",
    );
  fill(
    ui.validation,
    conclusions(facts),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Validation loss" },
      table(
        ["Set", "First", "Latest", "Change", "Lowest", "At step"],
        [...bySet(rows).values()].map((ofSet) => {
          const first = ofSet[0];
          const latest = ofSet[ofSet.length - 1];
          const lowest = ofSet.reduce((a, b) => (b.loss < a.loss ? b : a));
          const change = ofSet.length > 1 && first.loss ? (100 * (latest.loss - first.loss)) / first.loss : null;
          return el(
            "tr",
            { "data-set": first.set },
            el("td", {}, first.set, first.trained ? el("span", { class: "tag" }, "trained") : null),
            el("td", {}, formatNumber(first.loss)),
            el("td", { "data-value": latest.loss }, formatNumber(latest.loss)),
            el(
              "td",
              { class: change === null ? "" : change <= 0 ? "good" : "warn" },
              change === null ? "–" : `${change > 0 ? "+" : ""}${formatFixed(change, 1)} %`,
            ),
            el("td", {}, formatNumber(lowest.loss)),
            el("td", {}, String(lowest.step)),
          );
        }),
      ),
    ),
    sigmaTable(rows),
  );
};
/**
 * @param {Validation[]} rows
 */
const sigmaTable = (rows) => {
  const first = rows[0];
  const latest = rows.filter((r) => r.set === first.set && r.trained === first.trained).pop();
  const sigmas = Object.keys(latest.sigma_losses || {});
  if (!sigmas.length) return null;
  return el(
    "details",
    {},
    el("summary", {}, t`By noise level (${latest.set})`),
    table(
      ["Sigma", t`Step ${first.step}`, t`Step ${latest.step}`],
      sigmas.map((s) =>
        el(
          "tr",
          {},
          el("td", {}, s),
          el("td", {}, formatNumber((first.sigma_losses || {})[s])),
          el("td", {}, formatNumber(latest.sigma_losses[s])),
        ),
      ),
    ),
  );
};
