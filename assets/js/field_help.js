// Adds to Gradio's widgets: the help under each input, folder suggestions, and keyboards that fit.

import { el, whenPresent } from "./dom.js";
import { fieldInput } from "./field_marks.js";
import { pathInput } from "./path_input.js";
import { on, pageState } from "./state.js";
import "./help_popover.js";

// The help is under the input. Long texts are cut to two lines; help_popover.js shows them whole.
const addHelp = (field) => {
  const setting = pageState.settings.find((s) => s.id === field.id);
  if (!setting || setting.kind === "tables" || field.querySelector(".mt-help")) return;
  const help = el("div", { class: "mt-help", id: `help-${field.id}` }, el("span", {}, setting.help));
  const place =
    field.querySelector("label.container") ||
    field.querySelector(".container") ||
    field.querySelector("label")?.parentElement ||
    field;
  place.append(help);
  const target = fieldInput(field);
  if (target && !target.getAttribute("aria-describedby")) target.setAttribute("aria-describedby", help.id);
  const measure = () => {
    const span = help.firstElementChild;
    if (help.offsetParent) field.classList.toggle("long-help", span.scrollHeight > span.clientHeight + 4);
  };
  new ResizeObserver(measure).observe(help);
};
whenPresent("[id^='f-'].block", addHelp);
on("settings", () => document.querySelectorAll("[id^='f-'].block").forEach(addHelp));

whenPresent(".k-path", (field) => {
  const box = fieldInput(field);
  if (box) pathInput(box);
});
whenPresent(".k-int input, .k-int textarea", (box) => box.setAttribute("inputmode", "numeric"));
whenPresent(".k-float input, .k-float textarea", (box) => box.setAttribute("inputmode", "decimal"));
