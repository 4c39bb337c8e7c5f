// Lists presets with what loading one would change; saves, renames and deletes them.

import { sendRequest } from "./bridge.js";
import { openDialog } from "./dialogs.js";
import { differenceTable } from "./difference_table.js";
import { el, fill } from "./dom.js";
import { problemSentence } from "./field_marks.js";
import { formatCount } from "./format.js";
import { address } from "./http.js";
import { askName } from "./name_dialog.js";
import { on, pageState } from "./state.js";
/** @import { DifferenceRow, Preset } from "./server" */

const DEFAULTS = { name: "", builtin: true, description: "Every setting as it comes." };
let presetBox = null;
let chosen = null;
let keep = true;
export const openPresets = () => {
  chosen = pageState.desk.preset || null;
  keep = true;
  presetBox = openDialog(
    "Presets",
    el(
      "div",
      { class: "presets" },
      el("div", { class: "preset-list", role: "listbox", "aria-label": "Presets" }),
      el("div", { class: "preset-side" }),
    ),
  );
  presetBox.classList.add("wide-dialog");
  drawPresets();
  if (chosen !== null) pick(chosen);
};
const drawPresets = () => {
  if (!presetBox?.isConnected) return;
  const list = presetBox.querySelector(".preset-list");
  // By number, so that 8 GB come before 12.
  const sorted = (builtin) =>
    pageState.presets
      .filter((p) => p.builtin === builtin)
      .sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  // The chosen family's first, since a preset is mostly sought by card.
  const own = pageState.desk.family;
  const builtin = sorted(true);
  const families = [...new Set(builtin.map((p) => p.family))]
    .filter(Boolean)
    .sort((a, b) => Number(b === own) - Number(a === own));
  /** @type {(family: string) => [string, Preset[]]} */
  const ofFamily = (family) => [pageState.desk.families[family], builtin.filter((p) => p.family === family)];
  /** @type {[string, Preset[]][]} */
  const groups = [
    ["Yours", sorted(false)],
    ["To begin with", [...builtin.filter((p) => !p.family), DEFAULTS]],
    ...families.map(ofFamily),
  ];
  fill(
    list,
    groups.map(([title, presets]) => [
      presets.length ? el("div", { class: "list-title" }, title) : null,
      presets.map((p) =>
        el(
          "button",
          {
            role: "option",
            class: "preset",
            "data-preset": p.name,
            "aria-selected": p.name === chosen ? "true" : "false",
            onclick: () => pick(p.name),
            ondblclick: () => load(p.name),
          },
          el(
            "strong",
            {},
            p.name || "Defaults",
            p.name && p.name === pageState.desk.preset ? el("span", { class: "tag" }, "loaded") : null,
          ),
          p.description ? el("span", {}, p.description) : null,
        ),
      ),
    ]),
  );
  if (chosen === null)
    fill(
      presetBox.querySelector(".preset-side"),
      el("p", { class: "note" }, "Choose a preset to see what loading it would change."),
    );
};
// What is on the right belongs to what is chosen on the left, or is empty: its Load button must never load another.
const pick = (name) => {
  chosen = name;
  drawPresets();
  fill(presetBox.querySelector(".preset-side"), el("p", { class: "note" }, "Comparing…"));
  sendRequest("compare", { name, keep });
};
const load = (name) => {
  presetBox?.close();
  sendRequest("load", { name, keep });
};
// A preset for a card names no model and no pictures: those that were given already need not be given again.
const keepOwn = (name, own) => {
  const box = el("input", { type: "checkbox", id: "keep-own", onchange: () => ((keep = box.checked), pick(name)) });
  box.checked = keep;
  return el(
    "label",
    { class: "keep-own" },
    box,
    el("span", {}, `Keep what the preset does not name: ${own.join(", ")}`),
  );
};

/**
 * @param {string} name
 * @param {DifferenceRow[]} rows
 * @param {boolean | number} kept
 */
const loadingNote = (name, rows, kept) => {
  const changes = `Loading changes ${formatCount(rows.length, "setting")}, listed below.`;
  if (!name) return changes;
  return `${changes} ${kept ? "Other settings" : "Settings"} that the preset does not name get their defaults.`;
};
on("presets", drawPresets);
on("difference", ({ name, builtin, rows, own, problems }) => {
  if (!presetBox?.isConnected || name !== chosen) return;
  const bad = (problems || []).filter((p) => p.severity === "error");
  fill(
    presetBox.querySelector(".preset-side"),
    el("h3", {}, name || "Defaults"),
    own.length ? keepOwn(name, own) : null,
    bad.length
      ? [
          el("p", { class: "note" }, "This preset can't be loaded:"),
          el(
            "ul",
            { class: "bad-list" },
            bad.map((p) => el("li", {}, (p.line ? `Line ${p.line}: ` : "") + problemSentence(p))),
          ),
        ]
      : rows.length
        ? [el("p", { class: "note" }, loadingNote(name, rows, own.length && keep)), differenceTable(rows)]
        : el("p", { class: "note" }, "The form already shows exactly this preset."),
    el(
      "div",
      { class: "buttons" },
      bad.length ? null : el("button", { class: "primary", "data-do": "load", onclick: () => load(name) }, "Load"),
      name ? el("a", { class: "button", href: address("/preset", { name }), download: "" }, "Export") : null,
      builtin
        ? null
        : el(
            "button",
            {
              onclick: () => (
                presetBox.close(),
                askName("Rename preset", "New name", name, "Rename", (to) => sendRequest("rename", { name, to }))
              ),
            },
            "Rename",
          ),
      builtin
        ? null
        : el(
            "button",
            { class: "danger", onclick: () => (presetBox.close(), sendRequest("delete", { name })) },
            "Delete",
          ),
    ),
  );
});

export const savePreset = () => {
  const { preset } = pageState.desk;
  const known = pageState.presets.find((p) => p.name === preset);
  if (known && !known.builtin) sendRequest("save", { name: preset });
  else savePresetAs();
};
export const savePresetAs = () => {
  const { preset } = pageState.desk;
  askName(
    "Save as a preset",
    "Name",
    preset ? `${preset} 2` : "",
    "Save",
    (name) => sendRequest("save-as", { name }),
    "Kept in presets/user on this machine, as TOML.",
  );
};

// Closes the list, as before a dialog that takes its place.
export const closePresets = () => presetBox?.close();
