// Compares two rows of pictures or clips, as of a preview's matrix: one over the other, with an edge that moves.

import { isClip, keepTogether, player, stillOf } from "./clips.js";
import { el, fill, setText } from "./dom.js";
import { t } from "./locale.js";

/** @typedef {{rows: {name: string}[], prompts: {prompt: string}[]}} Rows */

export class PreviewWipe {
  /**
   * @param {(row: number, column: number) => string | undefined} fileAt - the name of a picture or clip
   * @param {(file: string) => string} addressOf
   * @param {string} prefix - of the ids of its elements
   */
  constructor(fileAt, addressOf, prefix = "preview") {
    this.prefix = prefix;
    this.fileAt = fileAt;
    this.addressOf = addressOf;
    const changed = () => this.draw();
    // Until a person chooses rows, they are the first and the newest.
    this.picked = false;
    const picked = () => ((this.picked = true), this.draw());
    this.a = el("select", { id: `${prefix}-a`, onchange: picked });
    this.b = el("select", { id: `${prefix}-b`, onchange: picked });
    this.column = el("select", { id: `${prefix}-column`, onchange: changed });
    const range = { type: "range", min: "0", max: "100", value: "50" };
    this.edge = el("input", { ...range, id: `${prefix}-edge`, oninput: changed });
    this.edge.setAttribute("aria-label", t("Edge between A and B"));
    this.line = el("i", {});
    this.shown = "";
    this.box = el("div", { class: "preview-wipe" });
    this.stills = el("input", { type: "checkbox", id: `${prefix}-stills`, onchange: changed });
    this.choice = el("label", { class: "check", hidden: true }, this.stills, "Frames instead of clips");
    const toggle = () => this.toggle();
    this.play = el("button", { class: "small", id: `${prefix}-play`, hidden: true, onclick: toggle }, "Play");
    this.node = el(
      "details",
      { class: "preview-compare", id: `${prefix}-compare`, hidden: true, ontoggle: changed },
      el("summary", {}, "Compare A and B"),
      el(
        "div",
        { class: "preview-slider" },
        el("label", {}, "A", this.a),
        el("label", {}, "B", this.b),
        el("label", {}, "Prompt", this.column),
        this.edge,
        this.play,
        this.choice,
      ),
      this.box,
    );
  }

  /** @param {Rows} request @param {boolean} isNew */
  show(request, isNew) {
    if (isNew) this.picked = false;
    const drawn = (row) => request.prompts.some((_, at) => this.fileAt(row, at));
    const whole = request.rows.map((_, row) => row).filter(drawn);
    this.node.hidden = whole.length < 2;
    if (this.node.hidden) return;
    const [a, b] = this.picked ? [this.a.value, this.b.value] : [whole[0], whole[whole.length - 1]];
    const options = () => whole.map((row) => el("option", { value: String(row) }, request.rows[row].name));
    fill(this.a, options());
    fill(this.b, options());
    this.a.value = String(a);
    this.b.value = String(b);
    const column = isNew ? "0" : this.column.value || "0";
    fill(
      this.column,
      request.prompts.map((prompt, at) => el("option", { value: String(at) }, prompt.prompt.slice(0, 80))),
    );
    this.column.value = column;
    this.draw();
  }

  draw() {
    if (!this.node.open) return;
    const column = Number(this.column.value);
    const [a, b] = [this.a, this.b].map((row) => this.fileAt(Number(row.value), column) || "");
    this.choice.hidden = !isClip(a);
    const plays = isClip(a) && isClip(b) && !this.stills.checked;
    this.play.hidden = !plays;
    const key = [plays, ...[a, b].map(this.addressOf)].join();
    if (key !== this.shown) {
      this.shown = key;
      const [left, right] = [a, b].map((file, at) => this.half(file, plays, at ? "B" : "A"));
      left.id = `${this.prefix}-left`;
      right.id = `${this.prefix}-right`;
      if (left instanceof HTMLVideoElement && right instanceof HTMLVideoElement) keepTogether(left, right);
      setText(this.play, "Play");
      fill(this.box, left, right, this.line);
    }
    const [, right] = /** @type {HTMLElement[]} */ ([...this.box.children]);
    right.style.clipPath = `inset(0 0 0 ${this.edge.value}%)`;
    this.line.style.left = `${this.edge.value}%`;
  }

  /** @param {string} file @param {boolean} plays @param {string} name */
  half(file, plays, name) {
    const still = this.addressOf(stillOf(file));
    if (!plays) return el("img", { alt: name, src: file ? still : "" });
    const video = player(this.addressOf(file), null, name);
    video.controls = false;
    video.poster = still;
    return video;
  }

  toggle() {
    const [left] = this.box.children;
    if (!(left instanceof HTMLVideoElement)) return;
    if (left.paused) left.play();
    else left.pause();
    setText(this.play, left.paused ? "Play" : "Pause");
  }
}
