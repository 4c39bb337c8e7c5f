// Marks fields: problems beside them, changed ones, and those that the family lacks.

import { el, whenPresent } from "./dom.js";
import { translate } from "./locale.js";
import { on, pageState } from "./state.js";
import { tabTitle } from "./tabs.js";
/** @import { Problem } from "./server" */

// A field's own input, without the hidden ones that Gradio adds.
/** @type {(field: Element) => HTMLInputElement | HTMLTextAreaElement | null} */
export const fieldInput = (field) => field.querySelector("input:not([type=hidden]), textarea");

/**
 * @param {Pick<Problem, "text" | "remedy">} problem
 */
export const problemSentence = (problem) => [problem.text, problem.remedy].filter(Boolean).map(translate).join(" ");

const unmark = (field) => {
  field.querySelectorAll(".field-problem").forEach((node) => node.remove());
  field.classList.remove("has-problem", "has-warning");
  fieldInput(field)?.removeAttribute("aria-invalid");
};
/**
 * @param {Element} field
 * @param {Problem[]} problems
 */
const mark = (field, problems) => {
  unmark(field);
  for (const problem of problems.filter((p) => p.id === field.id)) {
    const note = el("div", { class: `field-problem ${problem.severity}` }, problemSentence(problem));
    note.id = `problem-${problem.id}-${field.querySelectorAll(".field-problem").length}`;
    field.append(note);
    field.classList.add("has-problem");
    if (problem.severity === "warning") field.classList.add("has-warning");
    const target = fieldInput(field);
    if (target && problem.severity === "error") {
      if (!problem.path.includes("[")) target.setAttribute("aria-invalid", "true");
      target.setAttribute("aria-describedby", note.id);
    }
  }
};
const fieldsHere = () => [...document.querySelectorAll("[id^='f-'].block, .k-tables[id^='f-']")];
on("problems", (problems) => {
  fieldsHere().forEach((field) => mark(field, problems));
  // A dot on the tab says where to look.
  const tabsInError = new Set(problems.filter((p) => p.severity === "error").map((p) => p.tab));
  document.querySelectorAll("#tabs button[role=tab]").forEach((tab) => {
    tab.classList.toggle("tab-problem", tabsInError.has(tabTitle(tab)));
  });
});

const idOf = (path) => `f-${path.replaceAll(".", "-")}`;
const markChanged = (field) => {
  const changed = pageState.draft.changedFromDefault || [];
  field.classList.toggle(
    "is-changed",
    changed.some((path) => idOf(path) === field.id),
  );
};
// What the chosen family lacks is hidden, unless somebody set it or searched for it.
const markLacking = (field) => {
  const lacking = pageState.draft.lacking || [];
  field.classList.toggle(
    "is-lacking",
    lacking.some((path) => idOf(path) === field.id),
  );
};
// What a part is called differs by family: clip_l.safetensors for FLUX, another file for Qwen-Image.
const hint = (field) => {
  const [, where] = Object.entries(pageState.draft.parts || {}).find(([path]) => idOf(path) === field.id) || [];
  if (where && fieldInput(field)) fieldInput(field).placeholder = where;
};
on("draft", () => fieldsHere().forEach((field) => (markChanged(field), markLacking(field), hint(field))));
whenPresent("[id^='f-'].block, .k-tables[id^='f-']", (field) => {
  mark(field, pageState.problems);
  markChanged(field);
  markLacking(field);
  hint(field);
});
