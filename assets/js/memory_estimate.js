// Shows whether a run will fit: bars by stage and part against the GPU's memory, and the nearest change.

import { sendRequest } from "./bridge.js";
import { el, fill, whenPresent } from "./dom.js";
import { formatMemory } from "./format.js";
import { getJson } from "./http.js";
import { on } from "./state.js";
/** @import { Answers, MemoryStage } from "./server" */

const KEY = "monotile-card-gb";
// What one part is called and coloured is the same in every bar.
const PARTS = [
  "weights",
  "swap_ring",
  "text_encoders",
  "lora",
  "gradients",
  "optimizer",
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
    stage.outside ? { name: "outside", title: "CUDA itself, slack", bytes: stage.outside } : null,
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
    const said = segments(facts.on_card ? stage : { ...stage, outside: 0 })
      .map((p) => `${p.title} ${formatMemory(p.bytes)}`)
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
          "aria-label": `${stage.title}: ${formatMemory(size)}: ${said}`,
          title: said,
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

// Every part that has a colour in the bars; the sizes are those of the stage that needs most.
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
    { class: "fit-legend", "aria-label": `${peak.title}, by part` },
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
const table = (facts) => {
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
      { class: "scroll" },
      el(
        "table",
        { class: "facts numbers" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", {}, ""),
            facts.stages.map((s) => el("th", {}, s.title)),
          ),
        ),
        el("tbody", {}, [
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
                el("th", {}, "CUDA itself, slack"),
                facts.stages.map((s) => el("td", {}, formatMemory(s.outside))),
              )
            : null,
          el(
            "tr",
            {},
            el("th", {}, "in all"),
            facts.stages.map((s) =>
              el("td", {}, el("strong", {}, formatMemory(facts.on_card ? s.total : s.allocated))),
            ),
          ),
        ]),
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
      el("strong", {}, nearest.fits ? "The nearest change that fits" : "The nearest there is"),
      el("p", {}, nearest.words),
      el("p", { class: "note" }, `It costs ${nearest.costs.join("; ")}.`),
    ),
    el(
      "button",
      { class: "primary", id: "fit-apply", onclick: () => sendRequest("apply", { change: nearest.values }) },
      "Apply",
    ),
  );

let node = null;
let last = null;
let turn = 0;
const result = el("div", { id: "estimate" });
const card = el("input", {
  id: "fit-card",
  type: "text",
  inputmode: "decimal",
  placeholder: "this machine's",
  autocomplete: "off",
  value: localStorage.getItem(KEY) || "",
});
const size = () => {
  const number = Number(card.value.replace(",", "."));
  return number > 0 && number <= 4096 ? number : null;
};
const update = async () => {
  if (!node) return;
  const mine = ++turn;
  if (!last) fill(result, el("p", { class: "note" }, "Working it out …"));
  try {
    const answer = await getJson("/memory", { vram: size() });
    const key = JSON.stringify(answer);
    if (mine !== turn || key === last) return;
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
  if (facts.said) return fill(result, el("p", { class: "note" }, facts.said));
  fill(
    result,
    el(
      "div",
      { class: `verdict ${TONES[facts.verdict]}`, id: "fit-verdict", "data-verdict": facts.verdict },
      facts.headline,
    ),
    facts.nearest ? advice(facts.nearest) : null,
    facts.problems.map((said) => el("p", { class: "note bad" }, said)),
    bars(facts),
    legend(facts),
    el("p", { class: `note ${facts.ram_verdict === "does_not_fit" ? "bad" : ""}`, id: "fit-ram" }, facts.ram_words),
    el(
      "p",
      { class: "note" },
      `Worked out from ${facts.sizes}; nothing is loaded for it.`,
      facts.rough ? " A rough figure: this family's activations are not measured yet." : null,
    ),
    table(facts),
  );
};
let typing = null;
card.addEventListener("input", () => {
  localStorage.setItem(KEY, card.value);
  clearTimeout(typing);
  typing = setTimeout(update, 300);
});
whenPresent("#estimate-root", (found) => {
  node = found;
  last = null;
  fill(
    node,
    el(
      "div",
      { class: "look-head" },
      el("label", { class: "fit-ask" }, el("span", {}, "Card memory (GB)"), card),
      el("span", { class: "note look-note" }, "Empty: the card of this machine. A number plans for another."),
    ),
    result,
  );
  update();
});
on("desk", update);
