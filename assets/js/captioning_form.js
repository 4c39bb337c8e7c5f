// Asks for the options of captions by a model, and tells what the model's folder holds before it is loaded.

import { el, setText } from "./dom.js";
import { postJson } from "./http.js";
import { pathInput } from "./path_input.js";
/** @import { CaptionModel, CaptionOptions } from "./captioning" */

const TASKS = [
  ["caption", "Short"],
  ["detailed", "Detailed"],
  ["more_detailed", "More detailed"],
];
const EXISTING = [
  ["leave", "Leave them"],
  ["replace", "Replace the caption"],
  ["append", "Add to the caption"],
];
const PRECISIONS = [
  ["auto", "Automatic"],
  ["bf16", "bf16"],
  ["fp16", "fp16"],
  ["fp32", "fp32"],
  ["int8", "8-bit (bitsandbytes)"],
  ["nf4", "4-bit NF4 (bitsandbytes)"],
];
const PROMPTS = {
  start: ["Captions begin with", "a photo of"],
  instruction: ["Instruction in place of the usual one", "Describe this image in one sentence."],
};

const select = (name, choices) =>
  el(
    "select",
    { id: `captioning-${name}` },
    choices.map(([value, label]) => el("option", { value }, label)),
  );
const text = (name, placeholder = "") =>
  el("input", { type: "text", id: `captioning-${name}`, placeholder, spellcheck: "false" });
const number = (name, placeholder, limits) =>
  el("input", { type: "number", id: `captioning-${name}`, placeholder, ...limits });
const labelled = (label, input, note) =>
  el("label", {}, label, input, note ? el("span", { class: "note" }, note) : null);

export class CaptioningForm {
  constructor() {
    this.fields = {
      model: text("model", "/models/Florence-2-large"),
      task: select("task", TASKS),
      prompt: el("textarea", { id: "captioning-prompt", rows: 2 }),
      existing: select("existing", EXISTING),
      prefix: text("prefix"),
      suffix: text("suffix"),
      trigger: text("trigger"),
      max_tokens: number("max-tokens", "usual for the model", { min: 1, max: 4096 }),
      beams: number("beams", "usual for the model", { min: 1, max: 16 }),
      batch: number("batch", "4 on a GPU, 1 on the CPU", { min: 1, max: 256 }),
      megapixels: number("megapixels", "1", { min: 0.05, max: 20, step: "any" }),
      precision: select("precision", PRECISIONS),
      device: text("device", "auto"),
    };
    const fields = this.fields;
    fields.task.value = "detailed";
    pathInput(fields.model, "folder");
    for (const input of [fields.model, fields.precision, fields.device])
      input.addEventListener("change", () => this.look());
    this.about = el("p", { class: "note", id: "captioning-about", "aria-live": "polite" });
    this.task = labelled("How much is said", fields.task);
    this.promptTitle = el("span", {}, PROMPTS.instruction[0]);
    this.prompt = el("label", { class: "captioning-wide" }, this.promptTitle, fields.prompt);
    this.node = el(
      "div",
      { class: "captioning-form" },
      el("div", { class: "captioning-wide" }, labelled("Model folder", fields.model), this.about),
      this.task,
      labelled("Images that have a caption", fields.existing),
      labelled("Trigger word", fields.trigger, "In front of captions that lack it"),
      labelled("Before each caption", fields.prefix),
      labelled("After each caption", fields.suffix),
      this.prompt,
      el(
        "details",
        { class: "captioning-wide" },
        el("summary", {}, "More"),
        el(
          "div",
          { class: "captioning-form" },
          labelled("Weights", fields.precision, "Automatic: bf16 on a GPU, else fp32"),
          labelled("Device", fields.device, "auto, cpu, cuda or cuda:1"),
          labelled("Images at once", fields.batch),
          labelled("Longest caption (tokens)", fields.max_tokens),
          labelled("Beams", fields.beams, "More are slower, and often better"),
          labelled("Largest image (megapixels)", fields.megapixels, "For models that take any size"),
        ),
      ),
    );
    this.requests = 0;
    this.showPrompt(null);
  }

  /** @returns {Record<string, unknown>} */
  get options() {
    const values = Object.fromEntries(Object.entries(this.fields).map(([name, input]) => [name, input.value.trim()]));
    // spaces around these are meant
    for (const name of ["prefix", "suffix"]) values[name] = this.fields[name].value;
    const whole = (name) => (values[name] === "" ? null : Number(values[name]));
    return {
      ...values,
      device: values.device || "auto",
      prompt: this.prompt.hidden ? "" : values.prompt,
      max_tokens: whole("max_tokens"),
      beams: whole("beams"),
      batch: whole("batch"),
      megapixels: values.megapixels === "" ? 1 : Number(values.megapixels),
    };
  }

  // Shows the options of an earlier request.
  /** @param {CaptionOptions} options */
  use(options) {
    for (const [name, value] of Object.entries(options))
      if (name in this.fields) this.fields[name].value = value === null ? "" : String(value);
    this.look();
  }

  // Reads the model's folder, which takes no time: nothing is loaded.
  async look() {
    const request = ++this.requests;
    this.about.classList.remove("bad");
    if (!this.fields.model.value.trim()) return void this.showPrompt(null);
    let answer;
    try {
      answer = await postJson("/captioning/model", this.options);
    } catch (error) {
      answer = { problem: error.message };
    }
    if (request !== this.requests) return;
    this.showPrompt("title" in answer ? answer : null);
    if ("title" in answer) return;
    this.about.classList.add("bad");
    setText(this.about, answer.problem);
  }

  // Shows what the model takes besides an image; without a model, everything that some model takes.
  /** @param {CaptionModel | null} model */
  showPrompt(model) {
    setText(
      this.about,
      model
        ? [model.sentence, model.warning].filter(Boolean).join(" ")
        : "A folder that transformers saves: BLIP, BLIP-2, Florence-2, Qwen2-VL, Qwen2.5-VL or Qwen3-VL. " +
            "Nothing is downloaded, and no code of the folder is run.",
    );
    this.about.classList.toggle("bad", Boolean(model?.warning));
    this.task.hidden = model?.prompt === "start";
    this.prompt.hidden = model?.prompt === "task";
    const [title, example] = PROMPTS[model?.prompt === "start" ? "start" : "instruction"];
    setText(this.promptTitle, title);
    this.fields.prompt.placeholder = example;
    this.fields.max_tokens.placeholder = model ? String(model.tokens) : "usual for the model";
    this.fields.beams.placeholder = model ? String(model.beams) : "usual for the model";
  }
}
