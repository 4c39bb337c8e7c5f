// Draws the Preview tab: asks the worker for pictures of a run's checkpoints or of any LoRA file, and shows them.

import { el, fill, setText, whenPresent } from "./dom.js";
import { formatCount, formatMemory } from "./format.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { PreviewControls } from "./preview_controls.js";
import { keepTyped, putBackTyped } from "./preview_kept.js";
import { PreviewLoras } from "./preview_loras.js";
import { PreviewMemory } from "./preview_memory.js";
import { PreviewResult } from "./preview_result.js";
import { on } from "./state.js";
import { currentTab, onTabOpened } from "./tabs.js";
import { showError } from "./toasts.js";
/** @import { PreviewRequest, PreviewSource, PreviewState } from "./preview" */

const FORM_BASE = "";
const BUSY = new Set(["waiting", "drawing"]);
const PHASES = {
  controls: "Encoding the control images",
  text: "Encoding the prompts",
  load: "Loading the model",
  sample: "Sampling",
  decode: "Decoding",
  wait: "Waiting for the next checkpoint",
  turn: "Waiting for the run to give the GPU",
};
const NUMBERS = {
  seed: ["Seed", 42, 1],
  width: ["Width", 1024, 8],
  height: ["Height", 1024, 8],
  steps: ["Steps", 28, 1],
  guidance_scale: ["Guidance", 3.5, 0.1],
  true_cfg_scale: ["True CFG", 1, 0.1],
};

let ui = null;
/** @type {PreviewSource[]} */
let sources = [];
// What the form's base model takes besides a prompt.
let formTakes = {};
// Whether a person wrote prompts, or chose where base model and settings come from.
let touched = false;
let picked = false;

const labelled = (title, node) => el("label", {}, title, node);

const makeNumbers = () =>
  Object.fromEntries(
    Object.entries(NUMBERS).map(([name, [, value, step]]) => [
      name,
      el("input", { type: "number", id: `preview-${name}`, value: String(value), step: String(step) }),
    ]),
  );

const build = (root) => {
  const numbers = makeNumbers();
  const touch = () => (touched = true);
  const source = el("select", { id: "preview-source", onchange: () => ((picked = true), chooseSource(true)) });
  const files = el("select", { id: "preview-files", multiple: true, size: "5" });
  const follow = el("input", { type: "checkbox", id: "preview-follow" });
  const loras = new PreviewLoras();
  const strength = el("input", { type: "text", id: "preview-strength", value: "1", inputmode: "decimal" });
  strength.title = t("Several, such as 0.5, 0.75, 1, make a matrix of one checkpoint.");
  const prompts = el("textarea", { id: "preview-prompts", rows: "4", oninput: touch });
  const negative = el("input", { type: "text", id: "preview-negative" });
  const drawButton = el("button", { class: "primary", id: "preview-draw", onclick: draw }, "Draw");
  const classButton = el("button", { id: "preview-class-images", hidden: true, onclick: drawClassImages });
  classButton.title = t("With the base model of the form, into its regularization folders. Drawing again continues.");
  const cancelButton = el("button", { id: "preview-cancel", onclick: () => ask("/preview/cancel") }, "Cancel");
  const endButton = el("button", { id: "preview-end", onclick: () => ask("/preview/end") }, "End preview");
  endButton.title = t("Give the memory back. It also ends by itself after ten minutes, and when a run needs the GPU.");
  const status = el("p", { id: "preview-status", role: "status" });
  const notes = el("ul", { class: "plain-list", id: "preview-notes", hidden: true });
  const result = el("div", { class: "preview-result" });
  const memory = new PreviewMemory(asked);
  const controls = new PreviewControls(() => memory.later());
  const typed = { prompts, negative, strength, ...numbers };
  const change = () => {
    memory.later();
    if (touched) keepTyped(typed);
  };
  touched ||= putBackTyped(typed);
  const form = el(
    "div",
    { class: "preview-form", oninput: change, onchange: change },
    labelled("Base model and settings of", source),
    labelled("Checkpoints (several make a matrix)", files),
    el("label", { class: "preview-follow check" }, follow, "All checkpoints, and each new one while the run trains"),
    labelled("Strength of the checkpoint (several make a matrix)", strength),
    loras.node,
    labelled("Prompts, one a line", prompts),
    labelled("Negative prompt (needs True CFG above 1)", negative),
    controls.node,
    el(
      "div",
      { class: "preview-numbers" },
      Object.entries(numbers).map(([name, node]) => labelled(NUMBERS[name][0], node)),
    ),
    memory.node,
    el("div", { class: "buttons" }, drawButton, classButton, cancelButton, endButton),
  );
  fill(root, el("div", { class: "preview" }, form, el("div", { class: "preview-result" }, status, notes, result)));
  const parts = { memory, controls, source, follow, files, loras, strength, prompts, negative, numbers, status, notes };
  ui = { ...parts, drawButton, classButton, cancelButton, endButton, result: new PreviewResult(result) };
};

