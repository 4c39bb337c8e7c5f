// Copies text, and draws paths with a button that copies them.

import { el } from "./dom.js";
import { toast } from "./toasts.js";

export const copyText = async (text) => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https (a page on another machine) browsers hide the clipboard; the old way still works.
    const area = document.body.appendChild(el("textarea", { class: "offscreen", value: text }));
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied.");
};
export const pathLine = (path, extra) =>
  el(
    "div",
    { class: "path-line" },
    el("code", { title: path }, path),
    el("button", { class: "small", onclick: () => copyText(path) }, "Copy path"),
    extra || null,
  );
