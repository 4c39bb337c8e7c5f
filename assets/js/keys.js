// Handles the page's keyboard shortcuts.

import { openDialog } from "./dialogs.js";
import { el } from "./dom.js";
import { savePreset } from "./presets.js";
import { commandKey, startTraining } from "./start_button.js";
import { currentTab } from "./tabs.js";

const KEYS = [
  [`${commandKey} Enter`, "Start training"],
  [`${commandKey} S`, "Save preset"],
  ["/", "Search settings, on the Library tab runs"],
  ["Esc", "Leave a field or close a dialog"],
  ["?", "Show keyboard shortcuts"],
];
document.addEventListener("keydown", (event) => {
  const target = event.target instanceof HTMLElement ? event.target : document.body;
  const typing = target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    startTraining();
  } else if (event.key === "s" && (event.ctrlKey || event.metaKey) && !event.shiftKey) {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) savePreset();
  } else if (event.key === "?" && !typing && !document.querySelector("dialog[open]")) {
    openDialog(
      "Keyboard shortcuts",
      el(
        "table",
        { class: "facts" },
        el(
          "tbody",
          {},
          KEYS.map(([key, what]) => el("tr", {}, el("th", {}, el("kbd", {}, key)), el("td", {}, what))),
        ),
      ),
    );
  } else if (event.key === "/" && !typing && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    document.getElementById(currentTab() === "Library" ? "library-words" : "search")?.focus();
  } else if (event.key === "Escape" && typing) {
    target.blur();
  }
});
