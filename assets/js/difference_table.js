// Draws what loading settings would change.

import { el } from "./dom.js";
/** @import { DifferenceRow } from "./server" */

/**
 * @param {DifferenceRow[]} rows
 */
export const differenceTable = (rows) =>
  el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "What changes" },
    el(
      "table",
      { class: "facts difference" },
      el("thead", {}, el("tr", {}, el("th", {}, "Setting"), el("th", {}, "Now"), el("th", {}, "After loading"))),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el("tr", {}, el("td", {}, row.label), el("td", { class: "old" }, row.before), el("td", {}, row.after)),
        ),
      ),
    ),
  );
