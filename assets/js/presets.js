// Lists presets, shows what loading one would change, and loads, saves, renames and deletes them.

import { sendRequest } from "./bridge.js";
import { openDialog } from "./dialogs.js";
import { differenceTable } from "./difference_table.js";
import { el, fill } from "./dom.js";
import { problemSentence } from "./field_marks.js";
import { formatCount } from "./format.js";
import { address } from "./http.js";
import { t } from "./locale.js";
import { askName } from "./name_dialog.js";
import { on, pageState } from "./state.js";
/** @import { DifferenceRow, Preset } from "./server" */

const DEFAULTS = { name: "", builtin: true, description: "Every setting at its default." };
let presetBox = null;
let selected = null;
let keep = true;
export const openPresets = () => {
  selected = pageState.draft.preset || null;
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
  if (selected !== null) pick(selected);
};
const drawPresets = () => {
  if (!presetBox?.isConnected) return;
  const list = presetBox.querySelector(".preset-list");
  // By number, so that 8 GB comes before 12 GB.
  const sorted = (builtin) =>
    pageState.presets
      .filter((p) => p.builtin === builtin)
      .sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  // Those of the chosen family first, since people mostly look for a preset of their GPU.
  const family = pageState.draft.family;
  const builtin = sorted(true);
  const families = [...new Set(builtin.map((p) => p.family))]
    .filter(Boolean)
    .sort((a, b) => Number(b === family) - Number(a === family));
  /** @type {(family: string) => [string, Preset[]]} */
  const ofFamily = (family) => [pageState.draft.families[family], builtin.filter((p) => p.family === family)];
  /** @type {[string, Preset[]][]} */
  const groups = [
    ["My presets", sorted(false)],
    ["General", [...builtin.filter((p) => !p.family), DEFAULTS]],
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
            "aria-selected": p.name === selected ? "true" : "false",
            onclick: () => pick(p.name),
            ondblclick: () => load(p.name),
          },
          el(
            "strong",
            {},
            p.name || "Defaults",
            p.name && p.name === pageState.draft.preset ? el("span", { class: "tag" }, "loaded") : null,
          ),
          p.description ? el("span", {}, p.description) : null,
        ),
      ),
    ]),
  );
  if (selected === null)
    fill(
      presetBox.querySelector(".preset-side"),
      el("p", { class: "note" }, "Choose a preset to see what loading it would change."),
    );
};
// The right side shows the preset selected on the left, or nothing: its Load button must never load another.
const pick = (name) => {
  selected = name;
  drawPresets();
  fill(presetBox.querySelector(".preset-side"), el("p", { class: "note" }, "Comparing…"));
  sendRequest("compare", { name, keep });
};
const load = (name) => {
  presetBox?.close();
  sendRequest("load", { name, keep });
};
// A preset for a GPU names no model and no images: those on the page can be kept.
const keepBox = (name, kept) => {
  const box = el("input", { type: "checkbox", id: "keep-on-load", onchange: () => ((keep = box.checked), pick(name)) });
  box.checked = keep;
  return el(
    "label",
    { class: "keep-on-load" },
    box,
    el("span", {}, t`Keep my settings that the preset does not have: ${kept.map((each) => t(each)).join(", ")}`),
  );
};

/**
 * @param {string} name
 * @param {DifferenceRow[]} rows
 * @param {boolean | number} kept
 */
const loadingNote = (name, rows, kept) => {
  const changes = t`Loading changes ${formatCount(rows.length, "setting")}, listed below.`;
  if (!name) return changes;
  return kept
    ? t`${changes} Other settings that the preset does not have are set to their defaults.`
    : t`${changes} Settings that the preset does not have are set to their defaults.`;
};
on("presets", drawPresets);
on("difference", ({ name, builtin, rows, kept, problems }) => {
  if (!presetBox?.isConnected || name !== selected) return;
  const errors = (problems || []).filter((p) => p.severity === "error");
  fill(
    presetBox.querySelector(".preset-side"),
    el("h3", {}, name || "Defaults"),
    kept.length ? keepBox(name, kept) : null,
    errors.length
      ? [
          el("p", { class: "note" }, "This preset can't be loaded:"),
          el(
            "ul",
            { class: "bad-list" },
            errors.map((p) => el("li", {}, (p.line ? t`Line ${p.line}: ` : "") + problemSentence(p))),
          ),
        ]
      : rows.length
        ? [el("p", { class: "note" }, loadingNote(name, rows, kept.length && keep)), differenceTable(rows)]
        : el("p", { class: "note" }, "The page already has exactly these settings."),
    el(
      "div",
      { class: "buttons" },
      errors.length
        ? null
        : el("button", { class: "primary", "data-do": "load", onclick: () => load(name) }, "Load preset"),
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
  const { preset } = pageState.draft;
  const known = pageState.presets.find((p) => p.name === preset);
  if (known && !known.builtin) sendRequest("save", { name: preset });
  else savePresetAs();
};
export const savePresetAs = () => {
  const { preset } = pageState.draft;
  askName(
    "Save as preset",
    "Preset name",
    preset ? `${preset} 2` : "",
    "Save preset",
    (name) => sendRequest("save-as", { name }),
    "Saved in presets/user on this machine, as a TOML file.",
  );
};

// Closes the list, before another dialog takes its place.
export const closePresets = () => presetBox?.close();
