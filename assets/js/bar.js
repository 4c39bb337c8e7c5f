// Builds the bar at the top (presets, search, undo, theme, Start training) and keeps it up to date.

import { sendRequest } from "./bridge.js";
import { themeButton } from "./color_theme.js";
import { el, fill, whenPresent } from "./dom.js";
import { goToField } from "./field_jump.js";
import { address } from "./http.js";
import { drawIcon } from "./icons.js";
import { t } from "./locale.js";
import { openPresets, savePreset, savePresetAs } from "./presets.js";
import { problemSummary } from "./problem_summary.js";
import { languageButton } from "./language_choice.js";
import { importSettings } from "./settings_import.js";
import { queueButton } from "./queue_tab.js";
import { findSettings } from "./settings_search.js";
import { startButton } from "./start_button.js";
import { on, pageState } from "./state.js";
import { suggest } from "./suggestions.js";
import { openTab } from "./tabs.js";
/** @import { Draft } from "./server" */

// The elements that change.
const barParts = () => ({
  preset: el(
    "button",
    { class: "preset-button", id: "preset-button", "aria-haspopup": "dialog", onclick: openPresets },
    "Presets",
  ),
  save: el(
    "button",
    { id: "save-preset", onclick: savePreset, title: "Save the settings to their preset" },
    el("span", { class: "wide-only" }, "Save preset"),
    el("span", { class: "narrow-only" }, "Save"),
  ),
  undo: el(
    "button",
    {
      class: "icon",
      id: "undo",
      "aria-label": "Undo the last load",
      title: "Undo the last load",
      disabled: true,
      onclick: () => sendRequest("undo"),
    },
    drawIcon("undo"),
  ),
  redo: el(
    "button",
    {
      class: "icon",
      id: "redo",
      "aria-label": "Redo the last load",
      title: "Redo the last load",
      disabled: true,
      onclick: () => sendRequest("redo"),
    },
    drawIcon("redo"),
  ),
  chip: el("button", { class: "chip", id: "run-chip", hidden: true, onclick: () => openTab("Run") }),
});

const searchBox = () =>
  el("input", {
    type: "search",
    id: "search",
    placeholder: "Search",
    "aria-label": "Search settings",
    "data-first": "1",
  });

let parts = null;
const build = (root) => {
  const search = searchBox();
  parts = barParts();
  fill(
    root,
    el("h1", { class: "offscreen" }, "Monotile"),
    el(
      "header",
      { class: "bar" },
      el(
        "a",
        {
          class: "brand",
          href: address("/"),
          "aria-label": "Monotile",
          onclick: (e) => (e.preventDefault(), openTab("Model")),
        },
        el("img", { src: address("/page/logo.svg"), alt: "", width: 30, height: 30 }),
        el("span", {}, "Monotile"),
      ),
      el(
        "div",
        { class: "preset-group" },
        parts.preset,
        parts.save,
        el("button", { id: "save-as", onclick: savePresetAs, title: "Save as a new preset" }, "Save as…"),
        el(
          "button",
          {
            id: "import",
            onclick: importSettings,
            title: "Import a preset (TOML), or settings of sd-scripts, musubi-tuner or kohya_ss",
          },
          "Import…",
        ),
        parts.undo,
        parts.redo,
      ),
      el("div", { class: "search" }, search, el("kbd", { "aria-hidden": "true" }, "/")),
      parts.chip,
      el("div", { class: "bar-end" }, languageButton, themeButton, queueButton, startButton),
    ),
    problemSummary,
  );
  suggest(
    search,
    findSettings,
    (item) => {
      search.value = "";
      search.blur();
      goToField(item.id, item.tab);
    },
    { minimum: 1, name: "Settings" },
  );
  drawDraft(pageState.draft);
};
whenPresent("#bar-root", build);

/**
 * @param {Partial<Draft>} draft
 */
const drawDraft = (draft) => {
  if (!parts) return;
  const changed = (draft.changed || []).length;
  fill(
    parts.preset,
    el("span", { class: "preset-name" }, draft.preset || "Presets"),
    draft.preset && changed ? el("span", { class: "preset-changed" }, t`${changed} changed`) : null,
    drawIcon("down_small"),
  );
  const known = pageState.presets.find((p) => p.name === draft.preset);
  parts.save.disabled = Boolean(known && !known.builtin && !changed);
  parts.undo.disabled = !draft.canUndo;
  parts.redo.disabled = !draft.canRedo;
};
on("draft", drawDraft);

on("active", (active) => {
  if (!parts) return;
  parts.chip.hidden = !active;
  if (active) {
    const share = active.total_steps ? Math.floor((100 * (active.step || 0)) / active.total_steps) : null;
    const short = active.name.replace(/-\d{8}-\d{6}(-\d+)?$/, "");
    fill(
      parts.chip,
      el("span", { class: "pulse" }),
      el("span", { class: "chip-name" }, short),
      share === null ? null : el("span", {}, `${share} %`),
    );
    parts.chip.title = t(active.text || active.name);
    document.title = `${share === null ? "" : `${share} % · `}Monotile`;
  } else document.title = "Monotile";
});
