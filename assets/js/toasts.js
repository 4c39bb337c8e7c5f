// Shows short messages in a corner of the page.

import { el } from "./dom.js";
import { drawIcon } from "./icons.js";

let toasts = null;
/**
 * @param {string} text
 * @param {object} [options]
 * @param {string} [options.kind] info or error.
 * @param {string} [options.action] The label of a button, which calls onaction.
 * @param {() => void} [options.onaction]
 * @param {number} [options.seconds]
 * @param {string} [options.only] At most one message with this mark is shown.
 */
export const toast = (text, { kind = "info", action, onaction, seconds = 6, only } = {}) => {
  toasts ||= document.body.appendChild(el("div", { class: "toasts", role: "status", "aria-live": "polite" }));
  const close = () => note.remove();
  if (only) removeToast(only);
  const note = el(
    "div",
    { class: `toast ${kind}`, "data-only": only },
    el("span", {}, text),
    action ? el("button", { class: "link", onclick: () => (close(), onaction()) }, action) : null,
    el("button", { class: "quiet", "aria-label": "Close this message", onclick: close }, drawIcon("remove")),
  );
  toasts.append(note);
  while (toasts.children.length > 4) toasts.firstChild.remove();
  setTimeout(close, (action ? seconds * 2 : seconds) * 1000);
};
export const showError = (error) => toast(error.message || String(error), { kind: "error", seconds: 12 });

// Takes a message away before its time.
export const removeToast = (only) => toasts?.querySelector(`[data-only=${only}]`)?.remove();
