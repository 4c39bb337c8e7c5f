// Edits a list of rows (image folders, sample prompts), one box for each row.

import { el, fill } from "./dom.js";
import { drawIcon } from "./icons.js";
import { t } from "./locale.js";
import { pathInput } from "./path_input.js";
import { on, pageState } from "./state.js";
import { toast } from "./toasts.js";
/** @import { Column, Setting } from "./server" */

const LONG = new Set(["text", "path"]);
const isLong = (column, index) =>
  LONG.has(column.kind) || column.name === "prompt" || (index === 0 && column.kind === "str");

const isUntouched = (row, column) => {
  const value = row[column.name];
  return value === undefined || value === null || String(value) === String(column.default ?? "");
};

export const editTable = (element, props, changed, watch) => {
  const root = element.querySelector(".rows-root") || element;
  const field = element.closest("[id^='f-']") || element;
  /** @type {Setting | null} */
  let setting = null;
  /** @type {Column[]} */
  let columns = [];
  let rows = [];

  // The object that the server sent must not be edited in place: a change has to be a new value.
  const publish = (redraw) => {
    clearTimeout(pause);
    props.value = rows.map((row) => ({ ...row }));
    changed();
    if (redraw) draw();
  };
  // While typing a change is kept after a pause, so that even a reload in mid-word loses little.
  let pause = null;
  const soon = () => {
    clearTimeout(pause);
    pause = setTimeout(publish, 700);
  };
  const fresh = () => {
    const last = rows[rows.length - 1];
    const row = {};
    for (const c of columns) {
      if (c.default === null || c.default === undefined) continue;
      row[c.name] = last && !isLong(c, columns.indexOf(c)) && last[c.name] !== undefined ? last[c.name] : c.default;
    }
    return row;
  };

  const cell = (row, column, index, rowIndex) => {
    const value = row[column.name];
    const id = `row-${field.id}-${rowIndex}-${column.name}`;
    const set = (v) => (row[column.name] = v);
    let box;
    if (column.kind === "bool") {
      box = el("input", { type: "checkbox", id, onchange: (e) => (set(e.target.checked), publish()) });
      box.checked = Boolean(value);
    } else if (column.kind === "choice") {
      box = el(
        "select",
        { id, onchange: (e) => (set(e.target.value), publish()) },
        el("option", { value: "" }, "not set"),
        column.choices.map((c) => el("option", { value: c }, c)),
      );
      box.value = value ?? "";
    } else {
      const long = column.kind === "text" || column.name === "prompt" || column.name === "negative_prompt";
      box = el(long ? "textarea" : "input", {
        id,
        rows: long ? (column.name === "prompt" ? 2 : 1) : null,
        type: long ? null : "text",
        inputmode: column.kind === "int" ? "numeric" : column.kind === "float" ? "decimal" : null,
        placeholder: column.default === null || column.default === "" ? "not set" : String(column.default),
        spellcheck: long ? "true" : "false",
        oninput: (e) => (set(e.target.value), soon()),
        onchange: () => publish(),
      });
      box.value = value ?? "";
      if (column.kind === "path") pathInput(box, column.name.endsWith("_file") ? "any" : "folder");
    }
    const untouched = isUntouched(row, column);
    return el(
      "label",
      {
        class: `cell ${isLong(column, index) ? "long" : ""} cell-${column.kind} ${untouched ? "is-untouched" : ""}`,
        for: id,
        title: column.help,
        "data-column": column.name,
      },
      el("span", {}, column.label),
      box,
    );
  };

  const cells = (row, advanced, rowIndex) =>
    el(
      "div",
      { class: "row-cells" },
      columns.map((c, index) => (c.advanced === advanced ? cell(row, c, index, rowIndex) : null)),
    );

  const move = (from, to) => {
    const [row] = rows.splice(from, 1);
    rows.splice(to, 0, row);
    publish(true);
  };
  const remove = (at) => {
    const [row] = rows.splice(at, 1);
    publish(true);
    const back = () => (rows.splice(at, 0, row), publish(true));
    toast(t`${setting.label}: row ${at + 1} removed.`, { action: "Undo", onaction: back });
  };
  const tool = (label, icon, onclick, disabled) =>
    el(
      "button",
      { type: "button", class: "quiet", "aria-label": label, title: label, disabled, onclick },
      drawIcon(icon),
    );

  const draw = () => {
    const cards = rows.map((row, i) =>
      el(
        "div",
        { class: "row-card", role: "group", "aria-label": `${setting.label} ${i + 1}`, "data-row": i },
        el(
          "div",
          { class: "row-head" },
          el("span", { class: "row-number" }, String(i + 1)),
          el(
            "span",
            { class: "row-tools" },
            tool("Move up", "up", () => move(i, i - 1), i === 0),
            tool("Move down", "down", () => move(i, i + 1), i === rows.length - 1),
            tool("Duplicate", "copy", () => (rows.splice(i + 1, 0, { ...row }), publish(true))),
            tool("Remove", "remove", () => remove(i)),
          ),
        ),
        cells(row, false, i),
        columns.some((c) => c.advanced)
          ? el(
              "details",
              { class: "row-more", open: columns.some((c) => c.advanced && !isUntouched(row, c)) },
              el("summary", {}, "More"),
              cells(row, true, i),
            )
          : null,
      ),
    );
    fill(
      root,
      el(
        "div",
        { class: "rows-title" },
        el("span", { class: "rows-label" }, setting.label),
        el("span", { class: "rows-note" }, setting.help),
      ),
      cards,
      el(
        "button",
        { type: "button", class: "small add", onclick: () => (rows.push(fresh()), publish(true), focusLast()) },
        rows.length ? "+ Add another" : "+ Add",
      ),
    );
    markProblems(pageState.problems);
    markLacking();
  };
  // What the chosen family lacks is hidden, unless somebody set it.
  const markLacking = () => {
    const lacking = pageState.draft.lackingColumns || [];
    root
      .querySelectorAll("[data-column]")
      .forEach((node) => node.classList.toggle("is-lacking", lacking.includes(node.dataset.column)));
  };
  const focusLast = () => root.querySelector(".row-card:last-of-type textarea, .row-card:last-of-type input")?.focus();

  const markProblems = (problems) => {
    root.querySelectorAll("[aria-invalid]").forEach((node) => node.removeAttribute("aria-invalid"));
    for (const problem of problems) {
      const at = problem.id === field.id && /\[(\d+)\](?:\.(\w+))?/.exec(problem.path || "");
      if (!at) continue;
      const card = root.querySelector(`[data-row="${at[1]}"]`);
      const where = at[2] ? card?.querySelector(`[data-column="${at[2]}"]`) : card;
      where?.querySelector("input, textarea, select")?.setAttribute("aria-invalid", "true");
      const fold = where?.closest("details");
      if (fold) fold.open = true;
    }
  };

  const readValue = () => {
    setting = pageState.settings.find((s) => s.id === field.id);
    if (!setting) return;
    columns = setting.columns;
    rows = (Array.isArray(props.value) ? props.value : []).map((row) => ({ ...row }));
    draw();
  };
  watch("value", readValue);
  on("problems", markProblems);
  on("draft", markLacking);
  on("settings", readValue);
  readValue();
};
