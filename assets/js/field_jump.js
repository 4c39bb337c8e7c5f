// Shows a setting's field and puts the cursor in it, whatever hides it.

import { fieldInput } from "./field_marks.js";
import { seek } from "./settings_level.js";
import { pageState } from "./state.js";
import { openTab } from "./tabs.js";

// Tabs and folded panels are drawn only when they are opened, in Gradio's own time, and one that has just been drawn
// may fold itself again: so the outermost thing that is still shut is opened, until none is.
let jump = 0;
export const goToField = async (id, tab) => {
  const number = ++jump;
  const setting = pageState.settings.find((s) => s.id === id);
  const title = tab || setting?.tab;
  seek(id);
  for (const end = performance.now() + 20000; performance.now() < end && number === jump; ) {
    if (title) openTab(title);
    const shut = (setting?.folds || [])
      .map((fold) => /** @type {HTMLElement} */ (document.getElementById(fold)?.querySelector(".label-wrap")))
      .find((head) => !head?.classList.contains("open"));
    const field = document.getElementById(id);
    if (shut === undefined && field?.offsetParent && targetIn(field)) return arrive(field);
    shut?.click();
    await new Promise((resolve) => setTimeout(resolve, 120));
  }
};
// A table is empty until its editor is loaded.
const targetIn = (field) =>
  field.querySelector("[aria-invalid=true]") || fieldInput(field) || field.querySelector("button");
const arrive = (field) => {
  field.scrollIntoView({ block: "center", behavior: calm() ? "auto" : "smooth" });
  targetIn(field).focus({ preventScroll: true });
  field.classList.add("reached");
  setTimeout(() => field.classList.remove("reached"), 1600);
};
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
