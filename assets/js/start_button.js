// Checks everything and starts training.

import { sendRequest } from "./bridge.js";
import { el, setText } from "./dom.js";
import { t } from "./locale.js";
import { emit, on } from "./state.js";
import { openTab } from "./tabs.js";

// The modifier key of the page's shortcuts.
export const commandKey = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";

let starting = null;
export const startTraining = () => {
  if (startButton.disabled) return;
  startButton.disabled = true;
  setText(startButton, "Checking…");
  clearTimeout(starting);
  starting = setTimeout(ready, 20000);
  sendRequest("start");
};
// The button in the bar.
export const startButton = el(
  "button",
  {
    class: "primary",
    id: "start",
    title: t`Check everything and start training (${commandKey} Enter)`,
    onclick: startTraining,
  },
  "Start training",
);
const ready = () => {
  clearTimeout(starting);
  startButton.disabled = false;
  setText(startButton, "Start training");
};
on("started", ({ run }) => {
  ready();
  openTab("Run");
  emit("run", run);
});
on("refused", ready);
