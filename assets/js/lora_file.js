// Shows what a LoRA file holds and which programs load it: of a run, or of any path.

import { openDialog } from "./dialogs.js";
import { el, fill, table } from "./dom.js";
import { formatBytes, formatCount, formatNumber } from "./format.js";
import { getJson, postJson } from "./http.js";
import { language, t } from "./locale.js";
import { pathInput } from "./path_input.js";
import { showError } from "./toasts.js";
/** @import { LoraCheck, LoraReport } from "./lora" */

const EVERY_MS = 400;
const STRONGEST = 20;
const TITLES = { inspect: "Contents", check: "Programs that load it" };

const listed = (counts) => {
  const entries = Object.entries(counts);
  if (entries.length === 1) return entries[0][0];
  const words = entries.slice(0, 6).map(([value, count]) => `${value} (${count.toLocaleString(language)})`);
  return words.join(", ") + (entries.length > 6 ? " and others" : "");
};

const row = (title, ...values) =>
  el(
    "tr",
    {},
    el("th", {}, title),
    values.map((value) => el("td", {}, value)),
  );

/**
 * @param {LoraReport} report
 */
const reportNodes = (report) => {
  const facts = {
    Kind: listed(report.kinds),
    Family: report.family || "not known",
    Names: report.styles.join(", "),
    Size: `${formatBytes(report.bytes)}, ${formatCount(report.keys, "key")}, ${listed(report.formats)}`,
    Layers: t`${report.layers.length.toLocaleString(language)}, of these ${report.text_layers} of text encoders`,
    Rank: listed(report.ranks),
    Alpha: listed(report.alphas),
    Embeddings: report.embeddings.join(", "),
    "Other keys": Object.keys(report.others).length ? listed(report.others) : "",
  };
  const strongest = report.layers
    .filter((layer) => layer.norm !== null)
    .sort((a, b) => b.norm - a.norm)
    .slice(0, STRONGEST);
  return [
    report.problems.length
      ? el(
          "ul",
          { class: "problem-list lora-problems" },
          report.problems.map((text) => el("li", {}, text)),
        )
      : el("p", { class: "note" }, "No problem found: all numbers are finite, and no layer is 0 or lacks a part."),
    el(
      "table",
      { class: "facts" },
      el(
        "tbody",
        {},
        Object.entries(facts)
          .filter(([, value]) => value)
          .map(([title, value]) => row(title, value)),
      ),
    ),
    el(
      "details",
      {},
      el("summary", {}, "Strongest layers"),
      el("p", { class: "note" }, "Norm of the layer's change at strength 1."),
      table(
        ["Layer", "Rank", "Norm"],
        strongest.map((layer) => row(layer.name, String(layer.rank ?? "–"), formatNumber(layer.norm))),
        { class: "facts" },
      ),
    ),
  ];
};

/**
 * @param {LoraCheck} check
 */
const checkNodes = (check) => [
  el("p", { class: "note" }, t`Checked by the layers of ${check.family}, as it was published.`),
  table(
    ["Program", "Keys loaded", ""],
    check.programs.map((each) =>
      row(
        each.program,
        t`${each.loaded.toLocaleString(language)} of ${each.total.toLocaleString(language)}`,
        el(
          "div",
          {},
          each.error ? t`Does not load it: ${each.error}` : each.ignored.length ? "" : "Loads all of it.",
          each.note ? el("p", { class: "note" }, each.note) : null,
          each.ignored.length
            ? el(
                "details",
                {},
                el("summary", {}, t`Ignores ${formatCount(each.ignored.length, "key")}`),
                el(
                  "ul",
                  { class: "plain-list" },
                  each.ignored.map((key) => el("li", {}, key)),
                ),
              )
            : null,
        ),
      ),
    ),
    { class: "facts" },
  ),
];

// Asks the server, and shows its answer in a box over the page.
const ask = async (what, question) => {
  try {
    const { number } = await postJson("/lora", { what, ...question });
    const body = el("div", { class: "scroll lora-file" }, el("p", { class: "note" }, "Reading the file…"));
    const box = openDialog(`${t(TITLES[what])}: ${question.file.split(/[\\/]/).pop()}`, body);
    box.classList.add("wide-dialog");
    const follow = async () => {
      if (!box.isConnected) return;
      const answer = await getJson("/lora").catch(() => null);
      if (!answer || (answer.number === number && answer.state === "running")) return void setTimeout(follow, EVERY_MS);
      if (answer.number !== number) return fill(body, el("p", { class: "note" }, "Another file was asked for since."));
      if (answer.error) return fill(body, el("p", { class: "warning" }, answer.error));
      fill(body, what === "inspect" ? reportNodes(answer.result) : checkNodes(answer.result));
    };
    follow();
  } catch (error) {
    showError(error);
  }
};

// Inspect and Check; `question` says of which file: its name in a run, or a path.
export const loraButtons = (question) => [
  el(
    "button",
    {
      class: "small",
      title: "Kind, ranks, strength of each layer, and what is wrong",
      onclick: () => ask("inspect", question()),
    },
    "Inspect",
  ),
  el(
    "button",
    {
      class: "small",
      title: "Which keys diffusers, ComfyUI and sd-scripts load",
      onclick: () => ask("check", question()),
    },
    "Check",
  ),
];

// A box for any LoRA file.
export const loraPanel = () => {
  const path = el("input", { type: "text", id: "library-lora", spellcheck: "false" });
  const panel = el(
    "article",
    { class: "card", id: "library-lora-card" },
    el("div", { class: "card-head" }, el("h2", {}, "Any LoRA file")),
    el("label", {}, "Path", path),
    el(
      "div",
      { class: "buttons" },
      loraButtons(() => ({ run: null, file: path.value })),
    ),
  );
  pathInput(path);
  return panel;
};
