// Shows whether a run will fit: bars by stage and part against the GPU's memory, and the nearest change.

import { sendRequest } from "./bridge.js";
import { el, fill, table, whenPresent } from "./dom.js";
import { formatMemory } from "./format.js";
import { getJson } from "./http.js";
import { t } from "./locale.js";
import { on } from "./state.js";
/** @import { MemoryStage } from "./plan" */
/** @import { Answers } from "./server" */

const KEY = "monotile-card-gb";
// A part has the same name and colour in every bar.
const PARTS = [
  "weights",
  "weight_copies",
  "swap_ring",
  "text_encoders",
  "lora",
  "gradients",
  "optimizer",
  "ema",
  "other_expert",
  "activations",
  "recordings",
  "vae",
  "pictures",
  "workspace",
  "outside",
];
const TONES = { fits: "good", tight: "warn", does_not_fit: "bad", unknown: "calm" };

/**
 * @param {MemoryStage} stage
 */
const segments = (stage) =>
  [
    ...stage.parts,
    stage.outside ? { name: "outside", title: "CUDA context and reserve", bytes: stage.outside } : null,
  ].filter(Boolean);

/**
 * @param {Answers["/memory"]} facts
 */
const bars = (facts) => {
  const room = facts.on_card ? facts.room : null;
  const most = Math.max(room || 0, ...facts.stages.map((s) => (facts.on_card ? s.total : s.allocated)));
  const row = (stage) => {
    const size = facts.on_card ? stage.total : stage.allocated;
    const over = room !== null && size > room;
    const partList = segments(facts.on_card ? stage : { ...stage, outside: 0 })
      .map((p) => `${t(p.title)} ${formatMemory(p.bytes)}`)
      .join(", ");
    return el(
      "div",
      { class: `fit-row ${stage.name === facts.peak ? "peak" : ""} ${over ? "over" : ""}`, "data-stage": stage.name },
      el("span", { class: "fit-name" }, stage.title),
      el(
        "div",
        {
          class: "fit-track",
          role: "img",
          "aria-label": `${t(stage.title)}: ${formatMemory(size)}: ${partList}`,
          title: partList,
        },
        segments(facts.on_card ? stage : { ...stage, outside: 0 }).map((p) =>
          el("span", { class: `fit-part p-${p.name}`, style: `width:${(100 * p.bytes) / most}%` }),
        ),
        room === null ? null : el("span", { class: "fit-limit", style: `left:${(100 * room) / most}%` }),
      ),
      el("span", { class: "fit-size" }, formatMemory(size)),
    );
  };
  return el("div", { class: "fit-bars" }, facts.stages.map(row));
};

// Every part that has a colour in the bars, with its size in the stage that needs most.
/**
 * @param {Answers["/memory"]} facts
 */
const legend = (facts) => {
  const peak = facts.stages.find((s) => s.name === facts.peak);
  /** @type {(stage: any) => [string, any][]} */
  const parts = (stage) => segments(facts.on_card ? stage : { ...stage, outside: 0 }).map((p) => [p.name, p]);
  const most = new Map(parts(peak));
  const all = new Map(facts.stages.flatMap(parts));
  return el(
    "ul",
    { class: "fit-legend", "aria-label": t`${peak.title}, by part` },
    PARTS.filter((name) => all.has(name)).map((name) =>
      el(
        "li",
        {},
        el("span", { class: `fit-key p-${name}` }),
        el("span", {}, all.get(name).title),
        most.has(name) ? el("strong", {}, formatMemory(most.get(name).bytes)) : null,
      ),
    ),
  );
};

/**
 * @param {Answers["/memory"]} facts
 */