// Only where a folder of the form asks for class images.
const showClassImages = (missing) => {
  ui.classButton.hidden = missing === null;
  setText(ui.classButton, missing ? t`Draw ${formatCount(missing, "class image")}` : "All class images are there");
  ui.classesMissing = missing;
};

const drawClassImages = () => ask("/preview/class_images");

const ask = async (route) => {
  try {
    await postJson(route);
  } catch (error) {
    showError(error);
  }
  refresh();
};

const loadSources = async () => {
  if (!ui || currentTab() !== "Preview") return;
  try {
    const answer = await getJson("/preview/sources");
    showClassImages(answer.class_images);
    const takes = { controls: answer.controls, clips: answer.clips, base: answer.base };
    const same = JSON.stringify([answer.runs, takes]) === JSON.stringify([sources, formTakes]);
    if (same && ui.source.options.length) return;
    formTakes = takes;
    const before = ui.source.value;
    const first = !picked && (!ui.source.options.length || before === FORM_BASE);
    sources = answer.runs;
    fill(
      ui.source,
      sources.map((run) => el("option", { value: run.name }, t`run ${run.name}`)),
      el("option", { value: FORM_BASE }, answer.base ? t`the form: ${answer.base}` : "the form (no base model yet)"),
    );
    if (!first && [...ui.source.options].some((option) => option.value === before)) ui.source.value = before;
    chooseSource(first);
  } catch (error) {
    showError(error);
  }
};

// The files of the chosen run; and its prompts with their settings, unless a person wrote others.
const chooseSource = (fresh) => {
  const run = sources.find((each) => each.name === ui.source.value);
  const selected = new Set([...ui.files.selectedOptions].map((option) => option.value));
  const newest = run?.files[run.files.length - 1]?.name;
  fill(
    ui.files,
    (run?.files || []).map((file) => {
      const option = el("option", { value: file.name }, file.title);
      option.selected = fresh || !selected.size ? file.name === newest : selected.has(file.name);
      return option;
    }),
  );
  ui.controls.show(run || formTakes);
  ui.files.disabled = !run;
  ui.follow.disabled = !run?.live;
  ui.follow.checked &&= Boolean(run?.live);
  ui.memory.later();
  if (!fresh || touched || !run?.prompts.length) return;
  ui.prompts.value = run.prompts.map((prompt) => prompt.prompt.replaceAll("\n", " ")).join("\n");
  ui.negative.value = run.prompts[0].negative_prompt;
  ui.controls.use(run.prompts[0]);
  for (const name of Object.keys(NUMBERS)) ui.numbers[name].value = String(run.prompts[0][name]);
};

// The numbers in a text, which commas, semicolons or blanks part.
const numbersIn = (text) => text.split(/[\s,;]+/).filter(Boolean).map(Number);

// What the form asks for, as the server takes it.
const asked = () => ({
  ...strengthsAsked(),
  run: ui.source.value === FORM_BASE ? null : ui.source.value,
  files: ui.follow.checked ? [] : [...ui.files.selectedOptions].map((option) => option.value),
  follow: ui.follow.checked && ui.source.value !== FORM_BASE,
  loras: ui.loras.asked,
  prompts: ui.prompts.value.split("\n"),
  negative_prompt: ui.negative.value,
  changes: ui.memory.changes,
  ...ui.controls.asked,
  ...Object.fromEntries(Object.entries(ui.numbers).map(([name, node]) => [name, Number(node.value)])),
});

