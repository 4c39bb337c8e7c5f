// Draws what a run's compile did: counts, verdict, reasons, graphs.

import { el, fill, setText, table } from "./dom.js";
import { formatCount, formatDuration, formatMemory, formatNumber } from "./format.js";
import { getJson } from "./http.js";
import { t } from "./locale.js";
import { setStat } from "./run_frame.js";
import { LIVE } from "./run_states.js";
/** @import { CompiledGraph, MetricsRow, RunFacts, RunStatus } from "./server" */

// What a row counted; else what events say, once a graph is made.
const counted = (made, value, fromEvents) => value ?? (made.length ? fromEvents : null);
/**
 * @param {MetricsRow} row
 * @param {CompiledGraph[]} made
 * @param {{graphs: number | null, planned: number, recompiles: number | null, breaks: number | null}} counts
 */
const drawCounts = (row, made, { graphs, planned, recompiles, breaks }) => {
  const seconds = counted(
    made,
    row.compile_seconds,
    made.reduce((sum, graph) => sum + (graph.seconds || 0), 0),
  );
  const countText = (value) => (value === null || value === undefined ? "–" : String(value));
  setStat(
    "graphs",
    graphs === null && !planned ? "–" : planned ? `${graphs ?? 0} / ${planned}` : String(graphs),
    planned && graphs > planned ? "bad" : "",
  );
  setText(document.querySelector("#stat-graphs .stat-label"), planned ? "graphs of planned" : "graphs");
  setStat(
    "recompiles",
    countText(recompiles),
    recompiles === null || graphs === 0 ? "" : recompiles === 0 ? "good" : "bad",
  );
  setStat("breaks", countText(breaks), breaks ? "warn" : "");
  setStat("compile", seconds === null ? "–" : formatDuration(seconds));
  setStat("hits", countText(counted(made, row.cache_hits, made.filter((graph) => graph.cached).length)));
  setStat("misses", countText(counted(made, row.cache_misses, made.filter((graph) => !graph.cached).length)));
  setStat("limits", countText(row.limit_hits), row.limit_hits ? "warn" : "");
  setStat("syncs", countText(row.syncs));
};
const reasonRow = (r) =>
  el(
    "li",
    {},
    el(
      "strong",
      {},
      [r.what, r.block && t`${r.block} blocks`, r.times > 1 && t`${r.times} times`]
        .filter(Boolean)
        .join(" · "),
    ),
    el("span", {}, r.reason || "no reason given"),
    r.file ? el("code", {}, `${r.file}:${r.line}`) : null,
    r.setting ? el("span", { class: "remedy" }, t`Fix: ${r.setting}`) : null,
  );
/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {Partial<RunFacts>} facts
 */
const drawReasons = (ui, facts) => {
  const made = facts.compile?.made || [];
  const list = grouped([
    ...(facts.breaks || []).map((b) => ({ ...b, what: "Graph break" })),
    ...(facts.recompiles || []).map((r) => ({ ...r, what: "Recompiled" })),
  ]);
  const shown = JSON.stringify([list, made]);
  if (ui.reasons.dataset.shown === shown) return;
  ui.reasons.dataset.shown = shown;
  fill(
    ui.reasons,
    list.length
      ? el(
          "ul",
          { class: "reasons" },
          list
            .slice(-20)
            .reverse()
            .map(reasonRow),
        )
      : null,
    made.length ? graphTable(made) : null,
  );
};

// ui: the elements to draw into; last: the newest row; facts: what the run's events say.
/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {MetricsRow} last
 * @param {RunStatus} status
 * @param {Partial<RunFacts>} facts
 */
export const drawCompile = (ui, last, status, facts) => {
  const c = facts.compile || {};
  // Once the process reports what it compiles, that counts: with linear layers left out nothing is planned.
  const planned = c.state ? c.planned : facts.plan?.graphs?.planned;
  // The counts of an earlier process of a resumed run say nothing about this one.
  const row = (last.generation ?? 0) < (status.generation ?? 0) ? {} : last;
  // A row has the count of its step; before the first one, and between two, events have it.
  const counts = [row.graphs, c.graphs].filter((n) => n !== null && n !== undefined);
  const graphs = counts.length ? Math.max(...counts) : null;
  const made = c.made || [];
  const recompiles = counted(made, row.recompiles, (facts.recompiles || []).length);
  const breaks = counted(made, row.breaks, (facts.breaks || []).length);
  drawCounts(row, made, { graphs, planned, recompiles, breaks });
  const [tone, sentence] = verdict(c, facts, status, graphs, recompiles, planned, breaks);
  ui.compile.className = `verdict ${tone}`;
  const share =
    c.share === null || c.share === undefined
      ? ""
      : t` Linear layers are left out: ${Math.round(100 * c.share)} % of the blocks' time runs compiled.`;
  setText(ui.compile, sentence + share + recorded(facts.recorded) + attention(facts.attention));
  drawPayback(ui, status);
  drawReasons(ui, facts);
};
// Equal reasons once, with their count: ten layers that are called in one line break at one place.
const grouped = (list) => {
  const groups = new Map();
  for (const each of list) {
    const key = JSON.stringify([each.what, each.block, each.reason, each.file, each.line, each.setting]);
    groups.set(key, { ...each, times: (groups.get(key)?.times || 0) + 1 });
  }
  return [...groups.values()];
};
// Asked when a run is shown, and every 20 s while it is at work: the answer reads other runs' records.
/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunStatus} status
 */
