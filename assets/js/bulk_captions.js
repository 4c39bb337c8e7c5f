// Changes the captions of many images: what is done is chosen here, shown as a difference, written, and undone.

import { followWriting, undoWriting, watchWriting, whenWritten, writingBar } from "./caption_writing.js";
import { openDialog } from "./dialogs.js";
import { el, fill, setText } from "./dom.js";
import { formatCount, formatWhole } from "./format.js";
import { getJson, postJson } from "./http.js";
import { imageFilter } from "./image_filters.js";
import { clearSelection, selectedImages, whenSelected } from "./image_selection.js";
import { language, t } from "./locale.js";
import { showError } from "./toasts.js";
/** @import { BulkPreview, CaptionWork, ScannedItems } from "./scan" */

const KINDS = {
  replace: { label: "Find and replace", find: "Find", text: "Replace with" },
  add: { label: "Add tags", find: "", text: "Tags" },
  remove: { label: "Remove a tag", find: "Tag", text: "" },
  rename: { label: "Rename a tag", find: "Tag", text: "New name" },
};
let scan = 0;
let shownCount = 0;
let onWritten = () => {};

const input = (id) => el("input", { id, type: "text", autocomplete: "off", oninput: () => drawForm() });
const check = (id, label) => {
  const box = /** @type {HTMLInputElement} */ (el("input", { id, type: "checkbox" }));
  return { box, row: el("label", { class: "check", for: id }, box, label) };
};
const kind = el(
  "select",
  { id: "bulk-kind", onchange: () => drawForm() },
  Object.entries(KINDS).map(([value, { label }]) => el("option", { value }, label)),
);
const find = input("bulk-find");
const text = input("bulk-text");
const findLabel = el("label", { for: "bulk-find" });
const textLabel = el("label", { for: "bulk-text" });
const regex = check("bulk-regex", "Regular expression");
const matchCase = check("bulk-case", "Match case");
const place = el(
  "select",
  { id: "bulk-place", "aria-label": "Where tags are added" },
  el("option", { value: "end" }, "at the end"),
  el("option", { value: "front" }, "in front"),
);
const scope = el("p", { class: "note", id: "bulk-scope", "aria-live": "polite" });
const unselect = el("button", { class: "small", id: "bulk-unselect", onclick: clearSelection }, "Choose none");
const look = el("button", { class: "primary", id: "bulk-preview", type: "submit" }, "Show changes");
const note = el("p", { class: "note", id: "bulk-note", "aria-live": "polite" });
const progress = writingBar("bulk-progress", "Cancel");
const undo = el("div", { class: "bulk-undo" });
const root = el(
  "details",
  { id: "bulk-root" },
  el("summary", {}, "Change captions"),
  el(
    "form",
    { class: "bulk-form", onsubmit: (event) => (event.preventDefault(), showChanges()) },
    el("label", { for: "bulk-kind" }, "Change", kind),
    [findLabel, textLabel].map((label, at) => fill(label, [el("span"), [find, text][at]])),
    place,
    regex.row,
    matchCase.row,
    el("div", { class: "buttons" }, look, scope, unselect),
  ),
  note,
  progress,
  undo,
);

const drawForm = () => {
  const words = KINDS[kind.value];
  setText(findLabel.querySelector("span"), words.find);
  setText(textLabel.querySelector("span"), words.text);
  findLabel.hidden = !words.find;
  textLabel.hidden = !words.text;
  regex.row.hidden = matchCase.row.hidden = kind.value !== "replace";
  place.hidden = kind.value !== "add";
  look.disabled = !(words.find ? find.value : text.value.trim()) || (kind.value === "rename" && !text.value.trim());
  const count = selectedImages().length;
  setText(
    scope,
    count ? t`for the ${formatCount(count, "chosen image")}` : t`for all ${formatCount(shownCount, "shown image")}`,
  );
  unselect.hidden = !count;
};
whenSelected(drawForm);

/**
 * The tools, which keep what is typed over scans.
 *
 * @param {() => void} written called after captions were changed
 */
export const bulkTools = (written) => {
  onWritten = written;
  drawForm();
  watchWriting();
  return root;
};
/** @type {(answer: ScannedItems) => void} */
export const drawScope = (answer) => {
  [scan, shownCount] = [answer.scan, answer.of];
  drawForm();
};