const stageTable = (facts) => {
  const names = PARTS.filter(
    (name) => name !== "outside" && facts.stages.some((s) => s.parts.some((p) => p.name === name)),
  );
  const title = (name) => facts.stages.flatMap((s) => s.parts).find((p) => p.name === name).title;
  const cell = (stage, name) => stage.parts.find((p) => p.name === name)?.bytes;
  return el(
    "details",
    {},
    el("summary", {}, "By stage and part"),
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "By stage and part" },
      table(
        ["", ...facts.stages.map((s) => s.title)],
        [
          names.map((name) =>
            el(
              "tr",
              {},
              el("th", {}, title(name)),
              facts.stages.map((s) => el("td", {}, cell(s, name) ? formatMemory(cell(s, name)) : "–")),
            ),
          ),
          facts.on_card
            ? el(
                "tr",
                {},
                el("th", {}, "CUDA context and reserve"),
                facts.stages.map((s) => el("td", {}, formatMemory(s.outside))),
              )
            : null,
          el(
            "tr",
            {},
            el("th", {}, "Total"),
            facts.stages.map((s) =>
              el("td", {}, el("strong", {}, formatMemory(facts.on_card ? s.total : s.allocated))),
            ),
          ),
        ],
      ),
    ),
  );
};

/**
 * @param {Answers["/memory"]["nearest"]} nearest
 */
const advice = (nearest) =>
  el(
    "div",
    { class: "fit-advice", id: "fit-advice" },
    el(
      "div",
      {},
      el("strong", {}, nearest.fits ? "Smallest change that fits" : "Closest possible, but it does not fit"),
      el("p", {}, nearest.words),
      el("p", { class: "note" }, t`Cost: ${nearest.costs.join("; ")}.`),
    ),
    el(
      "button",
      { class: "primary", id: "fit-apply", onclick: () => sendRequest("apply", { change: nearest.values }) },
      "Apply",
    ),
  );

let node = null;
let last = null;
let requests = 0;
const result = el("div", { id: "estimate" });
const gpu = el("input", {
  id: "fit-gpu",
  type: "text",
  inputmode: "decimal",
  placeholder: "this machine",
  autocomplete: "off",
  value: localStorage.getItem(KEY) || "",
});
const size = () => {
  const gigabytes = Number(gpu.value.replace(",", "."));
  return gigabytes > 0 && gigabytes <= 4096 ? gigabytes : null;
};
const update = async () => {
  if (!node) return;
  const number = ++requests;
  if (!last) fill(result, el("p", { class: "note" }, "Estimating…"));
  try {
    const answer = await getJson("/memory", { vram: size() });
    const key = JSON.stringify(answer);
    if (number !== requests || key === last) return;
    last = key;
    draw(answer);
  } catch (error) {
    last = null;
    fill(result, el("p", { class: "note" }, error.message));
  }
};
/**
 * @param {Answers["/memory"]} facts
 */
const draw = (facts) => {
  if (facts.reason) return fill(result, el("p", { class: "note" }, facts.reason));
  fill(
    result,
    el(
      "div",
      { class: `verdict ${TONES[facts.verdict]}`, id: "fit-verdict", "data-verdict": facts.verdict },
      facts.headline,
    ),
    facts.nearest ? advice(facts.nearest) : null,
    facts.problems.map((text) => el("p", { class: "note bad" }, text)),
    bars(facts),
    legend(facts),
    el("p", { class: `note ${facts.ram_verdict === "does_not_fit" ? "bad" : ""}`, id: "fit-ram" }, facts.ram_words),
    el(
      "p",
      { class: "note" },
      t`Estimated for ${facts.sizes}. No model is loaded for this.`,
      facts.rough ? " A rough estimate: this family's activations are not measured yet." : null,
    ),
    stageTable(facts),
  );
};
let typing = null;
gpu.addEventListener("input", () => {
  localStorage.setItem(KEY, gpu.value);
  clearTimeout(typing);
  typing = setTimeout(update, 300);
});
whenPresent("#estimate-root", (root) => {
  node = root;
  last = null;
  fill(
    node,
    el(
      "div",
      { class: "panel-head" },
      el("label", { class: "fit-ask" }, el("span", {}, "GPU memory (GB)"), gpu),
      el("span", { class: "note scan-note" }, "Leave empty for this machine's GPU, or give the size of another one."),
    ),
    result,
  );
  update();
});
on("draft", update);
