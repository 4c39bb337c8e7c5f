// Makes and fills elements. Nothing here ever turns text into HTML.

/**
 * Makes an element: el("button", { class: "b", onclick: f }, "text", otherElement).
 * Strings become text nodes; lists are taken apart; null, undefined and false leave nothing.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export const el = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};
/** @type {(node: Element, ...children: any[]) => Element} */
export const fill = (node, ...children) => {
  node.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
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
  if (node && node.textContent !== value) node.textContent = value;
};
// A drawing made by our own server, put in as elements so that it takes the page's colours.
export const fillSvg = (node, source) => {
  const parsed = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
  if (parsed.nodeName === "svg") node.replaceChildren(document.importNode(parsed, true));
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
