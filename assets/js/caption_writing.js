// Follows the writing of many captions: how far it is, its stop, what it did, and its undo.

import { el, setText } from "./dom.js";
import { formatCount, formatDuration, formatWhole } from "./format.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { showError, toast } from "./toasts.js";
/** @import { CaptionWork } from "./scan" */

const EVERY_MS = 400;
let timer = null;
/** @type {{ number: number, ended: (work: CaptionWork) => void } | null} the work whose end is still to be told */
let awaited = null;
/** @type {((work: CaptionWork) => void)[]} */
const drawers = [];

/**
 * Tells how the writing is, again and again while there is some.
 *
 * @param {(work: CaptionWork) => void} draw
 */
export const whenWritten = (draw) => {
  drawers.push(draw);
};
/**
 * Follows work that was just started to its end.
 *
 * @param {CaptionWork} work
 * @param {(work: CaptionWork) => void} ended called once it is done, cancelled or failed
 */
export const followWriting = (work, ended) => {
  awaited = { number: work.number, ended };
  draw(work);
};
export const watchWriting = async () => {
  clearTimeout(timer);
  try {
    draw(await getJson("/scan/bulk"));
  } catch {
    timer = setTimeout(watchWriting, 5 * EVERY_MS);
  }
};
/**
 * @param {string} id of the changes
 * @param {(work: CaptionWork) => void} ended
 */
export const undoWriting = async (id, ended) => {
  try {
    followWriting(await postJson("/scan/bulk/undo", { id }), ended);
  } catch (error) {
    showError(error);
  }
};

/** @type {(work: CaptionWork) => void} */
const draw = (work) => {
  clearTimeout(timer);
  const running = work.state === "running";
  if (running) {
    // begun by another browser, or before this page was loaded
    if (awaited?.number !== work.number) awaited = { number: work.number, ended: () => {} };
    timer = setTimeout(watchWriting, EVERY_MS);
  }
  for (const each of drawers) each(work);
  if (running || awaited?.number !== work.number) return;
  const { ended } = awaited;
  awaited = null;
  const undo = { action: "Undo", onaction: () => undoWriting(work.made, ended), seconds: 15 };
  if (work.state !== "failed") toast(t(work.text), work.made ? undo : {});
  ended(work);
};

/**
 * A bar with count, time left and a button that stops the writing, which is hidden while nothing is written.
 *
 * @param {string} id
 * @param {string} stop what the button says
 */
export const writingBar = (id, stop) => {
  const bar = el("div");
  const note = el("span", { class: "note" });
  const press = () => postJson("/scan/bulk/stop").then(draw).catch(showError);
  const node = el(
    "div",
    { class: "scan-progress", id, hidden: true },
    el("div", { class: "progress" }, bar),
    note,
    el("button", { class: "small", onclick: press }, stop),
  );
  whenWritten((work) => {
    node.hidden = work.state !== "running";
    bar.style.width = `${work.total ? (100 * work.done) / work.total : 3}%`;
    const left = work.seconds_left === null ? "" : t`, ${formatDuration(work.seconds_left)} left`;
    const files = () => t`${formatWhole(work.done)} of ${formatCount(work.total, "caption file")}`;
    setText(note, work.total ? `${files()}${left}` : "Reading captions…");
  });
  return node;
};
