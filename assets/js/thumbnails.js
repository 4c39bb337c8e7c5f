// Shows the images and clips of a scan, a page at a time.

import { openCaption } from "./caption_dialog.js";
import { clipSentence, clipStrip } from "./clip_strip.js";
import { el, fill } from "./dom.js";
import { address, getJson } from "./http.js";
import { drawLossTools, lossBadge, lossQuery } from "./image_losses.js";
import { showError } from "./toasts.js";

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
};

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
  onCaption();
};
const loadPage = async () => {
  const node = document.getElementById("thumbs");
  if (!node) return;
  const number = ++requests;
  let answer;
  try {
    answer = await getJson("/scan/items", { page, ...lossQuery() });
  } catch (error) {
    if (number === requests) drawn = number;
    return showError(error);
  }
  if (number !== requests) return;
  drawn = number;
  drawLossTools(document.getElementById("thumb-tools"), answer, () => ((page = 0), loadPage()));
  fill(
    node,
    answer.items.map((item) =>
      el(
        "figure",
        { class: item.clip ? "thumb clip" : "thumb" },
        el(
          "button",
          {
            class: "picture",
            title: item.clip ? "Edit the caption of this video" : "Show this image and edit its caption",
            "aria-label": `Caption of ${item.name}`,
            onclick: () => openCaption(answer, item.index, showCaption),
          },
          item.clip
            ? clipStrip(answer.scan, item.index, item.clip)
            : el("img", {
                src: address("/thumb", { scan: answer.scan, item: item.index }),
                alt: "",
                loading: "lazy",
                width: item.width,
                height: item.height,
              }),
        ),
        el(
          "figcaption",
          {},
          captionLine(item.index, item.caption),
          lossBadge(item.losses),
          el("span", { class: "note", title: item.name }, `${item.validation ? "validation · " : ""}${item.name}`),
          item.clip ? el("span", { class: "note" }, clipSentence(item.clip)) : null,
          el("span", { class: "note" }, `${item.width} × ${item.height}${item.bucket ? ` → ${item.bucket}` : ""}`),
          item.captions > 1 ? el("span", { class: "note" }, `${item.captions} captions`) : null,
          item.masked ? el("span", { class: "note", title: "Red parts are outside of the mask" }, "with mask") : null,
        ),
      ),
    ),
  );
  const turnPage = (by) => ((page += by), loadPage());
  fill(
    node.nextElementSibling,
    answer.pages > 1
      ? [
          el("button", { class: "small", disabled: page === 0, onclick: () => turnPage(-1) }, "← Previous"),
          el("span", { class: "note" }, `Page ${page + 1} of ${answer.pages}`),
          el("button", { class: "small", disabled: page >= answer.pages - 1, onclick: () => turnPage(1) }, "Next →"),
        ]
      : null,
  );
};
