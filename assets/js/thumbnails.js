// Shows the images and clips of a scan, a page at a time.

import { bulkTools, drawScope } from "./bulk_captions.js";
import { openCaption } from "./caption_dialog.js";
import { clipSentence, clipStrip } from "./clip_strip.js";
import { cropSentence, withCrop } from "./crop_frame.js";
import { el, fill, setText } from "./dom.js";
import { formatCount } from "./format.js";
import { address, getJson } from "./http.js";
import { filterTools, imageFilter, loadTags } from "./image_filters.js";
import { drawLossTools, lossBadge, lossQuery } from "./image_losses.js";
import { isSelected, selectImage, startSelection } from "./image_selection.js";
import { t } from "./locale.js";
import { nearTools } from "./near_duplicates.js";
import { showError } from "./toasts.js";
/** @import { ScannedItems } from "./scan" */

let page = 0;
let onCaption = () => {};
// Answers may come in another order than they were asked for: only the newest is drawn.
let requests = 0;
let drawn = 0;

// A new scan starts at its first page.
export const showFirstPage = () => {
  page = 0;
};
// changed: called after a caption was saved or undone.
export const drawThumbnails = (changed) => {
  onCaption = changed;
  loadPage();
  loadTags();
};
const lossTools = el("div", { class: "thumb-tools", id: "thumb-tools" });
// The tools above the images. They are the same elements after each scan, with what was typed into them.
export const imageTools = () => [
  filterTools(() => ((page = 0), loadPage())),
  bulkTools(() => (loadPage(), loadTags(), onCaption())),
  nearTools((scan, index) => openCaption({ scan, order: null, run: null }, index, showCaption)),
  lossTools,
];

const captionLine = (index, caption) =>
  el(
    "span",
    { class: caption ? "" : "missing", "data-caption": index, translate: caption ? "no" : null },
    caption || "no caption",
  );
const showCaption = (index, caption) => {
  document.querySelector(`#thumbs [data-caption="${index}"]`)?.replaceWith(captionLine(index, caption));
  // What is on its way may still hold the caption of before.
  if (drawn !== requests) loadPage();
  loadTags();
  onCaption();
};
/** @type {(answer: ScannedItems, item: ScannedItems["items"][number]) => HTMLElement} */
const thumbnail = (answer, item) =>
  el(
    "figure",
    { class: item.clip ? "thumb clip" : "thumb" },
    el(
      "button",
      {
        class: "picture",
        title: item.clip ? "Edit the caption of this video" : "Show this image and edit its caption",
        "aria-label": t`Caption of ${item.name}`,
        onclick: () => openCaption(answer, item.index, showCaption),
      },
      item.clip ? clipStrip(answer.scan, item.index, item.clip) : picture(answer.scan, item),
    ),
    chooser(answer, item),
    el(
      "figcaption",
      {},
      captionLine(item.index, item.caption),
      lossBadge(item.losses),
      el("span", { class: "note", title: item.name }, `${item.validation ? "validation · " : ""}${item.name}`),
      item.clip ? el("span", { class: "note" }, clipSentence(item.clip)) : null,
      el("span", { class: "note" }, `${item.width} × ${item.height}${item.bucket ? ` → ${item.bucket}` : ""}`),
      item.crop
        ? el("span", { class: "note", title: "What is dark is not trained" }, cropSentence(item.crop))
        : null,
      item.captions > 1 ? el("span", { class: "note" }, formatCount(item.captions, "caption")) : null,
      item.masked ? el("span", { class: "note", title: "Red parts are outside of the mask" }, "with mask") : null,
    ),
  );
const picture = (scan, item) =>
  withCrop(
    el("img", {
      src: address("/thumb", { scan, item: item.index }),
      alt: "",
      loading: "lazy",
      width: item.width,
      height: item.height,
    }),
    item.width,
    item.height,
    item.crop,
  );
const chooser = (answer, item) =>
  el(
    "label",
    { class: "thumb-choose" },
    el("input", {
      type: "checkbox",
      checked: isSelected(item.index),
      "aria-label": t`Choose ${item.name}`,
      "data-index": item.index,
      onclick: (event) => choose(answer, item.index, event.target.checked, event.shiftKey),
    }),
  );
const choose = (answer, index, on, range) => {
  const shown = answer.items.map((item) => item.index);
  for (const each of selectImage(index, on, shown, range)) {
    const box = /** @type {HTMLInputElement | null} */ (document.querySelector(`#thumbs [data-index="${each}"]`));
    if (box) box.checked = on;
  }
};
const loadPage = async () => {
  const node = document.getElementById("thumbs");
  if (!node) return;
  const number = ++requests;
  let answer;
  try {
    answer = await getJson("/scan/items", { page, ...lossQuery(), ...imageFilter() });
  } catch (error) {
    if (number === requests) drawn = number;
    return showError(error);
  }
  if (number !== requests) return;
  drawn = number;
  drawLossTools(lossTools, answer, () => ((page = 0), loadPage()));
  // Fewer images than before may have fewer pages.
  page = Math.min(page, answer.pages - 1);
  startSelection(answer.scan);
  drawScope(answer);
  const count = answer.of ? formatCount(answer.of, "image") : "No image is like that.";
  setText(document.getElementById("thumb-count"), count);
  fill(
    node,
    answer.items.map((item) => thumbnail(answer, item)),
  );
  const turnPage = (by) => ((page += by), loadPage());
  fill(
    node.nextElementSibling,
    answer.pages > 1
      ? [
          el("button", { class: "small", disabled: page === 0, onclick: () => turnPage(-1) }, "← Previous"),
          el("span", { class: "note" }, t`Page ${page + 1} of ${answer.pages}`),
          el("button", { class: "small", disabled: page >= answer.pages - 1, onclick: () => turnPage(1) }, "Next →"),
        ]
      : null,
  );
};
