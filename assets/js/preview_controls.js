// Asks for what a model takes besides a prompt: control images, by path or from this computer, and a clip's length.

import { el } from "./dom.js";
import { address, readAnswer } from "./http.js";
import { t } from "./locale.js";
import { pathInput } from "./path_input.js";
import { showError } from "./toasts.js";

const LABELS = ["Control image", "Second control image", "Third control image"];
const COLUMNS = ["control_image", "control_image_2", "control_image_3"];

export class PreviewControls {
  /** @param {() => void} changed - called after a file was kept by the server */
  constructor(changed) {
    this.changed = changed;
    this.count = 0;
    this.inputs = LABELS.map((_, at) =>
      el("input", { type: "text", id: `preview-control-${at + 1}`, spellcheck: "false", placeholder: "none" }),
    );
    this.rows = LABELS.map((label, at) => this.row(label, this.inputs[at]));
    this.frames = el("input", { type: "number", id: "preview-frames", min: "1", placeholder: "the model's own" });
    this.length = el("label", {}, "Frames (1 is a picture)", this.frames);
    this.node = el("div", { class: "preview-controls" }, this.rows, this.length);
    this.inputs.forEach((input) => pathInput(input));
    this.show({});
  }

  row(label, input) {
    const file = el("input", {
      type: "file",
      accept: "image/png,image/jpeg,image/webp",
      hidden: true,
      "aria-label": t`${label} from this computer`,
      onchange: () => this.upload(file, input),
    });
    const button = el("button", { class: "small", type: "button", onclick: () => file.click() }, "Choose…");
    return el("div", { class: "preview-control" }, el("label", {}, label, input), button, file);
  }

  async upload(file, input) {
    const [image] = file.files || [];
    if (!image) return;
    try {
      const sent = await fetch(address("/preview/control"), {
        method: "POST",
        headers: { "Content-Type": "application/octet-stream" },
        body: image,
      });
      input.value = (await readAnswer(sent)).path;
      this.changed();
    } catch (error) {
      showError(error);
    }
    file.value = "";
  }

  // Shows the fields of a source: how many control images its family takes, and whether it makes clips.
  /** @param {{ controls?: number, clips?: boolean }} source */
  show({ controls = 0, clips = false }) {
    this.count = controls;
    this.rows.forEach((row, at) => (row.hidden = at >= controls));
    this.length.hidden = !clips;
    this.node.hidden = !controls && !clips;
  }

  // Takes over what a run's own prompt starts from.
  /** @param {Record<string, any>} prompt */
  use(prompt) {
    COLUMNS.forEach((name, at) => (this.inputs[at].value = prompt[name] || ""));
    this.frames.value = prompt.frames ? String(prompt.frames) : "";
  }

  get asked() {
    return {
      controls: this.inputs.slice(0, this.count).map((input) => input.value),
      frames: this.length.hidden || !this.frames.value ? null : Number(this.frames.value),
    };
  }
}
