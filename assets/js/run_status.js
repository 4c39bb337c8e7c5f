// Draws a run's state, progress and numbers, and why it failed.

import { pathLine } from "./clipboard.js";
import { el, fill, setText } from "./dom.js";
import { formatDuration, formatFixed, formatMemory, formatNumber } from "./format.js";
import { getJson } from "./http.js";
import { language, t } from "./locale.js";
import { setStat } from "./run_frame.js";
import { LIVE, PHASES, STATES } from "./run_states.js";
/** @import { MetricsRow, RunFacts, RunStatus } from "./server" */

// Before the first step has been timed, only the end of a phase is known, not that of the run.
/**
 * @param {RunStatus} s
 */
const left = (s) => {
  if (!(s.eta_s >= 1)) return "";
  return t`${formatDuration(s.eta_s)} left${s.s_per_step || s.phase === "train" ? "" : " in this phase"}`;
};

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunStatus} s
 */
const drawProgress = (ui, s) => {
  const [state, tone] = STATES[s.state] || [s.state, "calm"];
  setText(ui.state, state);
  ui.state.className = `state ${tone}`;
  const live = LIVE.has(s.state);
  // Compiling has no count of its own, so the steps are shown.
  const training = s.phase === "train" || s.phase === "compile" || !s.phase || !live;
  const done = training ? s.step : s.done;
  const total = training ? s.total_steps : s.total;
  const share = total ? Math.min(1, (done || 0) / total) : null;
  const phase = live ? PHASES[s.phase] || "Starting" : state;
  const amount = total
    ? t` · ${training ? "step " : ""}${(done || 0).toLocaleString(language)} of ${total.toLocaleString(language)}`
    : "";
  setText(ui.phase, phase + amount);
  setText(
    ui.eta,
    live
      ? left(s)
      : s.elapsed_s
        ? t`took ${formatDuration(s.elapsed_s)}${s.generation ? " since it was resumed" : ""}`
        : "",
  );
  ui.progress.style.width = `${100 * (share ?? (live ? 0.02 : 0))}%`;
  ui.bar.setAttribute("aria-valuenow", String(Math.round(100 * (share ?? 0))));
  ui.bar.setAttribute("aria-label", phase);
  ui.bar.className = `progress ${tone} ${live && share === null ? "waiting" : ""}`;
};

/**
 * @param {RunStatus} s
 * @param {MetricsRow} last
 * @param {RunFacts | null} facts
 */
const drawNumbers = (s, last, facts) => {
  setStat(
    "step",
    s.step === null || s.step === undefined
      ? "–"
      : `${s.step.toLocaleString(language)}${s.total_steps ? ` / ${s.total_steps.toLocaleString(language)}` : ""}`,
  );
  setStat("loss", formatNumber(last.loss_smooth ?? last.loss, 4));
  setStat("lr", last.lr === null || last.lr === undefined ? "–" : Number(last.lr).toExponential(2));
  // The median that the time left is computed from; a single step may have waited for a save.
  const speed = s.s_per_step ?? last.s_per_step;
  setStat("speed", speed ? (speed < 1 ? t`${Math.round(speed * 1000)} ms` : `${formatFixed(speed, 2)} s`) : "–");
  const epochs = facts?.plan?.steps?.epochs;
  const hundredths = (v) => String(Number(v.toFixed(2)));
  setStat(
    "epoch",
    epochs && s.total_steps ? `${hundredths((epochs * s.step) / s.total_steps)} / ${hundredths(epochs)}` : "–",
  );
  const memory = last.vram_reserved ?? last.ram;
  setStat("memory", memory ? formatMemory(memory) : "–");
  const several = facts?.processes?.length ? t`, first of ${facts.processes.length} processes` : "";
  setText(document.querySelector("#stat-memory .stat-label"), (last.vram_reserved ? "VRAM" : "RAM") + several);
};

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunStatus} s
 */
const drawError = (ui, s) => {
  const error = s.error || s.hang;
  ui.trouble.hidden = !error;
  const shown = error ? JSON.stringify(error) : "";
  if (error && ui.trouble.dataset.shown !== shown) {
    ui.trouble.dataset.shown = shown;
    fill(
      ui.trouble,
      el("strong", {}, error.text || "The run failed."),
      error.cause ? el("p", {}, error.cause) : null,
      error.remedy ? el("p", { class: "remedy" }, error.remedy) : null,
      error.exception
        ? el("details", {}, el("summary", {}, "Technical details"), el("pre", {}, error.exception))
        : null,
    );
  }
};

// A finished run beside the finish time that was told before its start: asked once, when its end is seen.
/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunStatus} s
 */
const drawFinish = async (ui, s) => {
  const key = `${s.name} ${s.state}`;
  if (ui.finish.dataset.key === key) return;
  ui.finish.dataset.key = key;
  setText(ui.finish, "");
  if (s.state !== "done") return;
  const answer = await getJson("/finish/run", { run: s.name }).catch(() => ({ text: "" }));
  if (ui.finish.dataset.key === key) setText(ui.finish, answer.text);
};

// Takes away what was said of another run, until the first answer about this one.
/**
 * @param {import("./run_frame.js").RunFrame} ui
 */
export const clearStatus = (ui) => {
  for (const button of [ui.stop, ui.save, ui.sample, ui.resume, ui.further]) button.hidden = true;
  for (const node of [ui.state, ui.phase, ui.eta, ui.finish, ui.compile, ui.payback, ui.memoryNote]) setText(node, "");
  for (const node of [ui.folder, ui.memoryNow]) fill(node);
  ui.state.className = "state";
  ui.compile.className = "verdict";
  ui.bar.className = "progress";
  ui.bar.setAttribute("aria-valuenow", "0");
  ui.progress.style.width = "0%";
  for (const tile of ui.body.querySelectorAll(".stat")) setStat(tile.id.replace("stat-", ""), "–");
  // what each remembers of that run
  for (const node of [ui.finish, ui.payback, ui.reasons, ui.folder]) {
    for (const key of Object.keys(node.dataset)) delete node.dataset[key];
  }
};

/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunStatus} s
 * @param {MetricsRow} last
 * @param {RunFacts | null} facts
 */
export const drawStatus = (ui, s, last, facts) => {
  const live = LIVE.has(s.state);
  ui.stop.hidden = ui.save.hidden = ui.sample.hidden = !live;
  ui.stop.disabled = s.state === "stopping";
  setText(ui.stop, s.state === "stopping" ? "Stopping…" : "Stop");
  // A finished run has no step left to resume.
  ui.resume.hidden = live || !s.resumable || s.state === "done";
  ui.further.hidden = s.state !== "done";
  drawProgress(ui, s);
  drawNumbers(s, last, facts);
  if (ui.folder.dataset.path !== s.path) {
    ui.folder.dataset.path = s.path;
    fill(ui.folder, pathLine(s.path));
  }
  drawError(ui, s);
  drawFinish(ui, s);
};
