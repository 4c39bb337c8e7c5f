// Scans the dataset on the Dataset tab and plans shapes on the Compile tab: one job on the server does both.

import { el, fill, setText, whenPresent } from "./dom.js";
import { formatCount, formatWhole } from "./format.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { drawPlan, drawScan, problemList } from "./scan_result.js";
import { on } from "./state.js";
import { drawThumbnails, imageTools, showFirstPage } from "./thumbnails.js";
import { showError } from "./toasts.js";
/** @import { ScanResult, ScanState } from "./scan" */

let timer = null;
/** @type {ScanResult | null} */
let result = null;
let drawn = null;

const startScan = async () => {
  try {
    await postJson("/scan");
    showFirstPage();
    watch();
  } catch (error) {
    showError(error);
  }
};
const stop = async () => postJson("/scan/stop").catch(showError);

const watch = async () => {
  clearTimeout(timer);
  /** @type {ScanState} */
  let state;
  try {
    state = await getJson("/scan");
  } catch {
    timer = setTimeout(watch, 2000);
    return;
  }
  drawState(state);
  if (state.state === "running") timer = setTimeout(watch, 400);
  else if (state.state === "done") {
    // Another scan is drawn again even if its result is the same: its images are asked for by its number.
    const key = JSON.stringify([state.scan, state.result]);
    result = state.result;
    drawResult(key !== drawn);
    drawn = key;
  }
};
// The plan follows the form without another scan.
let pause = null;
on("draft", () => {
  if (!result) return;
  clearTimeout(pause);
  pause = setTimeout(watch, 300);
});
// Captions were written elsewhere: the images are drawn again with them.
on("captions", () => {
  if (!result) return;
  drawn = null;
  watch();
});

const roots = { scan: null, plan: null };
const frame = (node, kind) => {
  roots[kind] = node;
  fill(
    node,
    el(
      "div",
      { class: "panel-head" },
      el(
        "button",
        { class: kind === "scan" ? "primary" : "", "data-scan": kind, onclick: startScan },
        kind === "scan" ? "Scan dataset" : "Plan shapes",
      ),
      el(
        "div",
        { class: "scan-progress", hidden: true },
        el("div", { class: "progress busy" }, el("div")),
        el("span", { class: "note" }),
        el("button", { class: "small", onclick: stop }, "Cancel"),
      ),
      el(
        "p",
        { class: "note scan-note" },
        kind === "scan"
          ? "Reads sizes and captions, opens every image once, and lists problems. Nothing is changed."
          : "Counts tokens and graphs from the image sizes and these settings. No model is loaded.",
      ),
    ),
    el("div", { class: "scan-result", id: `${kind}-result` }),
  );
  watch();
};
whenPresent("#scan-root", (node) => frame(node, "scan"));
whenPresent("#plan-root", (node) => frame(node, "plan"));

/**
 * @param {ScanState} state
 */
const drawState = (state) => {
  for (const node of Object.values(roots)) {
    if (!node) continue;
    const running = state.state === "running";
    const progress = node.querySelector(".scan-progress");
    progress.hidden = !running;
    node.querySelector(".scan-note").hidden = running;
    node.querySelector("[data-scan]").disabled = running;
    const share = state.total ? state.done / state.total : 0.03;
    progress.querySelector(".progress > div").style.width = `${100 * share}%`;
    setText(
      progress.querySelector("span"),
      state.total
        ? t`${formatWhole(state.done)} of ${formatCount(state.total, "image")}`
        : "Finding images…",
    );
    if (state.state === "failed") {
      fill(node.querySelector(".scan-result"), problemList(state.problems));
    }
  }
};

// changed: the result differs from what is drawn. A panel that was never drawn is drawn in any case.
const drawResult = (changed) => {
  const due = (root) => root && (changed || !root.querySelector(".scan-result").childElementCount);
  if (due(roots.scan)) {
    drawScan(roots.scan.querySelector(".scan-result"), result, imageTools());
    drawThumbnails(watch);
  }
  if (due(roots.plan)) drawPlan(roots.plan.querySelector(".scan-result"), result);
};
