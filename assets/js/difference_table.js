// Draws what loading settings would change.

import { el, table } from "./dom.js";
/** @import { DifferenceRow } from "./server" */

/**
 * @param {DifferenceRow[]} rows
 * @param {string} [after] heading of the values to come
 */
export const differenceTable = (rows, after = "After loading") =>
  el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "What changes" },
    table(
      ["Setting", "Now", after],
      rows.map((row) =>
        el("tr", {}, el("td", {}, row.label), el("td", { class: "old" }, row.before), el("td", {}, row.after)),
      ),
      { class: "facts difference" },
    ),
  );
