// Shows the losses that a run measured of each image: sorting on the Dataset tab, a badge, and a table.

import { el, fill, table } from "./dom.js";
import { formatFixed, formatNumber } from "./format.js";
import { t } from "./locale.js";
/** @import { ImageLosses, ScannedItems } from "./scan" */

const TONES = { learnt: "good", not_learnt: "warn", rose: "bad", memorised: "warn" };
const ORDERS = [
  ["", "As scanned"],
  ["verdict", "Verdict"],
  ["change", "Change of the loss"],
  ["loss", "Loss, highest first"],
];
const choice = { order: "", run: null };

// What the server is asked with, besides the page.
export const lossQuery = () => choice;

/** @type {(change: number | null) => string} */
const changeText = (change) =>
  change === null ? "" : `${change > 0 ? "+" : change < 0 ? "−" : ""}${formatFixed(Math.abs(100 * change), 1)} %`;

/**
 * The selects above the images; nothing without a run that measured them.
 *
 * @param {Element} node
 * @param {ScannedItems} answer
 * @param {() => void} changed called after another choice
 */
export const drawLossTools = (node, answer, changed) => {
  choice.run = answer.run;
  // Drawn again only for other runs: whoever uses a select by keyboard stays in it.
  const shown = JSON.stringify([answer.runs, answer.run]);
  if (/** @type {HTMLElement} */ (node).dataset.shown === shown) return;
  /** @type {HTMLElement} */ (node).dataset.shown = shown;
  if (!answer.runs.length) return fill(node);
  const focused = document.activeElement?.id;
  const select = (id, label, options, value, take) =>
    el(
      "label",
      { for: id },
      label,
      el(
        "select",
        { id, onchange: (event) => (take(event.target.value), changed()) },
        options.map(([name, text]) => el("option", { value: name, selected: name === value }, text)),
      ),
    );
  fill(
    node,
    select("thumb-order", "Sort by", ORDERS, choice.order, (order) => (choice.order = order)),
    select(
      "thumb-run",
      "Losses of",
      answer.runs.map((name) => [name, name]),
      answer.run,
      (run) => (choice.run = run),
    ),
  );
  if (focused === "thumb-order" || focused === "thumb-run") document.getElementById(focused)?.focus();
};

/**
 * The verdict in a word with the change; before there is one, the loss.
 *
 * @param {ImageLosses | null} losses
 */
export const lossBadge = (losses) => {
  if (!losses?.losses.length) return null;
  const newest = losses.losses[losses.losses.length - 1];
  const words = [losses.word, changeText(losses.change)].filter(Boolean).join(" ");
  return el(
    "span",
    {
      class: `tag ${TONES[losses.verdict] || ""}`,
      "data-verdict": losses.verdict || "none",
      title: lossSentence(losses),
    },
    words || t`loss ${formatNumber(newest.loss)}`,
  );
};

/** @type {(losses: ImageLosses) => string} */
export const lossSentence = (losses) =>
  losses.losses.map(({ moment, loss }) => `${moment} ${formatNumber(loss)}`).join(" · ");

/**
 * The trained images of a run that need a look first.
 *
 * @param {(ImageLosses & { name: string })[]} rows
 */
export const lossTable = (rows) =>
  rows.length
    ? el(
        "details",
        { id: "image-losses" },
        el("summary", {}, "Losses of images, those to look at first"),
        el(
          "div",
          { class: "scroll", tabindex: 0, role: "region", "aria-label": "Losses of images" },
          table(
            ["Image", "Losses", "Verdict"],
            rows.map((row) =>
              el("tr", {}, el("td", {}, row.name), el("td", {}, lossSentence(row)), el("td", {}, lossBadge(row))),
            ),
          ),
        ),
        el("p", { class: "note" }, "After a scan, the Dataset tab sorts all images by these losses."),
      )
    : null;
