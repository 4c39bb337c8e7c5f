// Shows the pictures of a scan, a page at a time.

import { openCaption } from "./caption_dialog.js";
import { el, fill } from "./dom.js";
import { address, getJson } from "./http.js";
import { showError } from "./toasts.js";

let page = 0;
let onwritten = () => {};

// Of another scan the first page is shown.
export const showFirstPage = () => {
  page = 0;
};
// changed: called when a caption is another now.
export const drawThumbnails = (changed) => {
  onwritten = changed;
  loadPage();
};

const captionLine = (index, caption) =>
  el("span", { class: caption ? "" : "missing", "data-caption": index }, caption || "no caption");
const written = (index, caption) => {
  document.querySelector(`#thumbs [data-caption="${index}"]`)?.replaceWith(captionLine(index, caption));
  onwritten();
};
const loadPage = async () => {
  const node = document.getElementById("thumbs");
  if (!node) return;
  let answer;
  try {
    answer = await getJson("/look/items", { page });
  } catch (error) {
    return showError(error);
  }
  fill(
    node,
    answer.items.map((item) =>
      el(
        "figure",
        { class: "thumb" },
        el(
          "button",
          {
            class: "picture",
            title: "Show it large, and write its caption",
            "aria-label": `Caption of ${item.name}`,
            onclick: () => openCaption(answer.look, item.index, written),
          },
          el("img", {
            src: address("/thumb", { look: answer.look, item: item.index }),
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
          el("span", { class: "note", title: item.name }, `${item.validation ? "validation · " : ""}${item.name}`),
          el("span", { class: "note" }, `${item.width} × ${item.height}${item.bucket ? ` → ${item.bucket}` : ""}`),
        ),
      ),
    ),
  );
  const turn = (by) => ((page += by), loadPage());
  fill(
    node.nextElementSibling,
    answer.pages > 1
      ? [
          el("button", { class: "small", disabled: page === 0, onclick: () => turn(-1) }, "← Before"),
          el("span", { class: "note" }, `Page ${page + 1} of ${answer.pages}`),
          el("button", { class: "small", disabled: page >= answer.pages - 1, onclick: () => turn(1) }, "Next →"),
        ]
      : null,
  );
};
