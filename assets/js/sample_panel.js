// Shows a run's samples, one row for each prompt.

import { openDialog } from "./dialogs.js";
import { el, fill, setText } from "./dom.js";
import { address } from "./http.js";
import { fillEmpty } from "./run_states.js";
/** @import { RunStatus, Sample } from "./server" */

// The address of a picture in a run's folder.
export const samplePicture = (run, file) => address("/image", { run, file });

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
  fill(
    ui.samples,
    [...prompts.values()].map((ofPrompt) =>
      el(
        "div",
        { class: "sample-row" },
        el("p", { class: "prompt" }, ofPrompt[ofPrompt.length - 1].prompt || "(no prompt)"),
        el(
          "div",
          { class: "strip" },
          ofPrompt.map((s) =>
            el(
              "figure",
              {},
              el(
                "button",
                { class: "picture", onclick: () => lightbox(ofPrompt, s, status.name) },
                el("img", {
                  src: samplePicture(status.name, s.file),
                  alt: `${s.prompt || "sample"}, step ${s.step}`,
                  loading: "lazy",
                }),
              ),
              el("figcaption", {}, s.step === 0 ? "before training" : `step ${s.step.toLocaleString("en")}`),
            ),
          ),
        ),
      ),
    ),
  );
  ui.samples.querySelectorAll(".strip").forEach((strip) => (strip.scrollLeft = strip.scrollWidth));
};
/**
 * @param {Sample[]} pictures
 * @param {Sample} shown
 * @param {string} run
 */
const lightbox = (pictures, shown, run) => {
  let at = pictures.indexOf(shown);
  const image = el("img", { alt: "" });
  const caption = el("p", { class: "note" });
  const show = (index) => {
    at = (index + pictures.length) % pictures.length;
    image.src = samplePicture(run, pictures[at].file);
    image.alt = pictures[at].prompt || "sample";
    setText(
      caption,
      `${pictures[at].step === 0 ? "Before training" : `Step ${pictures[at].step}`} · ${pictures[at].prompt || ""}`,
    );
  };
  const box = openDialog(
    "Sample",
    el("div", { class: "lightbox" }, image),
    caption,
    el(
      "div",
      { class: "buttons" },
      el("button", { onclick: () => show(at - 1) }, "← Previous"),
      el("button", { onclick: () => show(at + 1) }, "Next →"),
    ),
  );
  box.classList.add("wide-dialog");
  box.addEventListener("keydown", (e) =>
    e.key === "ArrowLeft" ? show(at - 1) : e.key === "ArrowRight" ? show(at + 1) : null,
  );
  show(at);
};
