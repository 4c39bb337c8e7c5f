// Shows new captions beside the old ones: each can be edited or left out, then all are written, which can be undone.

import { followWriting, writingBar } from "./caption_writing.js";
import { el, fill, setText } from "./dom.js";
import { formatCount } from "./format.js";
import { address, getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { emit } from "./state.js";
import { showError } from "./toasts.js";
/** @import { CaptionDifference, CaptionRow } from "./captioning" */
/** @import { CaptionWork } from "./scan" */

// Captions on a page, as the server has it.
const FULL = 24;

export class CaptioningDifference {
  constructor() {
    this.page = 0;
    this.requests = 0;
    // Edits are kept by the server one after the other; what is written waits for the last of them.
    this.saving = Promise.resolve();
    this.skipped = false;
    this.rows = el("ul", {
      class: "captioning-rows",
      id: "captioning-rows",
      onfocusout: () => setTimeout(() => this.skipped && this.load()),
    });
    this.count = el("p", { class: "note", "aria-live": "polite", id: "captioning-count" });
    this.problems = el("div");
    this.write = el("button", { class: "primary", id: "captioning-write", onclick: () => this.writeChosen() });
    this.head = el(
      "div",
      { class: "captioning-head" },
      this.write,
      el("button", { class: "small", onclick: () => this.choose(false) }, "Choose all"),
      el("button", { class: "small", onclick: () => this.choose(true) }, "Choose none"),
      this.count,
    );
    this.pager = el("div", { class: "pager" });
    const progress = writingBar("captioning-writing", "Stop");
    this.node = el("div", { hidden: true }, this.head, progress, this.problems, this.rows, this.pager);
  }

  // Whether there is a page of captions to look at; while more come, it needs no haste.
  get isFull() {
    return this.rows.childElementCount >= FULL;
  }

  // Whether a person is typing in one of the captions, which are not drawn again meanwhile.
  get isTyping() {
    return document.activeElement instanceof HTMLTextAreaElement && this.rows.contains(document.activeElement);
  }

  async load() {
    const request = ++this.requests;
    await this.saving;
    let answer;
    try {
      answer = await getJson("/captioning/difference", { page: this.page });
    } catch (error) {
      return showError(error);
    }
    // what is skipped is drawn once the caption is left
    this.skipped = this.isTyping;
    if (request === this.requests && !this.skipped) this.draw(answer);
    return undefined;
  }

  /** @param {CaptionDifference} answer */
  draw(answer) {
    this.page = answer.page;
    this.node.hidden = !answer.count && !answer.problems.length;
    this.head.hidden = !answer.count;
    this.showChosen(answer.chosen, answer.count);
    fill(
      this.problems,
      answer.problems.map((text) => el("p", { class: "warning" }, text)),
    );
    fill(
      this.rows,
      answer.rows.map((row) => this.row(answer, row)),
    );
    const turn = (label, by, end) =>
      el("button", { class: "small", disabled: end, onclick: () => ((this.page += by), this.load()) }, label);
    fill(
      this.pager,
      answer.pages > 1
        ? [
            turn("← Previous", -1, !this.page),
            el("span", { class: "note" }, t`Page ${this.page + 1} of ${answer.pages}`),
            turn("Next →", 1, this.page + 1 >= answer.pages),
          ]
        : null,
    );
  }

  showChosen(number, count) {
    this.chosen = number;
    setText(this.write, t`Write ${formatCount(number, "caption")}`);
    this.write.disabled = !number;
    setText(this.count, t`${formatCount(count, "caption")} would change. Nothing is written before you press Write.`);
  }

  /**
   * @param {CaptionDifference} answer
   * @param {CaptionRow} row
   */
  row(answer, row) {
    const box = el("input", {
      type: "checkbox",
      checked: !row.left,
      "aria-label": t`Write the caption of ${row.name}`,
      onchange: () => {
        item.classList.toggle("left", !box.checked);
        this.showChosen(this.chosen + (box.checked ? 1 : -1), answer.count);
        this.keep({ number: row.number, left: !box.checked });
      },
    });
    const words = el("textarea", {
      rows: 3,
      spellcheck: "true",
      value: row.new,
      "aria-label": t`New caption of ${row.name}`,
      onchange: () => this.keep({ number: row.number, text: words.value }),
      onkeydown: (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        // as in the box of a single caption: to the next one, and not to the start of a training
        event.preventDefault();
        event.stopPropagation();
        item.nextElementSibling?.querySelector("textarea")?.focus();
      },
    });
    const item = el(
      "li",
      { class: row.left ? "left" : "" },
      row.item === null
        ? el("span", { class: "captioning-thumb" })
        : el("img", {
            class: "captioning-thumb",
            src: address("/thumb", { scan: answer.scan, item: row.item }),
            alt: "",
            loading: "lazy",
          }),
      el(
        "div",
        { class: "captioning-words" },
        el("label", { class: "captioning-name check" }, box, el("span", {}, row.name)),
        el("p", { class: row.old ? "captioning-old" : "captioning-old note" }, row.old || "no caption"),
        words,
      ),
    );
    return item;
  }

  /** @param {Record<string, unknown>} change */
  keep(change) {
    this.saving = this.saving.then(() => postJson("/captioning/choose", change).then(() => undefined, showError));
    return this.saving;
  }

  async choose(left) {
    await this.keep({ left });
    this.load();
  }

  async writeChosen() {
    this.write.disabled = true;
    await this.saving;
    try {
      followWriting(await postJson("/captioning/write"), (work) => this.written(work));
    } catch (error) {
      showError(error);
      this.load();
    }
  }

  // Also after an undo: what is not written is offered again.
  /** @param {CaptionWork} work */
  written(work) {
    if (work.state === "failed") showError(new Error(work.text));
    emit("captions", null);
    this.load();
  }
}
