// Imports presets, and settings of other trainers.

import { sendRequest } from "./bridge.js";
import { openDialog } from "./dialogs.js";
import { differenceTable } from "./difference_table.js";
import { el } from "./dom.js";
import { problemSentence } from "./field_marks.js";
import { formatCount } from "./format.js";
import { closePresets } from "./presets.js";
import { on } from "./state.js";
import { toast } from "./toasts.js";

// Bytes, not text: the server tells a wrong encoding from a wrong line.
const chooseFile = (accept, done) => {
  const file = el("input", { type: "file", accept });
  file.onchange = async () => {
    if (!file.files.length) return;
    if (file.files[0].size > 1_000_000)
      return toast("That file is too large for a preset (over 1 MB).", { kind: "error" });
    const bytes = new Uint8Array(await file.files[0].arrayBuffer());
    let binary = "";
    bytes.forEach((byte) => (binary += String.fromCharCode(byte)));
    done(file.files[0].name, btoa(binary));
  };
  file.click();
};
let sent = null;
export const importSettings = () =>
  chooseFile(".toml,.json,.yaml,.yml,.sh,.bat,.cmd,text/plain", (name, content) => {
    closePresets();
    sent = { name: name.replace(/\.(toml|json|ya?ml|sh|bat|cmd)$/i, ""), content };
    sendRequest("import", sent);
  });
// Settings of another trainer: nothing is taken before its difference was seen.
on("brought", ({ name, kind, rows, groups, off, wantsDataset, rest }) => {
  const box = openDialog(
    `Import ${name}`,
    el(
      "p",
      { class: "note" },
      rows.length
        ? `Read as ${kind}. Taking it changes ${formatCount(rows.length, "setting")}; all others ${rest}.`
        : `Read as ${kind}. The form already shows exactly this.`,
    ),
    rows.length ? differenceTable(rows) : null,
    groups.map(({ title, notes }) =>
      el(
        "details",
        { class: "brought", open: title.startsWith("Not taken") || null },
        el("summary", {}, `${title} (${notes.length})`),
        el(
          "ul",
          { class: "bad-list" },
          notes.map((note) => el("li", {}, (note.line ? `Line ${note.line}: ` : "") + note.text)),
        ),
      ),
    ),
    off.length ? el("p", { class: "note" }, `Empty or off there, so nothing is lost: ${off.join(", ")}`) : null,
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
        "Take these settings",
      ),
      wantsDataset
        ? el(
            "button",
            {
              "data-do": "add-dataset",
              onclick: () =>
                chooseFile(".toml,.json", (_, dataset) => (box.close(), sendRequest("import", { ...sent, dataset }))),
            },
            "Add its data set file…",
          )
        : null,
    ),
  );
  box.classList.add("wide-dialog");
});

on("importFailed", ({ name, problems }) =>
  openDialog(
    `${name} can't be imported`,
    el("p", { class: "note" }, "Nothing was changed. Fix these in the file and import it again:"),
    el(
      "ul",
      { class: "bad-list" },
      problems
        .filter((p) => p.severity === "error")
        .map((p) =>
          el("li", {}, (p.line ? `Line ${p.line}: ` : "") + (p.path ? `${p.path}: ` : "") + problemSentence(p)),
        ),
    ),
  ),
);
