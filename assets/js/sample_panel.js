// Shows a run's samples, one row for each prompt: pictures, and clips that play.

import { isClip, player as clipPlayer, whenSeen } from "./clips.js";
import { openDialog } from "./dialogs.js";
import { el, fill, setText } from "./dom.js";
import { address } from "./http.js";
import { language, t } from "./locale.js";
import { fillEmpty } from "./run_states.js";
/** @import { RunStatus, Sample } from "./server" */

// The address of a file among a run's samples.
export const samplePicture = (run, file) => address("/image", { run, file });

const nameOf = (sample) => t`${sample.prompt || "sample"}, step ${sample.step}`;
const stepOf = (sample) => (sample.step === 0 ? "before training" : t`step ${sample.step.toLocaleString(language)}`);

/**
 * @param {string} run
 * @param {Sample} sample
 * @returns {HTMLVideoElement}
 */
const player = (run, sample) =>
  clipPlayer(
    samplePicture(run, sample.file),
    sample.picture ? samplePicture(run, sample.picture) : null,
    nameOf(sample),
  );

/**
 * @typedef {object} SampleRow
 * @property {HTMLElement} row
 * @property {HTMLElement} strip
 * @property {Sample[]} samples
 * @property {Map<string, HTMLElement>} figures  by file
 */
/** @type {WeakMap<Element, { run: string, rows: Map<number, SampleRow> }>} */
const drawn = new WeakMap();

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {Sample[]} list
 * @param {RunStatus} status
 */
export const drawSamples = (ui, list = [], status) => {
  if (!list.length)
    return fillEmpty(
      ui.samples,
      status,
      "No samples yet. Prompts are set on the Sampling tab. Sample now makes samples at once.",
      "This run made no samples.",
    );
  const prompts = new Map();
  for (const s of list) {
    if (!prompts.has(s.prompt_index)) prompts.set(s.prompt_index, []);
    prompts.get(s.prompt_index).push(s);
  }
  let known = drawn.get(ui.samples);
  const rowsHere = known ? [...known.rows.values()] : [];
  if (!known || known.run !== status.name || !rowsHere.every(({ row }) => row.parentNode === ui.samples)) {
    known = { run: status.name, rows: new Map() };
    drawn.set(ui.samples, known);
    fill(ui.samples);
  }
  for (const index of [...known.rows.keys()].filter((each) => !prompts.has(each))) {
    known.rows.get(index).row.remove();
    known.rows.delete(index);
  }
  for (const [index, samples] of prompts) {
    if (!known.rows.has(index)) known.rows.set(index, newRow());
    drawRow(known.rows.get(index), samples, status.name);
  }
  const order = [...prompts.keys()].map((index) => known.rows.get(index).row);
  if (order.some((row, place) => ui.samples.children[place] !== row)) fill(ui.samples, order);
};
/**
 * @returns {SampleRow}
 */
const newRow = () => {
  const strip = el("div", { class: "strip" });
  return {
    row: el("div", { class: "sample-row" }, el("p", { class: "prompt", translate: "no" }), strip),
    strip,
    samples: [],
    figures: new Map(),
  };
};
/**
 * Adds what is new and leaves the rest alone: a clip that plays continues.
 *
 * @param {SampleRow} known
 * @param {Sample[]} samples
 * @param {string} run
 */
const drawRow = (known, samples, run) => {
  setText(known.row.querySelector(".prompt"), samples[samples.length - 1].prompt || t("(no prompt)"));
  known.samples = samples;
  const files = new Set(samples.map((s) => s.file));
  for (const [file, node] of known.figures) {
    if (files.has(file)) continue;
    node.remove();
    known.figures.delete(file);
  }
  let added = false;
  samples.forEach((sample, place) => {
    if (known.figures.has(sample.file)) return;
    const made = figure(known, sample, run);
    known.figures.set(sample.file, made);
    known.strip.insertBefore(made, known.strip.children[place] || null);
    added = true;
  });
  if (added) requestAnimationFrame(() => (known.strip.scrollLeft = known.strip.scrollWidth));
};
/**
 * @param {SampleRow} known
 * @param {Sample} sample
 * @param {string} run
 */
const figure = (known, sample, run) => {
  const enlarge = () => lightbox(known.samples, sample, run);
  if (isClip(sample.file)) {
    const video = player(run, sample);
    whenSeen(video);
    return el(
      "figure",
      { class: "clip" },
      video,
      el(
        "figcaption",
        {},
        el("span", {}, stepOf(sample)),
        el("button", { class: "link", onclick: enlarge, "aria-label": t`Enlarge ${nameOf(sample)}` }, "Enlarge"),
      ),
    );
  }
  return el(
    "figure",
    {},
    el(
      "button",
      { class: "picture", onclick: enlarge },
      el("img", { src: samplePicture(run, sample.file), alt: nameOf(sample), loading: "lazy" }),
    ),
    el("figcaption", {}, stepOf(sample)),
  );
};
/**
 * @param {Sample[]} samples
 * @param {Sample} shown
 * @param {string} run
 */
const lightbox = (samples, shown, run) => {
  let at = samples.findIndex((sample) => sample.file === shown.file);
  const media = el("div", { class: "lightbox" });
  const caption = el("p", { class: "note" });
  const show = (index) => {
    at = (index + samples.length) % samples.length;
    const sample = samples[at];
    fill(media, enlarged(run, sample));
    setText(
      caption,
      `${sample.step === 0 ? "Before training" : t`Step ${sample.step}`} · ${sample.prompt || ""}`,
    );
  };
  const box = openDialog(
    "Sample",
    media,
    caption,
    el(
      "div",
      { class: "buttons" },
      el("button", { onclick: () => show(at - 1) }, "← Previous"),
      el("button", { onclick: () => show(at + 1) }, "Next →"),
    ),
  );
  box.classList.add("wide-dialog");
  box.addEventListener("keydown", (e) => {
    // In a clip these keys seek.
    if (e.target instanceof HTMLVideoElement) return;
    if (e.key === "ArrowLeft") show(at - 1);
    else if (e.key === "ArrowRight") show(at + 1);
  });
  show(at);
};
/**
 * A picture as it is; a clip that plays at once, and its frames beside it.
 *
 * @param {string} run
 * @param {Sample} sample
 */
const enlarged = (run, sample) => {
  const still =
    sample.picture && el("img", { src: samplePicture(run, sample.picture), alt: sample.prompt || "sample" });
  if (!isClip(sample.file)) return still;
  const video = player(run, sample);
  video.autoplay = true;
  if (!sample.picture) return video;
  still.alt = t`Frames of ${nameOf(sample)}`;
  return el("div", { class: "clip-and-frames" }, video, still);
};
