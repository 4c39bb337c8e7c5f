// Draws what loading settings would change.

import { el, table } from "./dom.js";
/** @import { DifferenceRow } from "./server" */

/**
 * @param {DifferenceRow[]} rows
 */
export const differenceTable = (rows) =>
  el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "What changes" },
    table(
      ["Setting", "Now", "After loading"],
      rows.map((row) =>
        el("tr", {}, el("td", {}, row.label), el("td", { class: "old" }, row.before), el("td", {}, row.after)),
      ),
      { class: "facts difference" },
    ),
  );
