// Lists a run's LoRA files, or the whole models that it saved.

import { pathLine } from "./clipboard.js";
import { el, fill } from "./dom.js";
import { formatBytes } from "./format.js";
import { language, t } from "./locale.js";
import { openPublish } from "./publish_dialog.js";
import { downloadLink } from "./run_file.js";
import { fillEmpty } from "./run_states.js";
/** @import { RunFacts, RunStatus } from "./server" */

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunFacts} facts
 * @param {RunStatus} status
 */
export const drawFiles = (ui, facts, status) => {
  const list = facts.checkpoints || [];
  if (!list.length)
    return fillEmpty(
      ui.files,
      status,
      "No file yet. One is saved at the end and when you press Stop. Save now saves one at once.",
      "No file was saved.",
    );
  fill(
    ui.files,
    list
      .slice()
      .reverse()
      .map((f) =>
        el(
          "div",
          { class: `file ${f.final ? "final" : ""}` },
          el(
            "div",
            { class: "file-head" },
            el(
              "strong",
              {},
              f.name,
              f.final ? el("span", { class: "tag good" }, "final") : null,
              f.role ? el("span", { class: "tag" }, f.role) : null,
            ),
            el(
              "span",
              { class: "note" },
              [
                f.step !== null && f.step !== undefined ? t`step ${f.step.toLocaleString(language)}` : "",
                formatBytes(f.size),
              ]
                .filter(Boolean)
                .join(" · "),
            ),
          ),
          pathLine(
            f.path,
            f.folder
              ? null
              : [
                  downloadLink(status.name, f.name),
                  f.model
                    ? null
                    : el("button", { class: "small", onclick: () => openPublish(status.name, f.name) }, "Publish…"),
                ],
          ),
        ),
      ),
  );
};
