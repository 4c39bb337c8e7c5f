// Leaving a text field that nobody has typed in sends nothing: Gradio would gather the whole form for it, and the
// server read it, to find that all is as it was.

/** @type {WeakSet<EventTarget>} */
const edited = new WeakSet();
const isText = (target) => target instanceof Element && target.matches("[id^='f-'] [data-testid=textbox]");
document.addEventListener("input", ({ target }) => edited.add(target), true);
document.addEventListener(
  "blur",
  (event) => {
    if (isText(event.target) && !edited.delete(event.target)) event.stopImmediatePropagation();
  },
  true,
);
// Whether a text field has the focus and holds what was not sent yet.
export const isTyping = () => isText(document.activeElement) && edited.has(document.activeElement);
