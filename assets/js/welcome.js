// Explains the demo to people who are here for the first time, until there is a run or the settings change.

import { el, fill, whenPresent } from "./dom.js";
import { on, pageState } from "./state.js";
import { openTab } from "./tabs.js";

let node = null;
let runs = null;

const draw = () => {
  if (!node) return;
  const { preset, changed } = pageState.draft;
  const shown = runs?.length === 0 && preset === "demo" && !(changed || []).length;
  node.hidden = !shown;
  if (!shown || node.childElementCount) return;
  const link = (title) => el("button", { class: "link", onclick: () => openTab(title) }, title);
  fill(
    node,
    el("strong", {}, "The demo is ready to start. "),
    "Press Start training to teach a small model a creature that it has never seen. ",
    "It takes some minutes, also without a GPU. ",
    "For your own LoRA, choose a base model on the ",
    link("Model"),
    " tab and your images on the ",
    link("Dataset"),
    " tab, or load a preset for your GPU.",
  );
};
whenPresent("#bar-root", (bar) => {
  node = el("div", { class: "welcome", id: "welcome", hidden: true });
  bar.append(node);
  draw();
});
on("runs", (list) => ((runs = list), draw()));
on("draft", draw);
