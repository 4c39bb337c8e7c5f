// Compares two rows of a preview's matrix: one picture over the other, with an edge that moves.

import { el, fill } from "./dom.js";
/** @import { PreviewRequest } from "./preview" */

export class PreviewWipe {
  /** @param {(row: number, column: number) => string | undefined} pictureAt - the address of a picture */
  constructor(pictureAt) {
    this.pictureAt = pictureAt;
    const changed = () => this.draw();
    // Until a person chooses rows, they are the first and the newest.
    this.picked = false;
    const picked = () => ((this.picked = true), this.draw());
    this.a = el("select", { id: "preview-a", onchange: picked });
    this.b = el("select", { id: "preview-b", onchange: picked });
    this.column = el("select", { id: "preview-column", onchange: changed });
    this.edge = el("input", { type: "range", id: "preview-edge", min: "0", max: "100", value: "50", oninput: changed });
    this.edge.setAttribute("aria-label", "Edge between A and B");
    this.left = el("img", { alt: "A", id: "preview-left" });
    this.right = el("img", { alt: "B", id: "preview-right" });
    this.line = el("i", {});
    this.node = el(
      "details",
      { class: "preview-compare", id: "preview-compare", hidden: true, ontoggle: changed },
      el("summary", {}, "Compare A and B"),
      el(
        "div",
        { class: "preview-slider" },
        el("label", {}, "A", this.a),
        el("label", {}, "B", this.b),
        el("label", {}, "Prompt", this.column),
        this.edge,
      ),
      el("div", { class: "preview-wipe" }, this.left, this.right, this.line),
    );
  }

  /** @param {PreviewRequest} request @param {boolean} isNew */
  show(request, isNew) {
    if (isNew) this.picked = false;
    const whole = request.rows.map((_, row) => row).filter((row) => this.pictureAt(row, 0));
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
    this.left.src = this.pictureAt(Number(this.a.value), column) || "";
    this.right.src = this.pictureAt(Number(this.b.value), column) || "";
    this.right.style.clipPath = `inset(0 0 0 ${this.edge.value}%)`;
    this.line.style.left = `${this.edge.value}%`;
  }
}
