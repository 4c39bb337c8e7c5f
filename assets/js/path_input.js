// Suggests folders and files while a path is typed.

import { getJson } from "./http.js";
import { suggest } from "./suggestions.js";

const setInput = (node, value) => {
  const kind = node.tagName === "TEXTAREA" ? HTMLTextAreaElement : HTMLInputElement;
  Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(node, value);
  node.dispatchEvent(new Event("input", { bubbles: true }));
};

// The machine that a path names: \\server or //server.
const host = (text) => /^\s*[\\/]{2}[^\\/]*/.exec(text)?.[0] ?? "";

export const pathInput = (box, kind = "any") => {
  // Another machine is asked only where a person typed its name: not for what a file put here.
  let typed = "";
  box.addEventListener("input", (event) => event.isTrusted && (typed = host(box.value)));
  const suggestions = suggest(
    box,
    async (text) =>
      (await getJson("/fs", { prefix: text, kind, typed: host(text) === typed })).entries.map((entry) => ({
        label: entry.folder ? `${entry.name}/` : entry.name,
        detail: entry.note || "",
        value: entry.folder ? entry.path + entry.separator : entry.path,
        folder: entry.folder,
      })),
    (item) => {
      setInput(box, item.value);
      if (item.folder) suggestions.update();
    },
    { name: "Folders and files" },
  );
};
