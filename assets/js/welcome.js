// Points out the demo to who is here for the first time, until there is a run or another form.

import { el, fill, whenPresent } from "./dom.js";
import { on, pageState } from "./state.js";
import { openTab } from "./tabs.js";

let node = null;
let runs = null;

const draw = () => {
  if (!node) return;
  const { preset, changed } = pageState.desk;
  const shown = runs?.length === 0 && preset === "demo" && !(changed || []).length;
  node.hidden = !shown;
  if (!shown || node.childElementCount) return;
  const link = (title) => el("button", { class: "link", onclick: () => openTab(title) }, title);
  fill(
    node,
    el("strong", {}, "The demo is laid out. "),
    "Start training teaches a small model a creature that it has never seen: some minutes, without a GPU too. ",
    "For a LoRA of your own, give the base model under ",
    link("Model"),
    " and your pictures under ",
    link("Dataset"),
    ", or begin with a preset for your GPU.",
  );
};
whenPresent("#bar-root", (bar) => {
  node = el("div", { class: "welcome", id: "welcome", hidden: true });
  bar.append(node);
  draw();
});
on("runs", (found) => ((runs = found), draw()));
on("desk", draw);