const drawPayback = async (ui, status) => {
  const now = Date.now();
  const same = ui.payback.dataset.run === status.name;
  if (
    same &&
    (now - Number(ui.payback.dataset.asked) < 20_000 ||
      (!LIVE.has(status.state) && ui.payback.dataset.state === status.state))
  )
    return;
  Object.assign(ui.payback.dataset, { run: status.name, asked: String(now), state: status.state });
  const answer = await getJson("/payback", { run: status.name }).catch(() => ({ text: "" }));
  if (ui.payback.dataset.run === status.name) setText(ui.payback, answer.text);
};
/**
 * @param {CompiledGraph[]} made
 */
const graphTable = (made) =>
  el(
    "details",
    {},
    el("summary", {}, t`${formatCount(made.length, "graph")}, one by one`),
    el(
      "div",
      { class: "scroll" },
      table(
        ["Graph", "Blocks", "Tokens", "Batch", "For", "Seconds", "From cache"],
        made.map((g) =>
          el(
            "tr",
            {},
            [
              g.graph,
              g.block,
              g.image_tokens ? `${g.image_tokens} + ${g.text_tokens}` : "–",
              g.batch ?? "–",
              g.gradients ? "training" : "no gradient",
              formatNumber(g.seconds, 3),
              g.cached ? "yes" : "no",
            ].map((v) => el("td", {}, String(v))),
          ),
        ),
      ),
    ),
  );
/**
 * @param {RunFacts["compile"]} c
 * @param {Partial<RunFacts>} facts
 * @param {RunStatus} status
 * @param {number | null} graphs
 * @param {number | null} recompiles
 * @param {number | undefined} planned
 * @param {number | null} breaks
 */
const verdict = (c, facts, status, graphs, recompiles, planned, breaks) => {
  const live = LIVE.has(status.state);
  const last = (facts.recompiles || []).slice(-1)[0];
  if (c.state === "off" || facts.plan?.compile === false)
    return ["calm", "Compile is off: this run trains without torch.compile."];
  if (c.state === "fallback")
    return ["warn", t`Compile is on, but this run fell back to eager (not compiled). ${c.reason || ""}`];
  if (c.state === "partly") return ["warn", t`Partly compiled. ${c.reason || ""}`];
  if (live && c.compiling) return ["busy", t`Compiling ${c.compiling}`];
  if (live && status.phase === "compile")
    return [
      "busy",
      c.graphs
        ? t`Compiling: ${formatCount(c.graphs, "graph")} so far.`
        : "Compiling the first graphs. Training steps begin when they are ready.",
    ];
  if (recompiles > 0)
    return [
      "bad",
      t`${formatCount(recompiles, "recompile")} beyond the plan.${last?.reason ? t` Last reason: ${last.reason}` : ""}`,
    ];
  if (live && graphs > 0 && graphs < planned && !status.step)
    return [
      "busy",
      t`${graphs} of ${planned} planned graphs are compiled. The others are compiled when they are first needed.`,
    ];
  const missing =
    live && graphs < planned
      ? t` ${formatCount(planned - graphs, "planned graph")} still to come, for validation and samples.`
      : "";
  // Where linear layers are left out on purpose, breaks are expected.
  if (graphs > 0 && breaks > 0 && planned)
    return [
      "warn",
      t`Compiled, with ${formatCount(breaks, "graph break")}: ` +
        t`each one splits a block into parts, which costs speed.${missing}`,
    ];
  if (graphs > 0) return ["good", t`Compiled once, no recompile after that.${missing}`];
  if (graphs === 0 && !live) return ["warn", "Compile is on, but no graph was compiled. The log of the run says why."];
  return ["calm", live ? "Nothing is compiled yet." : "This run has no compile records."];
};

// Says how many shapes are replayed as CUDA graphs, or why none.
/**
 * @param {RunFacts["recorded"]} recordings
 */
const recorded = (recordings) => {
  if (!recordings) return "";
  const others = recordings.reason ? t` The others run without CUDA graphs: ${recordings.reason}.` : "";
  if (recordings.state === "recorded")
    return (
      t` CUDA graphs: the passes of ${formatCount(recordings.shapes, "shape")} are replayed, ` +
      t`which uses ${formatMemory(recordings.kept)} of memory.${saved(recordings)}${others}`
    );
  return t` CUDA graphs are left out: ${recordings.reason}.`;
};

// How long a pass took before it was recorded, and takes now.
/**
 * @param {NonNullable<RunFacts["recorded"]>} recordings
 */
const saved = ({ plain_ms: plain, replay_ms: replay }) =>
  plain && replay
    ? t` A forward and backward pass takes ${formatNumber(replay, 3)} ms; before, it took ${formatNumber(plain, 3)} ms.`
    : "";

// Which kernel computes attention, what others were measured at, and which package is installed but does not work.
/**
 * @param {RunFacts["attention"]} kernel
 */
const attention = (kernel) => {
  if (!kernel) return "";
  const byTime = Object.entries(kernel.milliseconds || {}).sort(([, a], [, b]) => a - b);
  const times = byTime.map(([name, ms]) => t`${name} ${formatNumber(ms, 3)} ms`).join(", ");
  const rank = byTime[0]?.[0] === kernel.route ? "the fastest" : "within 2 % of the fastest";
  const measured = times ? t`, ${rank} of those measured for ${kernel.form}: ${times}` : "";
  const broken = Object.entries(kernel.left_out || {})
    .filter(([, why]) => /does not load|fails here/.test(why))
    .map(([name, why]) => (why.startsWith("it ") ? `${name}: ${why}` : why));
  return t` Attention: ${kernel.route} (${kernel.detail})${measured}.${broken.map((why) => ` ${why}.`).join("")}`;
};
