// Looks at the images on the Dataset tab and makes the shape plan on the Compile tab: one job on the server feeds both.

import { el, fill, setText, whenPresent } from "./dom.js";
import { formatCount } from "./format.js";
import { getJson, postJson } from "./http.js";
import { drawPlan, drawScan, problemList } from "./scan_result.js";
import { on } from "./state.js";
import { drawThumbnails, showFirstPage } from "./thumbnails.js";
import { showError } from "./toasts.js";
/** @import { ScanResult, ScanState } from "./server" */

let timer = null;
/** @type {ScanResult | null} */
let result = null;
let drawn = null;

const look = async () => {
  try {
    await postJson("/look");
    showFirstPage();
    watch();
  } catch (error) {
    showError(error);
  }
};
const stop = async () => postJson("/look/stop").catch(showError);

const watch = async () => {
  clearTimeout(timer);
  /** @type {ScanState} */
  let state;
  try {
    state = await getJson("/look");
  } catch {
    timer = setTimeout(watch, 2000);
    return;
  }
  drawState(state);
  if (state.state === "running") timer = setTimeout(watch, 400);
  else if (state.state === "done") {
    // Another look is drawn again even if it found the same: its pictures are asked for by its number.
    const key = JSON.stringify([state.look, state.result]);
    result = state.result;
    drawResult(key !== drawn);
    drawn = key;
  }
};
// The plan follows the form without another look.
let pause = null;
on("desk", () => {
  if (!result) return;
  clearTimeout(pause);
  pause = setTimeout(watch, 300);
});

const roots = { look: null, plan: null };
const frame = (node, kind) => {
  roots[kind] = node;
  fill(
    node,
    el(
      "div",
      { class: "look-head" },
      el(
        "button",
        { class: kind === "look" ? "primary" : "", "data-look": kind, onclick: look },
        kind === "look" ? "Look at the images" : "Make the shape plan",
      ),
      el(
        "div",
        { class: "look-progress", hidden: true },
        el("div", { class: "progress busy" }, el("div")),
        el("span", { class: "note" }),
        el("button", { class: "small", onclick: stop }, "Cancel"),
      ),
      el(
        "p",
        { class: "note look-note" },
        kind === "look"
          ? "Reads sizes and captions, decodes every picture once, and lists what is odd. Nothing is changed."
          : "Counts tokens and graphs from the images and these settings, before anything is loaded.",
      ),
    ),
    el("div", { class: "look-result", id: `${kind}-result` }),
  );
  watch();
};
whenPresent("#look-root", (node) => frame(node, "look"));
whenPresent("#plan-root", (node) => frame(node, "plan"));

/**
 * @param {ScanState} state
 */
const drawState = (state) => {
  for (const node of Object.values(roots)) {
    if (!node) continue;
    const running = state.state === "running";
    const progress = node.querySelector(".look-progress");
    progress.hidden = !running;
    node.querySelector(".look-note").hidden = running;
    node.querySelector("[data-look]").disabled = running;
    const share = state.total ? state.done / state.total : 0.03;
    progress.querySelector(".progress > div").style.width = `${100 * share}%`;
    setText(
      progress.querySelector("span"),
      state.total
        ? `${state.done.toLocaleString("en")} of ${formatCount(state.total, "picture")}`
        : "Finding pictures…",
    );
    if (state.state === "failed") {
      fill(node.querySelector(".look-result"), problemList(state.problems));
    }
  }
};

// changed: the result is another than what is drawn; a panel that was never drawn is drawn in any case.
const drawResult = (changed) => {
  const due = (root) => root && (changed || !root.querySelector(".look-result").childElementCount);
  if (due(roots.look)) {
    drawScan(roots.look.querySelector(".look-result"), result);
    drawThumbnails(watch);
  }
  if (due(roots.plan)) drawPlan(roots.plan.querySelector(".look-result"), result);
};
