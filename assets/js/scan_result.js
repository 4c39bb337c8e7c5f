// Draws the result of a dataset scan: counts, problems, lists, and the shape plan.

import { el, fill, fillSvg, table } from "./dom.js";
import { goToField } from "./field_jump.js";
import { formatWhole } from "./format.js";
import { t } from "./locale.js";
/** @import { Finding } from "./server" */
/** @import { ScanResult, ShapeMode } from "./scan" */

/**
 * @param {Finding[]} problems
 */
export const problemList = (problems) =>
  problems.length ? el("ul", { class: "problem-list" }, problems.map(problem)) : null;
/**
 * @param {Finding} p
 */
const problem = (p) =>
  el(
    "li",
    { class: p.severity },
    el("strong", {}, p.text),
    p.remedy ? ` ${p.remedy}` : "",
    // The folders are right above.
    p.id && p.id !== "f-dataset-folders"
      ? [" ", el("button", { class: "link", onclick: () => goToField(p.id, p.tab) }, t`Go to ${p.label}`)]
      : null,
    p.files?.length
      ? el(
          "details",
          {},
          el("summary", {}, t`All ${formatWhole(p.count)}`),
          el(
            "ul",
            { class: "plain-list" },
            p.files.map((file) => el("li", {}, el("code", {}, file))),
            p.count > p.files.length
              ? el("li", {}, t`and ${formatWhole(p.count - p.files.length)} more`)
              : null,
          ),
        )
      : null,
  );
const tile = (value, label, tone) =>
  el(
    "div",
    { class: `stat ${tone || ""}` },
    el("span", { class: "stat-value" }, value),
    el("span", { class: "stat-label" }, label),
  );

// Counts the problems listed below; red where one of them stops a start.
const problemTile = (problems) => {
  const counted = problems.filter((p) => p.severity !== "note");
  const tone = counted.some((p) => p.severity === "error") ? "bad" : counted.length ? "warn" : "good";
  return tile(formatWhole(counted.length), counted.length === 1 ? "problem" : "problems", tone);
};
/**
 * @param {ShapeMode[]} modes
 */
const modeTable = (modes) =>
  el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Shape mode" },
    table(
      ["Shape mode", "Graphs", "Training graphs", "Other graphs", "Buckets", "Images left out", "Padding", "Cropping"],
      modes.map((mode) =>
        el(
          "tr",
          { class: mode.chosen ? "chosen" : "" },
          el(
            "td",
            {},
            el("code", {}, mode.name),
            " ",
            mode.chosen ? el("span", { class: "tag" }, "set") : null,
            " ",
            mode.recommended ? el("span", { class: "tag good" }, "recommended") : null,
            mode.note ? el("span", { class: "note block" }, mode.note) : null,
          ),
          [mode.graphs, mode.training, mode.no_grad, mode.buckets, mode.left, mode.padding, mode.crop].map((v) =>
            el("td", {}, v === null || v === undefined ? "–" : String(v)),
          ),
        ),
      ),
      { class: "facts numbers", id: "mode-table" },
    ),
  );

const fileLists = (groups) =>
  groups
    .filter((g) => g.items.length)
    .map((g) =>
      el(
        "details",
        {},
        el("summary", {}, `${t(g.title)} (${formatWhole(g.items.length)})`),
        el(
          "ul",
          { class: "plain-list" },
          g.items
            .slice(0, 200)
            .map((item) => el("li", {}, el("code", {}, item.name), item.note ? ` ${item.note}` : "")),
        ),
        g.items.length > 200
          ? el("p", { class: "note" }, t`and ${formatWhole(g.items.length - 200)} more`)
          : null,
      ),
    );

const staleNote = (result) => (result.stale ? el("p", { class: "warning" }, result.stale) : null);

// For the Dataset tab.
/**
 * @param {Element} node
 * @param {ScanResult} result
 * @param {HTMLElement[]} tools above the images
 */
export const drawScan = (node, result, tools) => {
  const c = result.counts;
  // The tools are put into the page again: whoever uses one of them stays in it.
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  const kept = tools.some((tool) => tool.contains(focused));
  fill(
    node,
    staleNote(result),
    el(
      "div",
      { class: "stats" },
      c.images || !c.clips ? tile(formatWhole(c.images), c.images === 1 ? "image" : "images") : null,
      c.clips
        ? [
            tile(formatWhole(c.clips), c.clips === 1 ? "video" : "videos"),
            tile(formatWhole(c.windows), c.windows === 1 ? "clip in it" : "clips in them"),
          ]
        : null,
      tile(formatWhole(c.with_caption), "with caption", c.with_caption < c.images + c.clips ? "warn" : "good"),
      tile(formatWhole(c.validation), "for validation"),
      tile(formatWhole(c.sizes), c.sizes === 1 ? "image size" : "image sizes"),
      tile(formatWhole(c.ignored), "files ignored"),
      problemTile(result.problems),
    ),
    result.headline
      ? [el("p", { class: "headline", id: "plan-headline" }, result.headline), el("p", { class: "note" }, result.steps)]
      : null,
    problemList(result.problems),
    result.histogram ? el("div", { class: "plot-box", id: "histogram" }) : null,
    fileLists(result.lists),
    c.images + c.clips + c.validation ? el("h2", {}, c.clips ? "Videos and images" : "Images") : null,
    c.images + c.clips + c.validation ? tools : null,
    el("p", { class: "note", id: "thumb-count", "aria-live": "polite" }),
    el("div", { class: "thumbs", id: "thumbs" }),
    el("div", { class: "pager" }),
  );
  if (result.histogram) fillSvg(node.querySelector("#histogram"), result.histogram);
  if (kept) focused.focus({ preventScroll: true });
};

// For the Compile tab.
/**
 * @param {Element} node
 * @param {ScanResult} result
 */
export const drawPlan = (node, result) => {
  if (!result.headline) return fill(node, staleNote(result), problemList(result.problems));
  fill(
    node,
    staleNote(result),
    el("p", { class: "headline" }, result.headline),
    el("p", { class: "note" }, result.recommended),
    modeTable(result.modes),
    el("p", { class: "note" }, result.legend),
    el(
      "details",
      {},
      el("summary", {}, "Plan as text"),
      el("pre", { class: "log short" }, result.lines.join("\n")),
    ),
  );
};
