// Draws a clip of the dataset as a strip of frames on its time line, with the windows that are trained on.

import { el } from "./dom.js";
import { formatCount, formatFixed } from "./format.js";
import { address } from "./http.js";
import { language, t } from "./locale.js";
/** @import { ScannedClip } from "./scan" */

const MOST_LANES = 6;
const seconds = (value) => `${formatFixed(value, value < 10 ? 2 : 1)} s`;
const rate = (value) => t`${Number(value.toFixed(2)).toLocaleString(language)} fps`;

/**
 * Windows in as few rows as hold them side by side.
 *
 * @param {ScannedClip["windows"]} windows
 */
const lanesOf = (windows) => {
  const lanes = [];
  for (const window of windows) {
    const free = lanes.find((lane) => lane[lane.length - 1].end <= window.start + 1e-6);
    if (free) free.push(window);
    else lanes.push([window]);
  }
  return lanes;
};

/**
 * What is taken of a clip, in a sentence.
 *
 * @param {ScannedClip} clip
 */
export const clipSentence = (clip) => {
  const left = clip.dropped.reduce((sum, part) => sum + part.end - part.start, 0);
  const retimed = Math.abs(clip.taken_rate / clip.rate - 1) > 0.001 ? t`, taken at ${rate(clip.taken_rate)}` : "";
  const [most, ...fewer] = [...clip.lengths].reverse();
  const lengths = fewer.length
    ? t`${fewer.reverse().join(", ")} and ${formatCount(most, "frame")}`
    : formatCount(most, "frame");
  return (
    t`${seconds(clip.seconds)} at ${rate(clip.rate)}${retimed} · ` +
    t`${formatCount(clip.count, "window")} of ${lengths} · ` +
    (left ? t`${seconds(clip.used)} used, ${seconds(left)} left out` : "all of it used")
  );
};

/**
 * @param {number} scan  its number
 * @param {number} index  of the clip among its items
 * @param {ScannedClip} clip
 */
export const clipStrip = (scan, index, clip) => {
  const place = (part) => {
    const left = (100 * part.start) / clip.seconds;
    return `left: ${left}%; width: ${Math.max(0.4, (100 * (part.end - part.start)) / clip.seconds)}%`;
  };
  const lanes = lanesOf(clip.windows);
  const shown = lanes.slice(0, MOST_LANES);
  const more = clip.count - shown.flat().length;
  return el(
    "div",
    { class: "clip-strip", role: "img", "aria-label": clipSentence(clip) },
    el(
      "div",
      { class: "clip-frames" },
      el("img", { src: address("/strip", { scan, item: index }), alt: "", loading: "lazy" }),
      clip.dropped.map((part) =>
        el("div", {
          class: "clip-dropped",
          style: place(part),
          title: t`Left out: ${seconds(part.start)} to ${seconds(part.end)}`,
        }),
      ),
    ),
    shown.map((lane) =>
      el(
        "div",
        { class: "clip-lane" },
        lane.map((window) =>
          el("div", {
            class: "clip-window",
            style: place(window),
            title: t`${seconds(window.start)} to ${seconds(window.end)}: ${formatCount(window.frames, "frame")}`,
          }),
        ),
      ),
    ),
    more > 0 ? el("p", { class: "note" }, t`and ${formatCount(more, "more window")}`) : null,
  );
};
