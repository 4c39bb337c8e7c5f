// Shows a help text that is cut whole, above everything else, so that nothing moves: while its field is used, while the
// pointer rests on it, or after a tap. Screen readers read the whole text in the field itself.

import { el } from "./dom.js";

const DELAY_MS = 350;
// Time to move the pointer from the text into the popover, which holds it open.
const LEAVE_MS = 200;

const popover = el("div", { class: "help-popover", popover: "manual", "aria-hidden": "true" });
/** @type {HTMLElement | null} */
let field = null;
// What was closed with Escape stays closed until the field is left.
/** @type {Element | null} */
let dismissed = null;
let timer = 0;
let following = 0;

const fieldOf = (target) => (target instanceof Element ? target.closest("[id^='f-'].long-help") : null);
// The list that a field has open, which has to stay in sight.
const openList = (owner) => owner.querySelector("ul[role=listbox], .suggestions:not([hidden])");

const place = () => {
  const help = field?.querySelector(".mt-help");
  if (!field || !help?.getClientRects().length) return hide();
  const { left, top, width } = help.getBoundingClientRect();
  const margin = 8;
  popover.style.width = `${Math.min(width + 20, innerWidth - 2 * margin)}px`;
  const { offsetWidth, offsetHeight } = popover;
  const above = field.getBoundingClientRect().top - offsetHeight - 4;
  const below = top - 3;
  const list = openList(field)?.getBoundingClientRect();
  const high = list?.height ? list.top >= top - 60 : below + offsetHeight > innerHeight - margin && above >= margin;
  popover.style.left = `${Math.max(margin, Math.min(left - 10, innerWidth - offsetWidth - margin))}px`;
  popover.style.top = `${high ? Math.max(margin, above) : below}px`;
};
const hide = () => {
  clearTimeout(timer);
  if (popover.isConnected && popover.matches(":popover-open")) popover.hidePopover();
  clearInterval(following);
  field = null;
};
/** @param {HTMLElement} owner */
const show = (owner) => {
  clearTimeout(timer);
  if (owner === dismissed) return;
  field = owner;
  popover.textContent = owner.querySelector(".mt-help")?.textContent ?? "";
  if (!popover.isConnected) document.querySelector(".gradio-container")?.append(popover);
  if (!popover.matches(":popover-open")) popover.showPopover();
  place();
  // Gradio opens and moves its lists in its own time.
  clearInterval(following);
  following = setInterval(place, 120);
};
const later = (act, ms) => {
  clearTimeout(timer);
  timer = setTimeout(act, ms);
};

document.addEventListener("pointerover", (event) => {
  if (event.pointerType === "touch") return;
  const target = event.target instanceof Element ? event.target : null;
  if (target === popover) return clearTimeout(timer);
  const owner = target?.closest(".mt-help, [data-testid='block-info'], .label-text") ? fieldOf(target) : null;
  if (owner) later(() => show(/** @type {HTMLElement} */ (owner)), DELAY_MS);
  else if (field && field !== fieldOf(document.activeElement)) later(hide, LEAVE_MS);
  else clearTimeout(timer);
});
document.addEventListener("focusin", ({ target }) => {
  const owner = fieldOf(target);
  if (owner !== dismissed) dismissed = null;
  if (owner) show(/** @type {HTMLElement} */ (owner));
  else hide();
});
document.addEventListener("focusout", ({ target, relatedTarget }) => {
  const left = fieldOf(target);
  if (!left || left === fieldOf(relatedTarget)) return;
  dismissed = null;
  if (left === field) hide();
});
// A tap on the help shows it without using the field; the next tap closes it.
document.addEventListener("click", (event) => {
  const help = event.target instanceof Element && event.target.closest(".mt-help");
  const owner = /** @type {HTMLElement | null} */ (fieldOf(event.target));
  if (/** @type {PointerEvent} */ (event).pointerType !== "touch") return;
  if (!help || !owner) return event.target === popover || !owner ? hide() : undefined;
  event.preventDefault();
  if (field === owner) return hide();
  dismissed = null;
  show(owner);
});
// Before the key leaves a field or closes a dialog.
document.addEventListener(
  "keydown",
  (event) => {
    if (event.key !== "Escape" || !field) return;
    event.stopPropagation();
    dismissed = field;
    hide();
  },
  true,
);
for (const moved of ["scroll", "resize"]) {
  window.addEventListener(moved, () => field && place(), { capture: true, passive: true });
}
