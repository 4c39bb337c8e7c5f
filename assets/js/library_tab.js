// Draws the Library tab: earlier runs with their samples and LoRA files; a deleted run can be restored.

import { sendRequest } from "./bridge.js";
import { pathLine } from "./clipboard.js";
import { openDialog } from "./dialogs.js";
import { el, fill, whenPresent } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { getJson, postJson } from "./http.js";
import { loraButtons, loraPanel } from "./lora_file.js";
import { openPublish } from "./publish_dialog.js";
import { downloadLink } from "./run_file.js";
import { pollRuns } from "./run_list.js";
import { chooseRun, resumeRun } from "./run_tab.js";
import { samplePicture } from "./sample_panel.js";
import { on } from "./state.js";
import { currentTab, onTabOpened, openTab } from "./tabs.js";
import { showError, toast } from "./toasts.js";
/** @import { LibraryRun, RunFile } from "./server" */

let root = null;
let list = null;
let shown = "";

const WORDS = {
  starting: "starting",
  running: "running",
  stopping: "stopping",
  done: "finished",
  stopped: "stopped",
  failed: "failed",
  dead: "ended unexpectedly",
};

const refresh = async () => {
  if (!root || currentTab() !== "Library") return;
  try {
    const answer = await getJson("/library");
    const key = JSON.stringify(answer);
    if (key === shown) return;
    shown = key;
    draw(answer.runs);
  } catch (error) {
    showError(error);
  }
};

const metadata = async (run, file) => {
  try {
    const { metadata } = await getJson("/lora-metadata", { run, file });
    const rows = Object.entries(metadata);
    const box = openDialog(
      file,
      rows.length
        ? el(
            "div",
            { class: "scroll" },
            el(
              "table",
              { class: "facts" },
              el(
                "tbody",
                {},
                rows.map(([k, v]) => el("tr", {}, el("th", {}, k), el("td", {}, v))),
              ),
            ),
          )
        : el("p", { class: "note" }, "This file has no metadata."),
    );
    box.classList.add("wide-dialog");
  } catch (error) {
    showError(error);
  }
};

const remove = async (run) => {
  try {
    const { token } = await postJson("/delete", { run });
    shown = "";
    refresh();
    pollRuns();
    toast(`${run} was moved to the bin.`, {
      action: "Undo",
      onaction: async () => {
        try {
          await postJson("/restore", { token });
          shown = "";
          refresh();
          pollRuns();
        } catch (error) {
          showError(error);
        }
      },
    });
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

/**
 * @param {LibraryRun} run
 */
const runCard = (run) =>
  el(
    "article",
    { class: "card run-card", "data-run": run.name },
    el(
      "div",
      { class: "card-head" },
      el("h2", {}, run.name),
      el("span", { class: `state ${run.tone}` }, WORDS[run.state] || run.state),
    ),
    el(
      "p",
      { class: "note" },
      [
        run.when,
        run.total_steps
          ? `${(run.step || 0).toLocaleString("en")} of ${run.total_steps.toLocaleString("en")} steps`
          : null,
        run.bytes ? formatBytes(run.bytes) : null,
        run.best,
        run.memory ? `memory ${run.memory}` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
    run.pictures.length
      ? el(
          "div",
          { class: "strip small-strip" },
          run.pictures.map((file) =>
            el("img", { src: samplePicture(run.name, file), alt: "Sample of this run", loading: "lazy" }),
          ),
        )
      : null,
    files(run),
    el("p", { class: "note" }, "Folder"),
    pathLine(run.path),
    el(
      "div",
      { class: "buttons" },
      el("button", { onclick: () => (chooseRun(run.name), openTab("Run")) }, "Show run"),
      el(
        "button",
        {
          title: "Load this run's settings into the form",
          onclick: () => sendRequest("load-run", { name: run.name }),
        },
        "Load settings",
      ),
      run.resumable ? el("button", { onclick: () => resumeRun(run.name) }, "Resume") : null,
      run.live ? null : el("button", { class: "danger", onclick: () => remove(run.name) }, "Delete"),
    ),
  );

/**
 * @param {LibraryRun[]} runs
 */
const draw = (runs) => {
  if (!runs.length) {
    return fill(
      list,
      el(
        "div",
        { class: "empty" },
        el("h2", {}, "No runs yet"),
        el("p", {}, "Earlier runs are listed here, with their samples and LoRA files."),
      ),
    );
  }
  fill(
    list,
    el(
      "div",
      { class: "library" },
      runs.map(runCard),
    ),
  );
};

whenPresent("#library-root", (node) => {
  root = node;
  list = el("div", {});
  fill(root, loraPanel(), list);
  shown = "";
  refresh();
});
on("runs", refresh);
onTabOpened("Library", refresh);
