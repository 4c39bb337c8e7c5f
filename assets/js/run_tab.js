// Fills the Run tab from the run's own folder, once a second, whoever started the run.

import { drawCompile } from "./compile_panel.js";
import { el, fill, setText, whenPresent } from "./dom.js";
import { drawFiles } from "./file_panel.js";
import { getJson, postJson } from "./http.js";
import { language, t } from "./locale.js";
import { lossChart } from "./loss_chart.js";
import { drawMemoryNow, memoryChart, memorySentence, processesSentence, swapSentence } from "./memory_chart.js";
import { normChart } from "./norm_chart.js";
import { runFrame } from "./run_frame.js";
import { pollRuns } from "./run_list.js";
import { LIVE, STATES } from "./run_states.js";
import { clearStatus, drawStatus } from "./run_status.js";
import { drawSamples } from "./sample_panel.js";
import { joinSeries } from "./series.js";
import { on, pageState } from "./state.js";
import { currentTab, keptTab, onTabOpened, openTab } from "./tabs.js";
import { showError, toast } from "./toasts.js";
import { openFurther } from "./train_further.js";
import { validationChart } from "./validation_chart.js";
import { drawValidation } from "./validation_panel.js";
import { drawWarnings } from "./warnings_panel.js";
/** @import { LiveRun, MetricsRow, RunFacts, RunStatus, Series } from "./server" */

/** @typedef {{since: number, until: number}} Zoom */
/**
 * @returns {{
 *   key: string | null, seen: string | null, zoom: Zoom | null, facts: RunFacts | null, live: boolean | null,
 *   series: Series | null, logOffset: number,
 * }}
 */
const fresh = () => ({ key: null, seen: null, zoom: null, facts: null, live: null, series: null, logOffset: 0 });
/** @type {{run: string | null, status: RunStatus | null, last: MetricsRow | null} & ReturnType<typeof fresh>} */
const view = { run: null, status: null, last: null, ...fresh() };
/** @type {import("./run_frame.js").RunFrame | null} */
let ui = null;
/**
 * @type {{
 *   loss: ReturnType<typeof lossChart>, memory: ReturnType<typeof memoryChart>, norms: ReturnType<typeof normChart>,
 *   validation: ReturnType<typeof validationChart>,
 * } | null}
 */
let charts = null;

whenPresent("#run-root", (root) => {
  ui = runFrame(root, {
    choose: chooseRun,
    request: requestOfRun,
    resume: () => resumeRun(view.run),
    further: () => openFurther(view.run),
    smooth: () => charts.loss.draw(view.series),
    logScale: (on) => charts.loss.log(on),
    wholeRun: () => charts.loss.reset(),
  });
  charts = {
    loss: lossChart(ui, zoom),
    memory: memoryChart(ui.memory),
    norms: normChart(ui.norms),
    validation: validationChart(ui.validationPlot),
  };
  drawPicker();
  if (view.run) {
    restart();
    poll(true);
  }
});
const zoom = (range) => {
  view.zoom = range;
  view.key = null;
  ui.resetZoom.hidden = !range;
  poll(true);
};

// ---- which run -----------------------------------------------------------------------------------------------
export const chooseRun = (run) => {
  if (run === view.run && view.facts) return;
  Object.assign(view, { run, ...fresh() });
  restart();
  poll(true);
};
const restart = () => {
  if (!ui) return;
  charts.loss.clear();
  charts.norms(null, null);
  charts.memory.clear();
  charts.validation.clear();
  ui.resetZoom.hidden = true;
  setText(ui.log, "");
  for (const node of [ui.samples, ui.validation, ui.files, ui.reasons, ui.warnings]) fill(node);
  ui.trouble.hidden = true;
  clearStatus(ui);
};
on("run", chooseRun);

const drawPicker = () => {
  if (!ui) return;
  ui.empty.hidden = pageState.runs.length > 0;
  ui.body.hidden = pageState.runs.length === 0;
  const label = (r) => `${r.name} · ${t((STATES[r.state] || [r.state])[0]).toLocaleLowerCase(language)}`;
  const wanted = pageState.runs.map((r) => `${r.name}|${label(r)}`).join("\n") + view.run;
  if (ui.picker.dataset.shown === wanted) return;
  ui.picker.dataset.shown = wanted;
  fill(
    ui.picker,
    pageState.runs.map((r) => el("option", { value: r.name }, label(r))),
  );
  ui.picker.value = view.run;
};

