// Shows a list under an input, to choose from.

import { el } from "./dom.js";

// source(text) -> items {label, detail, value}; pick(item) is called with the selected one.
export const suggest = (box, source, pick, { minimum = 0, name = "Suggestions" } = {}) => {
  let items = [];
  let at = -1;
  let requests = 0;
  let list = null;
  const id = `list-${Math.random().toString(36).slice(2, 9)}`;
  box.setAttribute("role", "combobox");
  box.setAttribute("aria-autocomplete", "list");
  box.setAttribute("aria-expanded", "false");
  box.setAttribute("autocomplete", "off");
  const close = () => {
    list?.remove();
    list = null;
    at = -1;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  };
  const choose = (index) => {
    const item = items[index];
    close();
    if (item) pick(item);
  };
  const highlight = (index) => {
    at = (index + items.length) % items.length;
    [...list.children].forEach((node, i) => node.setAttribute("aria-selected", i === at ? "true" : "false"));
    list.children[at].scrollIntoView({ block: "nearest" });
    box.setAttribute("aria-activedescendant", list.children[at].id);
  };
  const show = () => {
    list?.remove();
    if (!items.length) return close();
    const place = box.getBoundingClientRect();
    list = el(
      "div",
      { class: "suggestions", role: "listbox", id, "aria-label": name },
      items.map((item, i) =>
        el(
          "div",
          {
            role: "option",
            id: `${id}-${i}`,
            "aria-selected": "false",
            onpointerdown: (e) => (e.preventDefault(), choose(i)),
          },
          el("span", { class: "what" }, item.label),
          item.detail ? el("span", { class: "where" }, item.detail) : null,
        ),
      ),
    );
    const width = Math.min(Math.max(place.width, 440), window.innerWidth - 16);
    const left = Math.max(8, Math.min(place.left, window.innerWidth - width - 8));
    list.style.cssText = `left:${left + window.scrollX}px;top:${place.bottom + window.scrollY + 4}px;width:${width}px`;
    // A dialog lies above everything: a list that belongs to it has to live inside.
    (box.closest("dialog") || document.body).append(list);
    box.setAttribute("aria-expanded", "true");
    box.setAttribute("aria-controls", id);
    at = -1;
  };
  const update = async () => {
    const number = ++requests;
    const text = box.value;
    let answer = [];
    if (text.length >= minimum) {
      try {
        answer = await source(text);
      } catch {
        answer = [];
      }
    }
    if (number !== requests || document.activeElement !== box) return;
    items = answer;
    show();
  };
  box.addEventListener("input", update);
  box.addEventListener("focus", () => box.value.length >= minimum && update());
  box.addEventListener("focusout", close);
  box.addEventListener("keydown", (event) => {
    if (!list) return;
    if (event.key === "ArrowDown") highlight(at + 1);
    else if (event.key === "ArrowUp") highlight(at < 0 ? items.length - 1 : at - 1);
    else if (event.key === "Enter" && (at >= 0 || box.dataset.first)) choose(Math.max(at, 0));
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { update, close };
};
