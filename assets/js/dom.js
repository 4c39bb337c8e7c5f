// Makes and fills elements, in the page's language. Nothing here ever turns text into HTML.

import { translate } from "./locale.js";

// Attributes that people read or hear.
const SPOKEN = new Set(["title", "placeholder", "aria-label", "aria-valuetext", "alt"]);
// Children as the DOM takes them. Texts of people (captions, logs, names) lie in elements with translate="no".
const shown = (children, asWritten) =>
  children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (asWritten ? child : translate(child)));

/**
 * Makes an element: el("button", { class: "b", onclick: f }, "text", otherElement).
 * Strings become text nodes; lists are taken apart; null, undefined and false leave nothing.
 * Texts and titles are translated, unless the attribute `translate` is "no".
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export const el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  const asWritten = attributes?.translate === "no";
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : SPOKEN.has(name) && !asWritten ? translate(value) : value);
  }
  node.append(...shown(children, asWritten));
  return node;
};
/** @type {(node: Element, ...children: any[]) => Element} */
export const fill = (node, ...children) => {
  node.replaceChildren(...shown(children, /** @type {HTMLElement} */ (node).translate === false));
  return node;
};
/**
 * Makes a table with a row of headings; `rows` are elements, lists are taken apart.
 *
 * @type {(headings: any[], rows: any, attributes?: Record<string, any>) => HTMLTableElement}
 */
export const table = (headings, rows, attributes = { class: "facts numbers" }) =>
  el(
    "table",
    attributes,
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        headings.map((heading) => el("th", {}, heading)),
      ),
    ),
    el("tbody", {}, rows),
  );
/** @type {(node: Element | null, value: string) => void} */
export const setText = (node, value) => {
  if (!node) return;
  const text = /** @type {HTMLElement} */ (node).translate === false ? value : translate(value);
  if (node.textContent !== text) node.textContent = text;
};
// A drawing made by our own server, put in as elements so that it takes the page's colours.
export const fillSvg = (node, source) => {
  const parsed = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
  if (parsed.nodeName !== "svg") return;
  for (const text of parsed.querySelectorAll("text, title, desc")) {
    if (!text.childElementCount) text.textContent = translate(text.textContent);
  }
  const label = parsed.getAttribute("aria-label");
  if (label) parsed.setAttribute("aria-label", translate(label));
  node.replaceChildren(document.importNode(parsed, true));
};

// Gradio mounts tabs and components in its own time: what needs an element waits for it here.
/** @type {(selector: string, callback: (node: HTMLElement) => void) => void} */
export const whenPresent = (selector, callback) => {
  const done = new WeakSet();
  const visit = () => {
    for (const node of document.querySelectorAll(/** @type {any} */ (selector))) {
      if (done.has(node)) continue;
      done.add(node);
      callback(node);
    }
  };
  // What is there already, as when the scripts come late, waits until all of them have run.
  queueMicrotask(visit);
  new MutationObserver(visit).observe(document.documentElement, { childList: true, subtree: true });
};