// When the page is opened: back to the last open tab, or to the run at work.
let tabChosen = false;
let lastActive = null;
on("active", (active) => {
  const wanted = keptTab() || (active ? "Run" : null);
  tabChosen ||= !wanted || openTab(wanted);
  const { runs } = pageState;
  if (!runs.some((r) => r.name === view.run) && runs.length) chooseRun((active || runs[0]).name);
  // A run that was started elsewhere (a terminal, another tab) is shown, unless somebody chose an older one.
  else if (active && active.name !== view.run && active.name !== lastActive) chooseRun(active.name);
  lastActive = active?.name;
  drawPicker();
});

// ---- polling -------------------------------------------------------------------------------------------------
let busy = false;
let again = false;
const poll = async (now) => {
  if (!view.run || !ui || (!now && currentTab() !== "Run")) return;
  if (busy) return void (again = again || now);
  busy = true;
  const run = view.run;
  try {
    const width = Math.max(120, Math.min(1200, Math.round(ui.loss.clientWidth || 600)));
    const query = { run, width, key: view.key, seen: view.seen, log_offset: view.logOffset };
    if (view.zoom) Object.assign(query, { since: Math.floor(view.zoom.since), until: Math.ceil(view.zoom.until) });
    const answer = await getJson("/live", query);
    if (run === view.run) {
      if ("missing" in answer) view.run = null;
      else {
        draw(answer);
        drawLog(answer.log);
      }
    }
  } catch {
    // The list of runs says when the server is lost.
  }
  busy = false;
  if (again) {
    again = false;
    poll(true);
  }
};
const drawLog = (answer) => {
  if (answer.reset) ui.log.textContent = "";
  view.logOffset = answer.offset;
  if (!answer.text) return;
  ui.log.append(answer.text);
  // The tail is what is read; the whole file lies in the run's folder.
  if (ui.log.textContent.length > 300_000) ui.log.textContent = ui.log.textContent.slice(-200_000);
  if (ui.follow.checked) ui.log.scrollTop = ui.log.scrollHeight;
};
const visible = () => document.visibilityState === "visible";
setInterval(() => visible() && poll(false), 1000);
document.addEventListener("visibilitychange", () => visible() && poll(true));
onTabOpened(null, () => (poll(true), charts?.loss.refresh()));

/**
 * @param {LiveRun} answer
 */
const draw = (answer) => {
  view.status = answer.status;
  view.last = answer.last;
  if (answer.series) {
    view.key = answer.key;
    view.series = joinSeries(view.series, answer.series);
    charts.loss.draw(view.series);
    charts.memory.draw(view.series);
    charts.norms(view.series, view.last || {});
  }
  // Empty panels say something else once the run has ended.
  const live = LIVE.has(answer.status.state);
  if (answer.facts || live !== view.live) {
    Object.assign(view, { live, seen: answer.seen, facts: answer.facts || view.facts });
    drawValidation(ui, view.facts, answer.status);
    charts.validation.draw(view.facts);
    drawSamples(ui, view.facts.samples, answer.status);
    drawFiles(ui, view.facts, answer.status);
    drawWarnings(ui, view.facts.warnings, view.facts.recompiles);
  }
  drawMemory();
  drawStatus(ui, answer.status, answer.last || {}, view.facts);
  drawCompile(ui, answer.last || {}, answer.status, view.facts || {});
};
const drawMemory = () => {
  drawMemoryNow(ui.memoryNow, view.last);
  const on =
    charts.memory.kind() === "ram" && view.series?.step.length
      ? "Training on the CPU: the chart shows the RAM of this run. "
      : "";
  setText(
    ui.memoryNote,
    on +
      [
        memorySentence(view.facts?.memory),
        swapSentence(view.facts?.swap, view.last),
        processesSentence(view.facts?.processes),
      ]
        .filter(Boolean)
        .join(" "),
  );
};

// ---- buttons -------------------------------------------------------------------------------------------------
const CONFIRMATIONS = {
  stop: "Stopping. The run saves its LoRA and its state first.",
  save: "A LoRA file will be saved after the current step.",
  sample: "Samples will be made after the current step.",
};
const requestOfRun = async (what) => {
  try {
    await postJson("/control", { run: view.run, what });
    toast(CONFIRMATIONS[what]);
    poll(true);
    pollRuns();
  } catch (error) {
    showError(error);
  }
};
export const resumeRun = async (run) => {
  try {
    await postJson("/resume", { run });
    toast("Resuming from the last saved state, with the settings of that run. The settings on this page are not used.");
    openTab("Run");
    chooseRun(run);
    pollRuns();
  } catch (error) {
    showError(error);
  }
};
