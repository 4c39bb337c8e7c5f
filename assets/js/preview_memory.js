// Says what a preview needs of memory before it is drawn, and lets its memory settings differ from the run's.

import { el, fill, setText } from "./dom.js";
import { postJson } from "./http.js";
import { t } from "./locale.js";
import { currentTab } from "./tabs.js";
/** @import { PreviewPlan } from "./preview" */

const AS_SET = "";
const FORMATS = [
  [AS_SET, "as the settings say"],
  ["none", "as it is in its files"],
  ["int8", "int8"],
  ["fp8", "fp8"],
  ["nf4", "NF4"],
];
const QUIET_MS = 500;

export class PreviewMemory {
  /** @param {() => object} asked - what the form asks for */
  constructor(asked) {
    this.asked = asked;
    // Settings of [memory] by name that differ for the preview.
    /** @type {Record<string, string>} */
    this.changes = {};
    this.timer = 0;
    this.base = el(
      "select",
      { id: "preview-quantization", onchange: () => this.set("base_quantization", this.base.value) },
      FORMATS.map(([value, label]) => el("option", { value }, label)),
    );
    this.swap = el("input", {
      type: "number",
      id: "preview-swap",
      min: "0",
      step: "1",
      placeholder: "as the settings say",
      onchange: () => this.set("blocks_to_swap", this.swap.value),
    });
    this.words = el("p", { id: "preview-memory", role: "status", class: "note" });
    this.advice = el("div", { id: "preview-advice" });
    this.node = el(
      "div",
      { class: "preview-memory" },
      el("label", {}, "Keep the base model in", this.base),
      el("label", {}, "Blocks to swap", this.swap),
      this.words,
      this.advice,
    );
  }

  set(name, value) {
    if (value === AS_SET) delete this.changes[name];
    else this.changes[name] = value;
    this.later();
  }

  // Asks once the form has been still for a moment.
  later() {
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.ask(), QUIET_MS);
  }

  async ask() {
    if (currentTab() !== "Preview") return;
    const body = JSON.stringify(this.asked());
    try {
      /** @type {PreviewPlan} */
      const plan = await postJson("/preview/plan", JSON.parse(body));
      // an answer to what the form no longer says
      if (body === JSON.stringify(this.asked())) this.show(plan);
    } catch (error) {
      setText(this.words, String(error));
    }
  }

  /** @param {PreviewPlan} plan */
  show(plan) {
    this.words.dataset.verdict = plan.verdict || "unknown";
    this.words.classList.toggle("bad", plan.verdict === "does_not_fit");
    setText(this.words, plan.headline || plan.reason || "");
    const shown = new Set(["base_quantization", "blocks_to_swap"]);
    const others = Object.entries(this.changes).filter(([name]) => !shown.has(name));
    const { nearest } = plan;
    fill(
      this.advice,
      others.map(([name, value]) =>
        el(
          "p",
          { class: "note" },
          `${name}: ${value} `,
          el(
            "button",
            { class: "small", "aria-label": t`Undo ${name}`, onclick: () => this.set(name, AS_SET) },
            "Undo",
          ),
        ),
      ),
      nearest ? el("p", { class: "note" }, nearest.words) : null,
      nearest ? el("button", { id: "preview-fit", onclick: () => this.use(nearest.values) }, "Use this") : null,
    );
  }

  // Settings with their section, as an estimate names them.
  use(values) {
    for (const [path, value] of Object.entries(values)) this.changes[path.split(".").pop()] = String(value);
    this.base.value = this.changes.base_quantization ?? AS_SET;
    this.swap.value = this.changes.blocks_to_swap ?? AS_SET;
    this.later();
  }
}
