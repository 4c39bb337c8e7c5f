// Searches a scan for images that are nearly the same, and shows them side by side.

import { sendRequest } from "./bridge.js";
import { pathLine } from "./clipboard.js";
import { el, fill, setText } from "./dom.js";
import { formatCount, formatWhole } from "./format.js";
import { address, getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { on } from "./state.js";
import { showError } from "./toasts.js";
/** @import { NearState } from "./scan" */

let timer = null;
let page = 0;
let drawn = "";
let onOpen = (_scan, _index) => {};

const start = async (route) => {
  try {
    page = 0;
    draw(await postJson(route));
  } catch (error) {
    showError(error);
  }
};
const button = el("button", { id: "near-start", onclick: () => start("/scan/near") }, "Find near-duplicates");
const bar = el("div");
const progress = el(
  "div",
  { class: "scan-progress", hidden: true },
  el("div", { class: "progress" }, bar),
  el("span", { class: "note" }),
  el("button", { class: "small", onclick: () => start("/scan/near/stop") }, "Cancel"),
);
const note = el("p", { class: "note", id: "near-note", "aria-live": "polite" });
const groups = el("div", { id: "near-groups" });
const pager = el("div", { class: "pager" });
const root = el(
  "details",
  { id: "near-root" },
  el("summary", {}, "Near-duplicates"),
  el("div", { class: "panel-head" }, button, progress),
  note,
  groups,
  pager,
);

/**
 * The tools, which keep their result while the scan stays the same.
 *
 * @param {(scan: number, index: number) => void} open called to show an image with its caption
 */
export const nearTools = (open) => {
  onOpen = open;
  watch();
  return root;
};

const watch = async () => {
  clearTimeout(timer);
  try {
    draw(await getJson("/scan/near", { page }));
  } catch {
    timer = setTimeout(watch, 2000);
  }
};
const RESULT = {
  idle: () => "Finds images that look alike, in any size and format: each of them counts in the training.",
  running: () => "",
  cancelled: () => "Cancelled.",
  failed: (state) => state.text,
  done: (state) =>
    state.groups
      ? t`${formatCount(state.images, "image")} in ${formatCount(state.groups, "group")}. ${t(state.text)}`
      : t`No image looks like another one. ${t(state.text)}`,
};
/** @type {(state: NearState) => void} */
const draw = (state) => {
  clearTimeout(timer);
  const running = state.state === "running";
  if (running) timer = setTimeout(watch, 400);
  page = state.page;
  progress.hidden = !running;
  button.disabled = running;
  bar.style.width = `${state.total ? (100 * state.done) / state.total : 3}%`;
  setText(progress.querySelector("span"), t`${formatWhole(state.done)} of ${formatCount(state.total, "image")}`);
  setText(note, RESULT[state.state](state));
  const key = JSON.stringify([state.scan, state.shown]);
  if (key === drawn) return;
  drawn = key;
  fill(groups, state.shown.map((group) => groupRow(state.scan, group)));
  const turn = (by) => ((page += by), watch());
  fill(
    pager,
    state.pages > 1
      ? [
          el("button", { class: "small", disabled: page === 0, onclick: () => turn(-1) }, "← Previous"),
          el("span", { class: "note" }, t`Page ${page + 1} of ${formatWhole(state.pages)}`),
          el("button", { class: "small", disabled: page >= state.pages - 1, onclick: () => turn(1) }, "Next →"),
        ]
      : null,
  );
};
// Leaves all images of a group but one out of the training, by a setting, or none: with Undo, as for any change.
const leaveOut = async (scan, group, out) => {
  try {
    sendRequest("apply", await postJson("/scan/near/leave", { scan, group, out }));
  } catch (error) {
    showError(error);
  }
};
on("draft", () => root.isConnected && /** @type {HTMLDetailsElement} */ (root).open && drawn && watch());
const leaveButton = (scan, group) => {
  const text = group.out ? "Keep one, leave the others out" : "Train all of them";
  return el("button", { class: "small near-leave", onclick: () => leaveOut(scan, group.number, group.out) }, text);
};
const groupRow = (scan, group) =>
  el(
    "div",
    { class: "near-group" },
    leaveButton(scan, group),
    group.items.map((item) =>
      el(
        "figure",
        { class: item.left ? "thumb left-out" : "thumb" },
        el(
          "button",
          { class: "picture", "aria-label": t`Caption of ${item.name}`, onclick: () => onOpen(scan, item.index) },
          el("img", { src: address("/thumb", { scan, item: item.index }), alt: "", loading: "lazy" }),
        ),
        el(
          "figcaption",
          {},
          el("span", {}, item.caption || "no caption"),
          el(
            "span",
            { class: "note" },
            `${item.width} × ${item.height}${item.same ? t(", the same file again") : ""}`,
          ),
          item.left ? el("span", { class: "note" }, "left out") : null,
          pathLine(item.path),
        ),
      ),
    ),
    group.count > group.items.length
      ? el("p", { class: "note" }, t`and ${formatCount(group.count - group.items.length, "image")} more`)
      : null,
  );
