// Opens boxes over the page.

import { el } from "./dom.js";
import { drawIcon } from "./icons.js";

// A box over the page. Escape, its button and a click outside close it.
export const openDialog = (title, ...content) => {
  const box = el(
    "dialog",
    { class: "dialog", "aria-label": title },
    el(
      "div",
      { class: "dialog-head" },
      el("h2", {}, title),
      el("button", { class: "quiet", "aria-label": "Close", onclick: () => box.close() }, drawIcon("remove")),
    ),
    content,
  );
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => event.target === box && box.close());
  document.body.append(box);
  box.showModal();
  return box;
};
