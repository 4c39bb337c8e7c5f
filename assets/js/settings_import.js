// Imports settings of files: ours, and those of other trainers.

import { sendRequest } from "./bridge.js";
import { openDialog } from "./dialogs.js";
import { differenceTable } from "./difference_table.js";
import { el } from "./dom.js";
import { problemSentence } from "./field_marks.js";
import { formatCount } from "./format.js";
import { t } from "./locale.js";
import { closePresets } from "./presets.js";
import { on } from "./state.js";
import { toast } from "./toasts.js";

// Bytes, not text: the server tells a wrong encoding from a wrong line.
const sendFile = async (file, done) => {
  if (file.size > 1_000_000) {
    const remedy = "Give images and models by their folder, on the Dataset and Model tabs.";
    return toast(t`${file.name} is too large for a settings file (over 1 MB). ${remedy}`, { kind: "error" });
  }
  const bytes = await file.arrayBuffer().then(
    (content) => new Uint8Array(content),
    () => null,
  );
  if (!bytes) return toast(t`${file.name} can't be read. Choose a settings file, not a folder.`, { kind: "error" });
  let binary = "";
  bytes.forEach((byte) => (binary += String.fromCharCode(byte)));
  done(file.name, btoa(binary));
};
const chooseFile = (accept, done) => {
  const file = el("input", { type: "file", accept });
  file.onchange = () => file.files.length && sendFile(file.files[0], done);
  file.click();
};
let sent = null;
const importFile = (name, content) => {
  closePresets();
  sent = { name: name.replace(/\.(toml|json|ya?ml|sh|bat|cmd)$/i, ""), content };
  sendRequest("import", sent);
};
export const importSettings = () =>
  chooseFile(".toml,.json,.yaml,.yml,.sh,.bat,.cmd,text/plain", importFile);
// A file dropped anywhere is imported; otherwise the browser would open it in place of the page.
document.addEventListener("dragover", (event) => {
  if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
});
document.addEventListener("drop", (event) => {
  const files = event.dataTransfer?.files;
  if (!files?.length || event.defaultPrevented) return;
  event.preventDefault();
  if (files.length > 1) {
    const remedy = "Give images by their folder, on the Dataset tab.";
    return toast(t`Drop one settings file at a time. ${remedy}`, { kind: "error" });
  }
  sendFile(files[0], importFile);
});
// Settings of a file: nothing is loaded before a person has seen what changes.
on("foreign", ({ name, kind, rows, groups, off, wantsDataset, rest, own }) => {
  const box = openDialog(
    t`Import ${name}`,
    el(
      "p",
      { class: "note" },
      rows.length
        ? t`Read as ${kind}. Loading it changes ${formatCount(rows.length, "setting")}, listed below. ${rest}`
        : t`Read as ${kind}. The page already has exactly these settings.`,
    ),
    rows.length ? differenceTable(rows) : null,
    groups.map(({ title, notes }) =>
      el(
        "details",
        { class: "import-notes", open: title.startsWith("Not imported") || null },
        el("summary", {}, title, ` (${notes.length})`),
        el(
          "ul",
          { class: "bad-list" },
          notes.map(({ line, about, name, why }) =>
            el(
              "li",
              {},
              line ? t`Line ${line}: ` : null,
              about,
              about && name ? " " : null,
              // as in the file
              name ? el("span", { translate: "no" }, name) : null,
              why ? [": ", why] : null,
            ),
          ),
        ),
      ),
    ),
    off.length ? el("p", { class: "note" }, t`Empty or off in that file, so nothing is lost: ${off.join(", ")}`) : null,
    el(
      "div",
      { class: "buttons" },
      el(
        "button",
        {
          class: "primary",
          "data-do": "take-import",
          onclick: () => (box.close(), sendRequest("take-import", { name })),
        },
        "Load these settings",
      ),
      own
        ? el(
            "button",
            { "data-do": "save-import", onclick: () => (box.close(), sendRequest("save-import", { name })) },
            "Save as preset",
          )
        : null,
      wantsDataset
        ? el(
            "button",
            {
              "data-do": "add-dataset",
              onclick: () =>
                chooseFile(".toml,.json", (_, dataset) => (box.close(), sendRequest("import", { ...sent, dataset }))),
            },
            "Add its dataset file…",
          )
        : null,
    ),
  );
  box.classList.add("wide-dialog");
});

on("importFailed", ({ name, problems }) =>
  openDialog(
    t`${name} can't be imported`,
    el("p", { class: "note" }, "Nothing was changed. Fix these in the file and import it again:"),
    el(
      "ul",
      { class: "bad-list" },
      problems
        .filter((p) => p.severity === "error")
        .map((p) =>
          el("li", {}, (p.line ? t`Line ${p.line}: ` : "") + (p.path ? `${p.path}: ` : "") + problemSentence(p)),
        ),
    ),
  ),
);
