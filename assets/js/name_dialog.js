// Asks for a name.

import { openDialog } from "./dialogs.js";
import { el } from "./dom.js";

export const askName = (title, label, value, button, done, hint) => {
  const name = el("input", { type: "text", value, id: "ask-name", maxlength: 80, spellcheck: "false", required: true });
  const form = el(
    "form",
    {
      class: "ask",
      onsubmit: (event) => {
        event.preventDefault();
        if (!name.value.trim()) return name.focus();
        box.close();
        done(name.value.trim());
      },
    },
    el("label", { for: "ask-name" }, label),
    name,
    hint ? el("p", { class: "note" }, hint) : null,
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, button)),
  );
  const box = openDialog(title, form);
  name.select();
};
