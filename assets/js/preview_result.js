// Shows a preview's pictures: those of one row of the matrix large, with a slider over the rows, and all of them small.

import { isClip, player, stillOf, whenSeen } from "./clips.js";
import { el, fill, setText } from "./dom.js";
import { formatFixed } from "./format.js";
import { address } from "./http.js";
import { t } from "./locale.js";
import { PreviewWipe } from "./preview_wipe.js";
/** @import { PreviewPrompt, PreviewRequest } from "./preview" */

const pictureOf = (id, file) => address("/preview/picture", { request: id, file });

/** @param {PreviewRequest["rows"][number]} row */
const rowTitle = (row) =>
  row.loss === null || row.loss === undefined ? row.name : t`${row.name} · loss ${formatFixed(row.loss, 4)}`;

/** @param {PreviewPrompt} p */
const settingsOf = (p) =>
  [
    t`seed ${p.seed}`,
    `${p.width} × ${p.height}`,
    p.frames ? t`${p.frames} frames` : null,
    t`${p.steps} steps`,
    t`guidance ${p.guidance_scale}`,
    p.true_cfg_scale > 1 ? t`CFG ${p.true_cfg_scale}` : null,
    p.true_cfg_scale > 1 && p.negative_prompt ? t`without: ${p.negative_prompt}` : null,
  ]
    .filter(Boolean)
    .join(" · ");

// Draws into `node`; what did not change stays, so that a slider in the hand is not taken away.
export class PreviewResult {
  /** @param {HTMLElement} node */
  constructor(node) {
    this.slider = el("input", {
      type: "range",
      id: "preview-slider",
      min: "0",
      step: "1",
      value: "0",
      "aria-label": "Checkpoint",
      oninput: () => this.choose(Number(this.slider.value)),
    });
    this.title = el("strong", { id: "preview-row" });
    this.bar = el("div", { class: "preview-slider", hidden: true }, this.slider, this.title);
    this.large = el("div", { class: "preview-pictures", id: "preview-pictures" });
    this.matrix = el("div", { class: "scroll preview-matrix", id: "preview-matrix" });
    this.row = 0;
    this.shown = "";
    /** @type {PreviewRequest | null} */
    this.request = null;
    this.wipe = new PreviewWipe(
      (row, column) => this.fileAt(row, column),
      (file) => pictureOf(this.request.id, file),
    );
    this.save = el("a", { id: "preview-save", hidden: true, download: "" }, "Save pictures, grid and page");
    fill(node, this.bar, this.large, this.wipe.node, this.matrix, this.save);
  }

  /** @param {PreviewRequest} request */
  show(request) {
    const isNew = this.request?.id !== request.id;
    const key = JSON.stringify([request.id, request.state, request.pictures, request.rows]);
    if (key === this.shown) return;
    this.shown = key;
    this.request = request;
    const last = request.rows.length - 1;
    this.bar.hidden = last < 1;
    this.slider.max = String(last);
    if (isNew) this.row = 0;
    this.drawMatrix();
    this.choose(Math.max(0, Math.min(this.row, last)));
    this.wipe.show(request, isNew);
    this.save.hidden = last < 1 || request.state === "waiting" || request.state === "drawing";
    this.save.href = address("/preview/matrix", { request: request.id });
  }

  /** @param {number} row */
  choose(row) {
    const request = this.request;
    if (!request?.rows[row]) return;
    this.row = row;
    this.slider.value = String(row);
    setText(this.title, rowTitle(request.rows[row]));
    this.slider.setAttribute("aria-valuetext", rowTitle(request.rows[row]));
    fill(
      this.large,
      request.prompts.map((prompt, column) => this.figure(prompt, row, column)),
    );
    this.matrix.querySelectorAll("tr[data-row]").forEach((line) => {
      line.classList.toggle("chosen", line.getAttribute("data-row") === String(row));
    });
  }

  figure(prompt, row, column) {
    const file = this.fileAt(row, column);
    if (!file) return null;
    return el(
      "figure",
      { "data-cell": `${row}-${column}` },
      this.shownLarge(prompt, file),
      el("figcaption", {}, `${prompt.prompt} · ${settingsOf(prompt)}`),
    );
  }

  shownLarge(prompt, file) {
    const place = (name) => pictureOf(this.request.id, name);
    if (!isClip(file)) return el("img", { src: place(file), alt: prompt.prompt, width: prompt.width });
    const video = player(place(file), place(stillOf(file)), prompt.prompt);
    video.width = prompt.width;
    // before it is loaded too, when the poster has the shape of many frames
    video.style.aspectRatio = `${prompt.width} / ${prompt.height}`;
    whenSeen(video);
    return video;
  }

  fileAt(row, column) {
    return this.request.pictures.find((each) => each.row === row && each.column === column)?.file;
  }

  drawMatrix() {
    const request = this.request;
    if (request.rows.length < 2) return fill(this.matrix);
    const cell = (row, column) => {
      const file = this.fileAt(row, column);
      if (!file) return el("td", {}, "…");
      const picture = el("img", { src: pictureOf(request.id, stillOf(file)), alt: "", loading: "lazy" });
      const label = `${request.rows[row].name}: ${request.prompts[column].prompt}`;
      return el("td", {}, el("button", { "aria-label": label, onclick: () => this.choose(row) }, picture));
    };
    const loss = (row) => (row.loss === null || row.loss === undefined ? "" : row.loss.toFixed(5));
    const titles = [el("th", {}), el("th", {}, "Validation loss")];
    const head = el("tr", {}, titles, request.prompts.map((prompt) => el("th", { translate: "no" }, prompt.prompt)));
    const lines = request.rows.map((row, number) =>
      el(
        "tr",
        { "data-row": number },
        el("th", {}, row.name),
        el("td", {}, loss(row)),
        request.prompts.map((_, c) => cell(number, c)),
      ),
    );
    return fill(this.matrix, el("table", { class: "facts" }, el("thead", {}, head), el("tbody", {}, lines)));
  }
}
