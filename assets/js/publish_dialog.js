// Asks what a person states of a LoRA, and makes a folder to publish from it.

import { pathLine } from "./clipboard.js";
import { openDialog } from "./dialogs.js";
import { el, fill } from "./dom.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
/** @import { PublishState } from "./server" */

const FIELDS = [
  ["license", "License", "apache-2.0"],
  ["base_model", "Base model, as others name it", "black-forest-labs/FLUX.1-dev"],
  ["trigger", "Trigger words", ""],
  ["title", "Title", ""],
];

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** @returns {Promise<PublishState>} */
const finished = async () => {
  for (;;) {
    const state = await getJson("/publish");
    if (state.state !== "running") return state;
    await pause(400);
  }
};

/** @type {(state: PublishState) => (Node | null)[]} */
const outcome = (state) =>
  state.folder
    ? [
        pathLine(state.folder),
        el("p", { class: "note" }, t`Files: ${state.files.join(", ")}`),
        el("p", { class: "note" }, t`Load check: ${state.checked}`),
        state.notes.length
          ? el(
              "ul",
              { class: "plain-list" },
              state.notes.map((note) => el("li", {}, note)),
            )
          : null,
      ]
    : [el("p", { class: "warning" }, state.error || "The folder could not be made.")];

/**
 * @param {string} run
 * @param {string} file name of one of its LoRA files
 */
export const openPublish = (run, file) => {
  const inputs = Object.fromEntries(
    FIELDS.map(([name, , example]) => [
      name,
      el("input", { type: "text", id: `publish-${name}`, maxlength: 300, placeholder: example }),
    ]),
  );
  const result = el("div", { id: "publish-result", "aria-live": "polite" });
  const start = el("button", { class: "primary", type: "submit", id: "publish-start" }, "Make the folder");
  const make = async (event) => {
    event.preventDefault();
    start.disabled = true;
    fill(result, el("p", { class: "note" }, "Making the folder and checking that the file loads…"));
    try {
      const stated = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value]));
      await postJson("/publish", { run, file, ...stated });
      fill(result, outcome(await finished()));
    } catch (error) {
      fill(result, el("p", { class: "warning" }, error.message));
    }
    start.disabled = false;
  };
  const box = openDialog(
    t`Publish ${file}`,
    el(
      "p",
      { class: "note" },
      "Makes a folder with the LoRA file, a model card, a sheet of samples and a preview picture. Paths of this " +
        "machine are taken out of all texts. Nothing is uploaded. What is left empty comes from the run's settings.",
    ),
    el(
      "form",
      { class: "publish-form", onsubmit: make },
      FIELDS.map(([name, label]) => el("label", { for: `publish-${name}` }, label, inputs[name])),
      el("div", { class: "buttons" }, start),
    ),
    result,
  );
  box.classList.add("wide-dialog");
  inputs.license.focus();
};
