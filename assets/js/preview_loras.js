// Asks for more LoRA files, each with a strength of its own; a row more is there as soon as the last one is used.

import { el } from "./dom.js";
import { t } from "./locale.js";
import { pathInput } from "./path_input.js";

const MOST = 8;

export class PreviewLoras {
  constructor() {
    /** @type {{ path: HTMLInputElement, strength: HTMLInputElement }[]} */
    this.rows = [];
    this.node = el("div", { class: "preview-loras", oninput: () => this.grow() });
    this.add();
  }

  add() {
    const at = this.rows.length + 1;
    const path = el("input", { type: "text", id: `preview-lora-${at}`, spellcheck: "false", placeholder: "none" });
    const strength = el("input", { type: "number", id: `preview-lora-strength-${at}`, value: "1", step: "0.05" });
    strength.setAttribute("aria-label", t`Strength of LoRA file ${at}`);
    this.rows.push({ path, strength });
    const label = el("label", {}, at === 1 ? "More LoRA files, with their strengths" : t`LoRA file ${at}`, path);
    this.node.append(el("div", { class: "preview-lora" }, label, strength));
    pathInput(path);
  }

  grow() {
    if (this.rows[this.rows.length - 1].path.value.trim() && this.rows.length < MOST) this.add();
  }

  get asked() {
    const used = this.rows.filter(({ path }) => path.value.trim());
    return used.map(({ path, strength }) => ({ path: path.value, strength: Number(strength.value) }));
  }
}
