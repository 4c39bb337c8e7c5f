// Filters the images of a scan, and counts their tags: a click on a tag shows the images that have it.

import { el, fill, setText } from "./dom.js";
import { formatCount, formatWhole } from "./format.js";
import { getJson } from "./http.js";
import { t } from "./locale.js";
import { showError } from "./toasts.js";
/** @import { ImageFacets } from "./scan" */

const EMPTY = { status: "", shape: "", bucket: "", text: "" };
const filter = { ...EMPTY };
/** @type {Map<string, boolean>} tag -> whether images have it, or are without it */
const tags = new Map();
let part = "";
let onChange = () => {};
let pause = null;
let requests = 0;

// As the server takes it.
export const imageFilter = () => ({
  ...filter,
  has: [...tags].filter(([, has]) => has).map(([tag]) => tag),
  without: [...tags].filter(([, has]) => !has).map(([tag]) => tag),
});
const isFiltered = () => tags.size > 0 || Object.values(filter).some(Boolean);

const select = (name, label) =>
  el(
    "label",
    { for: `filter-${name}` },
    label,
    el("select", { id: `filter-${name}`, onchange: (event) => change(() => (filter[name] = event.target.value)) }),
  );
const change = (edit) => {
  edit();
  drawChips();
  onChange();
  loadTags();
};
const later = (edit) => {
  clearTimeout(pause);
  pause = setTimeout(edit, 300);
};
const clearAll = () =>
  change(() => {
    Object.assign(filter, EMPTY);
    tags.clear();
    text.value = "";
  });

const text = el("input", {
  id: "filter-text",
  type: "search",
  placeholder: "part of a caption",
  oninput: () => later(() => change(() => (filter.text = text.value))),
});
const selects = el("div", { class: "thumb-tools" }, [
  select("status", "Show"),
  select("shape", "Shape"),
  select("bucket", "Bucket"),
  el("label", { for: "filter-text" }, "Caption", text),
]);
const chips = el("div", { class: "chips", "aria-live": "polite" });
const search = el("input", {
  id: "tag-search",
  type: "search",
  placeholder: "find a tag",
  "aria-label": "Find a tag",
  oninput: () => later(() => ((part = search.value), loadTags())),
});
const tagNote = el("p", { class: "note" });
const tagRows = el("div", { class: "tag-rows", id: "tag-rows" });
const tagPanel = el(
  "details",
  { id: "tag-table", ontoggle: () => tagPanel.open && loadTags() },
  el("summary", {}, "Tags"),
  el("div", { class: "thumb-tools" }, search),
  tagRows,
  tagNote,
);
const root = el("div", { id: "image-filters" }, selects, chips, tagPanel);

/**
 * The filters, which keep their state over scans.
 *
 * @param {() => void} changed called when other images are to be shown
 */
export const filterTools = (changed) => {
  onChange = changed;
  drawChips();
  return root;
};

const chip = (tag, has) =>
  el(
    "span",
    { class: "chip-tag" },
    el(
      "button",
      {
        class: "small",
        title: "Show the images without it instead, or with it again",
        onclick: () => change(() => tags.set(tag, !has)),
      },
      t(has ? "with" : "without"),
      " ",
      el("span", { translate: "no" }, tag),
    ),
    el(
      "button",
      { class: "small", "aria-label": t`Remove the filter ${tag}`, onclick: () => change(() => tags.delete(tag)) },
      "×",
    ),
  );
const drawChips = () =>
  fill(
    chips,
    [...tags].map(([tag, has]) => chip(tag, has)),
    isFiltered() ? el("button", { class: "small", id: "filter-clear", onclick: clearAll }, "Show all images") : null,
  );

/** @type {(facets: ImageFacets) => void} */
const drawSelects = (facets) => {
  for (const name of ["status", "shape", "bucket"]) {
    const node = /** @type {HTMLSelectElement} */ (root.querySelector(`#filter-${name}`));
    const rows = [["", "All", null], ...facets[name]];
    // What is filtered by stays to be seen when no image is of it any more.
    if (filter[name] && !rows.some(([value]) => value === filter[name])) rows.push([filter[name], filter[name], 0]);
    const shown = JSON.stringify(rows);
    if (node.dataset.shown === shown) continue;
    node.dataset.shown = shown;
    fill(
      node,
      rows.map(([value, words, count]) =>
        el(
          "option",
          { value, selected: value === filter[name] },
          count === null ? words : `${t(words)} (${formatWhole(count)})`,
        ),
      ),
    );
  }
};

// Counts again: after a scan, another filter, or other captions.
export const loadTags = async () => {
  const number = ++requests;
  let answer;
  try {
    answer = await getJson("/scan/tags", { ...imageFilter(), part: tagPanel.open ? part : "" });
  } catch (error) {
    return showError(error);
  }
  if (number !== requests) return;
  drawSelects(answer);
  setText(tagPanel.querySelector("summary"), t`Tags (${formatWhole(answer.of)})`);
  if (!tagPanel.open) return;
  fill(
    tagRows,
    answer.tags.map(([tag, count]) =>
      el(
        "button",
        {
          class: "small",
          "data-tag": tag,
          "aria-pressed": tags.has(tag) ? "true" : "false",
          onclick: () => change(() => (tags.has(tag) ? tags.delete(tag) : tags.set(tag, true))),
        },
        el("span", { translate: "no" }, tag),
        el("span", { class: "count" }, formatWhole(count)),
      ),
    ),
  );
  const more = answer.of - answer.tags.length;
  setText(
    tagNote,
    more > 0
      ? t`The most frequent ones; ${formatCount(more, "tag")} more. Find them by a part of their name.`
      : answer.of
        ? "How many of the shown images have each tag. A click shows these images."
        : "No tags.",
  );
};
