// Draws a run's tags and notes, and saves what a person changes in them.

import { el, fill } from "./dom.js";
import { postJson } from "./http.js";
import { drawIcon } from "./icons.js";
import { t } from "./locale.js";
import { showError, toast } from "./toasts.js";
/** @import { LibraryRun } from "./library" */

/** @typedef {{tags: string[], notes: string}} Written */

// onsaved is called after each change; ontag(name) when a tag is pressed.
/**
 * @param {LibraryRun} run
 * @param {{onsaved: () => void, ontag: (name: string) => void}} actions
 */
export const runNotes = (run, { onsaved, ontag }) => {
  const node = el("div", { class: "run-notes" });
  let now = { tags: run.tags, notes: run.notes };

  /** @type {(next: Written, message: string) => Promise<boolean>} */
  const save = async (next, message) => {
    const before = now;
    try {
      now = await postJson("/notes", { run: run.name, ...next, before });
    } catch (error) {
      showError(error);
      return false;
    }
    draw();
    onsaved();
    if (message) toast(message, { action: "Undo", onaction: () => save(before, "") });
    return true;
  };

  const chip = (name) =>
    el(
      "span",
      { class: "tag run-tag" },
      el("button", { title: t`Show the runs tagged ${name}`, onclick: () => ontag(name) }, `#${name}`),
      el(
        "button",
        {
          "aria-label": t`Remove the tag ${name}`,
          onclick: () => save({ ...now, tags: now.tags.filter((tag) => tag !== name) }, t`Removed the tag ${name}.`),
        },
        drawIcon("remove"),
      ),
    );
  const adder = () => {
    const input = el("input", {
      type: "text",
      class: "add-tag",
      maxlength: 60,
      placeholder: "Add tag",
      list: "library-tags",
      "aria-label": t`Add a tag to ${run.name}`,
    });
    const add = async () => {
      const names = input.value.split(",").map((name) => name.trim());
      if (!names.some(Boolean)) return;
      if (await save({ ...now, tags: [...now.tags, ...names.filter(Boolean)] }, "")) refocus(".add-tag");
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") (event.preventDefault(), event.stopPropagation(), add());
    });
    input.addEventListener("change", add);
    return input;
  };
  const refocus = (selector) => {
    const field = node.querySelector(selector);
    if (field instanceof HTMLElement) field.focus();
  };

  const edit = () => {
    const text = el("textarea", { rows: 4, maxlength: 20000, value: now.notes, "aria-label": t`Notes of ${run.name}` });
    const done = async () => {
      if (await save({ ...now, notes: text.value }, "Notes saved.")) refocus(".edit-notes");
    };
    text.addEventListener("keydown", (event) => {
      // Elsewhere this starts a training.
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) (event.stopPropagation(), done());
    });
    fill(
      node.querySelector(".notes-text"),
      text,
      el(
        "div",
        { class: "buttons" },
        el("button", { class: "primary", onclick: done }, "Save notes"),
        el("button", { onclick: draw }, "Cancel"),
      ),
    );
    node.dataset.editing = "";
    text.focus();
  };

  const draw = () => {
    delete node.dataset.editing;
    fill(
      node,
      el("div", { class: "run-tags" }, now.tags.map(chip), adder()),
      el(
        "div",
        { class: "notes-text" },
        now.notes ? el("p", { class: "notes", translate: "no" }, now.notes) : null,
        el("button", { class: "link edit-notes", onclick: edit }, now.notes ? "Edit notes" : "Add notes"),
      ),
      run.notes_problem ? el("p", { class: "warning" }, run.notes_problem) : null,
    );
  };
  draw();
  return node;
};
