// Draws what follows from the settings: timesteps, learning rate, this machine's memory, and when compiling pays off.

import { el, fill, fillSvg } from "./dom.js";
import { followRoute } from "./route_panel.js";
import { onTabOpened } from "./tabs.js";

followRoute("#timesteps-plot", "/plot/timesteps", (node, answer) => fillSvg(node, answer.svg));
followRoute("#lr-plot", "/plot/lr", (node, answer) => fillSvg(node, answer.svg));

followRoute("#profile-note", "/profile", (node, answer) =>
  fill(node, answer.text ? el("p", { class: "note" }, answer.text) : null),
);

onTabOpened(
  "Compile",
  followRoute("#payback-note", "/payback", (node, answer) =>
    fill(node, answer.text ? el("p", { class: "note" }, answer.text) : null),
  ),
);

followRoute("#memory-root", "/machine", (node, answer) =>
  fill(
    node,
    el(
      "div",
      { class: "stats" },
      answer.tiles.map((t) =>
        el(
          "div",
          { class: "stat" },
          el("span", { class: "stat-value" }, t.value),
          el("span", { class: "stat-label" }, t.label),
        ),
      ),
    ),
    answer.rows.length
      ? el(
          "table",
          { class: "facts" },
          el(
            "tbody",
            {},
            answer.rows.map((r) => el("tr", {}, el("th", {}, r[0]), el("td", {}, r[1]))),
          ),
        )
      : null,
    answer.notes.map((note) => el("p", { class: "note" }, note)),
  ),
);