const strengthsAsked = () => {
  const strengths = numbersIn(ui.strength.value);
  return strengths.length > 1 ? { strengths } : { strength: strengths[0] ?? 1 };
};

const draw = async () => {
  ui.drawButton.disabled = true;
  try {
    await postJson("/preview/draw", asked());
  } catch (error) {
    showError(error);
  }
  await refresh();
};

/** @param {PreviewRequest} request */
const progress = (request) => {
  if (request.state === "waiting") return "Starting…";
  const count = request.rows.length * request.prompts.length;
  const parts = [PHASES[request.phase] || "Drawing"];
  if (request.phase === "wait") return `${parts[0]} · ${formatCount(request.pictures.length, "picture")}`;
  if (count > 1) parts.push(t`picture ${Math.min(request.pictures.length + 1, count)} of ${count}`);
  if (request.phase === "sample" && request.total) parts.push(t`step ${request.done} of ${request.total}`);
  if (request.phase === "sample" && request.done <= 1) parts.push("the first step compiles, where compile is on");
  if (request.eta_s) parts.push(t`${Math.ceil(request.eta_s)} s left`);
  return parts.join(" · ");
};

/** @param {PreviewRequest} request */
const outcome = (request) => {
  const parts = [{ done: "Done", cancelled: "Cancelled", failed: "Failed" }[request.state] || ""];
  if (request.state === "cancelled" && request.why) parts.push(request.why);
  const took = request.account;
  if (took) {
    const compiles = took.compiled === "compiled" || took.compiled === "partly";
    const start = compiles ? t`${took.cold ? "cold" : "warm"} start, ${took.compile_s} s of it compiling` : "start";
    parts.push(t`first picture after ${took.first_s} s (${start})`, t`newest in ${took.last_s} s`);
    if (took.compiled === "off") parts.push("compile is off");
    else {
      const recompiles = formatCount(took.recompiles, "recompile") + (took.why ? ` (${took.why})` : "");
      parts.push(`${formatCount(took.graphs, "graph")}, ${recompiles}`);
    }
    const estimated = took.estimated_vram ? t` (estimated ${formatMemory(took.estimated_vram)})` : "";
    if (took.peak_vram) parts.push(t`VRAM ${formatMemory(took.peak_vram)} at most${estimated}`);
  }
  return parts.join(" · ");
};

/** @param {PreviewState} state */
const show = ({ worker, request }) => {
  const busy = Boolean(request && BUSY.has(request.state));
  // what was drawn may be class images, of which fewer are missing now
  if (ui.busy && !busy) loadSources();
  ui.busy = busy;
  ui.drawButton.disabled = busy;
  ui.classButton.disabled = busy || !ui.classesMissing;
  ui.cancelButton.disabled = !busy;
  ui.endButton.disabled = !worker.alive;
  ui.status.dataset.state = request?.state || "none";
  ui.status.dataset.recompiles = String(request?.account?.recompiles ?? "");
  ui.status.classList.toggle("bad", request?.state === "failed");
  if (!request) return setText(ui.status, "Nothing drawn yet. The model stays loaded while you try prompts.");
  const where = worker.alive && worker.device ? ` · ${worker.device}` : "";
  if (request.state === "failed") setText(ui.status, `${request.error?.text} ${request.error?.remedy}`);
  else setText(ui.status, (busy ? progress(request) : outcome(request)) + where);
  ui.notes.hidden = !request.notes.length;
  fill(
    ui.notes,
    request.notes.map((note) => el("li", {}, note)),
  );
  ui.result.show(request);
  return undefined;
};

let asking = false;
const refresh = async () => {
  if (!ui || asking || currentTab() !== "Preview" || document.visibilityState !== "visible") return;
  asking = true;
  try {
    show(await getJson("/preview/state"));
  } catch {
    // the list of runs says when the server is gone
  }
  asking = false;
};

whenPresent("#preview-root", (node) => {
  build(node);
  loadSources();
  refresh();
});
// A run that trains adds files now and then; to look for them reads every run.
let looked = 0;
on("runs", () => {
  if (Date.now() - looked < 10_000) return;
  looked = Date.now();
  loadSources();
});
onTabOpened("Preview", () => {
  loadSources();
  refresh();
});
setInterval(refresh, 700);
