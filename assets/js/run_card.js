// Draws a run in the library: its state, samples, files, tags and notes, and what can be done with it.

import { sendRequest } from "./bridge.js";
import { pathLine } from "./clipboard.js";
import { openDialog } from "./dialogs.js";
import { el } from "./dom.js";
import { formatBytes, formatCount, formatWhole } from "./format.js";
import { address, getJson } from "./http.js";
import { t } from "./locale.js";
import { loraButtons } from "./lora_file.js";
import { openPublish } from "./publish_dialog.js";
import { downloadLink } from "./run_file.js";
import { runNotes } from "./run_notes.js";
import { chooseRun, resumeRun } from "./run_tab.js";
import { samplePicture } from "./sample_panel.js";
import { openTab } from "./tabs.js";
import { showError } from "./toasts.js";
import { openFurther } from "./train_further.js";
/** @import { LibraryRun } from "./library" */
/** @import { RunFile } from "./server" */

const WORDS = {
  starting: "starting",
  running: "running",
  stopping: "stopping",
  done: "finished",
  stopped: "stopped",
  failed: "failed",
  dead: "ended unexpectedly",
};

const metadata = async (run, file) => {
  try {
    const answer = await getJson("/lora-metadata", { run, file });
    const rows = Object.entries(answer.metadata);
    const line = ([k, v]) => el("tr", {}, el("th", {}, k), el("td", {}, v));
    const box = openDialog(
      file,
      rows.length
        ? el("div", { class: "scroll" }, el("table", { class: "facts" }, el("tbody", {}, rows.map(line))))
        : el("p", { class: "note" }, "This file has no metadata."),
    );
    box.classList.add("wide-dialog");
  } catch (error) {
    showError(error);
  }
};

/**
 * @param {LibraryRun} run
 * @param {RunFile} f
 */
const fileRow = (run, f) =>
  el(
    "div",
    { class: "file" },
    el(
      "div",
      { class: "file-head" },
      el("strong", {}, f.name, f.role ? el("span", { class: "tag" }, f.role) : null),
      el("span", { class: "note" }, formatBytes(f.size)),
    ),
    pathLine(
      f.path,
      f.folder
        ? null
        : [
            downloadLink(run.name, f.name),
            el("button", { class: "small", onclick: () => metadata(run.name, f.name) }, "Metadata"),
            f.model
              ? null
              : [
                  loraButtons(() => ({ run: run.name, file: f.name })),
                  el("button", { class: "small", onclick: () => openPublish(run.name, f.name) }, "Publish…"),
                ],
          ],
    ),
  );
// The final file, or else the newest; earlier ones are in a fold.
/**
 * @param {LibraryRun} run
 */
const files = (run) => {
  const first = run.files.find((f) => f.final) || run.files[run.files.length - 1];
  const rest = run.files.filter((f) => f !== first).reverse();
  return [
    first ? fileRow(run, first) : el("p", { class: "note" }, "This run saved no file."),
    rest.length
      ? el(
          "details",
          {},
          el("summary", {}, formatCount(rest.length, "other file")),
          rest.map((f) => fileRow(run, f)),
        )
      : null,
  ];
};

/** @param {LibraryRun} run */
const facts = (run) =>
  [
    run.when,
    run.total_steps
      ? t`${formatWhole(run.step || 0)} of ${formatWhole(run.total_steps)} steps`
      : null,
    run.bytes ? formatBytes(run.bytes) : null,
    run.best,
    run.memory ? t`memory ${run.memory}` : null,
  ]
    .filter(Boolean)
    .join(" · ");

/**
 * @param {LibraryRun} run
 * @param {(run: string) => void} remove
 */
const buttons = (run, remove) =>
  el(
    "div",
    { class: "buttons" },
    el("button", { onclick: () => (chooseRun(run.name), openTab("Run")) }, "Show run"),
    el(
      "button",
      { title: "Load this run's settings into the form", onclick: () => sendRequest("load-run", { name: run.name }) },
      "Load settings",
    ),
    run.resumable && run.state !== "done" ? el("button", { onclick: () => resumeRun(run.name) }, "Resume") : null,
    run.live
      ? null
      : el(
          "button",
          { title: "Continue this run to a new length", onclick: () => openFurther(run.name) },
          "Train further…",
        ),
    el(
      "a",
      {
        class: "button",
        href: address("/report", { run: run.name }),
        target: "_blank",
        rel: "noopener",
        title: "One HTML file with curves, samples, settings and files, without paths of this machine",
      },
      "Report",
    ),
    run.live ? null : el("button", { class: "danger", onclick: () => remove(run.name) }, "Delete"),
  );

/**
 * @param {LibraryRun} run
 * @param {object} actions
 * @param {boolean} actions.marked Whether it is chosen to be compared.
 * @param {(run: string, on: boolean) => boolean} actions.mark Returns whether it is chosen now.
 * @param {(run: string) => void} actions.remove
 * @param {() => void} actions.onsaved
 * @param {(tag: string) => void} actions.ontag
 */
export const runCard = (run, { marked, mark, remove, onsaved, ontag }) => {
  const box = el("input", { type: "checkbox", "aria-label": t`Compare ${run.name}`, checked: marked });
  box.addEventListener("change", () => (box.checked = mark(run.name, box.checked)));
  return el(
    "article",
    { class: "card run-card", "data-run": run.name, tabindex: 0, "aria-label": t`Run ${run.name}` },
    el(
      "div",
      { class: "card-head" },
      el("h2", { translate: "no" }, run.name),
      el(
        "span",
        { class: "card-tools" },
        el("label", { class: "check compare-check" }, box, "Compare"),
        el("span", { class: `state ${run.tone}` }, WORDS[run.state] || run.state),
      ),
    ),
    el("p", { class: "note" }, facts(run)),
    runNotes(run, { onsaved, ontag }),
    run.pictures.length
      ? el(
          "div",
          { class: "strip small-strip", tabindex: 0, role: "region", "aria-label": "Samples" },
          run.pictures.map((file) =>
            el("img", { src: samplePicture(run.name, file), alt: "Sample of this run", loading: "lazy" }),
          ),
        )
      : null,
    files(run),
    el("p", { class: "note" }, "Folder"),
    pathLine(run.path),
    buttons(run, remove),
  );
};