const showChanges = async () => {
  const numbers = selectedImages();
  look.disabled = true;
  setText(note, "Reading captions…");
  try {
    const preview = await postJson("/scan/bulk/preview", {
      scan,
      numbers: numbers.length ? numbers : null,
      shown: imageFilter(),
      edit: {
        kind: kind.value,
        find: find.value,
        text: text.value,
        regex: regex.box.checked,
        match_case: matchCase.box.checked,
        at_end: place.value === "end",
      },
    });
    setText(note, "");
    openPreview(preview);
  } catch (error) {
    setText(note, error.message);
  }
  drawForm();
};

const PART = { same: "span", old: "del", new: "ins" };
const differenceRow = (row) =>
  el(
    "li",
    {},
    el("strong", { translate: "no" }, row.name),
    el("span", { class: "note", translate: "no" }, ` ${row.file}${row.is_new ? t(", new file") : ""}`),
    el("p", {}, row.parts.map(([how, words]) => el(PART[how], { translate: "no" }, words))),
  );
/** @type {(preview: BulkPreview) => void} */
const openPreview = (preview) => {
  let page = 0;
  const list = el("ul", { class: "differences", id: "bulk-differences", tabindex: 0, "aria-label": "Changes" });
  const pager = el("div", { class: "pager" });
  const count = t`${formatCount(preview.changes, "caption")} in ${formatCount(preview.files, "file")}`;
  const apply = el("button", { class: "primary", id: "bulk-apply", onclick: () => start() }, t`Change ${count}`);
  const draw = (shown) => {
    fill(list, shown.rows.map(differenceRow));
    list.scrollTop = 0;
    const turn = async (by) => {
      try {
        draw(await getJson("/scan/bulk/preview", { preview: preview.preview, page: (page += by) }));
      } catch (error) {
        showError(error);
      }
    };
    fill(
      pager,
      shown.pages > 1
        ? [
            el("button", { class: "small", disabled: page === 0, onclick: () => turn(-1) }, "← Previous"),
            el("span", { class: "note" }, t`Page ${page + 1} of ${formatWhole(shown.pages)}`),
            el("button", { class: "small", disabled: page >= shown.pages - 1, onclick: () => turn(1) }, "Next →"),
          ]
        : null,
    );
  };
  const start = async () => {
    apply.disabled = true;
    try {
      const work = await postJson("/scan/bulk/apply", { preview: preview.preview });
      box.close();
      followWriting(work, ended);
    } catch (error) {
      box.close();
      setText(note, error.message);
    }
  };
  const box = openDialog(
    preview.what,
    el("p", { class: "note", id: "bulk-count" }, preview.changes ? t`${count} will change.` : "No caption changes."),
    list,
    pager,
    skippedList(preview),
    el(
      "div",
      { class: "buttons" },
      preview.changes ? apply : null,
      el("button", { onclick: () => box.close() }, "Cancel"),
    ),
  );
  box.classList.add("wide-dialog");
  draw(preview);
  if (preview.changes) apply.focus();
};
const skippedList = (preview) =>
  preview.skipped_count
    ? el(
        "details",
        {},
        el("summary", {}, t`${formatCount(preview.skipped_count, "caption")} can't be read and stay as they are`),
        el(
          "ul",
          { class: "plain-list" },
          preview.skipped.map((row) => el("li", {}, el("code", {}, row.name), ` ${row.note}`)),
        ),
      )
    : null;

whenWritten((work) => drawUndo(work.state === "running" ? null : work.undo));
/** @type {(work: CaptionWork) => void} */
const ended = (work) => {
  setText(note, work.state === "failed" ? work.text : "");
  onWritten();
};
const when = (seconds) => new Date(1000 * seconds).toLocaleString(language === "en" ? "en-GB" : language);
const drawUndo = (entry) =>
  fill(
    undo,
    entry
      ? [
          el(
            "button",
            { class: "small", id: "bulk-undo", onclick: () => undoWriting(entry.id, ended) },
            "Undo",
          ),
          el(
            "span",
            { class: "note" },
            `${t(entry.what)} (${formatCount(entry.files, "file")}, ${when(entry.at)})`,
            entry.cut_off
              ? [". ", "This was cut off before its end: undo it to have all captions as before."]
              : null,
          ),
        ]
      : null,
  );
