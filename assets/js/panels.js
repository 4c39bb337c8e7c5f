// The panels of the Run tab under its charts: compile, warnings, validation, samples, files.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, text } = m;

  const picture = (run, file) => m.url("/image", { run, file });
  m.samplePicture = picture;

  // ui: the elements to draw into. setStat(id, value, tone): fills a tile. live: the states of a run at work.
  m.panels = (ui, setStat, live) => {
    const compile = (last, status, facts) => {
      const c = facts.compile || {};
      // Once the process has said what it compiles, that counts: with linear layers left out nothing is planned.
      const planned = c.state ? c.planned : facts.plan?.graphs?.planned;
      // What an earlier process of a resumed run has counted says nothing of this one.
      const row = (last.generation ?? 0) < (status.generation ?? 0) ? {} : last;
      // A row tells the count of its step; before the first one, and between two, events do.
      const counts = [row.graphs, c.graphs].filter((n) => n !== null && n !== undefined);
      const graphs = counts.length ? Math.max(...counts) : null;
      const made = c.made || [];
      const counted = (value, told) => value ?? (made.length ? told : null);
      const recompiles = counted(row.recompiles, (facts.recompiles || []).length);
      const breaks = counted(row.breaks, (facts.breaks || []).length);
      const seconds = counted(row.compile_seconds, made.reduce((sum, graph) => sum + (graph.seconds || 0), 0));
      const known = (value) => (value === null || value === undefined ? "–" : String(value));
      setStat("graphs", graphs === null && !planned ? "–" : planned ? `${graphs ?? 0} / ${planned}` : String(graphs), planned && graphs > planned ? "bad" : "");
      text(document.querySelector("#stat-graphs .stat-label"), planned ? "graphs of planned" : "graphs");
      setStat("recompiles", known(recompiles), recompiles === null || graphs === 0 ? "" : recompiles === 0 ? "good" : "bad");
      setStat("breaks", known(breaks), breaks ? "warn" : "");
      setStat("compile", seconds === null ? "–" : m.duration(seconds));
      setStat("hits", known(counted(row.cache_hits, made.filter((graph) => graph.cached).length)));
      setStat("misses", known(counted(row.cache_misses, made.filter((graph) => !graph.cached).length)));
      setStat("limits", known(row.limit_hits), row.limit_hits ? "warn" : "");
      setStat("syncs", known(row.syncs));
      const [tone, words] = verdict(c, facts, status, graphs, recompiles, planned, breaks);
      ui.compile.className = `verdict ${tone}`;
      const share = c.share === null || c.share === undefined ? "" : ` Linear layers are left out: ${Math.round(100 * c.share)} % of the blocks' time runs compiled.`;
      text(ui.compile, words + share + recorded(facts.recorded));
      payback(status);
      const list = together([
        ...(facts.breaks || []).map((b) => ({ ...b, what: "Graph break" })),
        ...(facts.recompiles || []).map((r) => ({ ...r, what: "Recompiled" })),
      ]);
      const shown = JSON.stringify([list, c.made || []]);
      if (ui.reasons.dataset.shown === shown) return;
      ui.reasons.dataset.shown = shown;
      fill(
        ui.reasons,
        list.length
          ? el(
              "ul",
              { class: "reasons" },
              list.slice(-20).reverse().map((r) =>
                el(
                  "li",
                  {},
                  el("strong", {}, [r.what, r.block && `${r.block} blocks`, r.times > 1 && `${r.times} times`].filter(Boolean).join(" · ")),
                  el("span", {}, r.reason || "no reason given"),
                  r.file ? el("code", {}, `${r.file}:${r.line}`) : null,
                  r.setting ? el("span", { class: "remedy" }, `Ends it: ${r.setting}`) : null,
                ),
              ),
            )
          : null,
        (c.made || []).length ? graphTable(c.made) : null,
      );
    };
    // Each thing that happened once, with how often: ten layers that are called in one line break at one place.
    const together = (list) => {
      const found = new Map();
      for (const each of list) {
        const key = JSON.stringify([each.what, each.block, each.reason, each.file, each.line, each.setting]);
        found.set(key, { ...each, times: (found.get(key)?.times || 0) + 1 });
      }
      return [...found.values()];
    };
    // Asked when a run comes up and now and then while it goes: the answer reads other runs' records.
    const payback = async (status) => {
      const now = Date.now();
      const same = ui.payback.dataset.run === status.name;
      if (same && (now - Number(ui.payback.dataset.asked) < 20_000 || (!live.has(status.state) && ui.payback.dataset.state === status.state))) return;
      Object.assign(ui.payback.dataset, { run: status.name, asked: String(now), state: status.state });
      const answer = await m.get("/payback", { run: status.name }).catch(() => ({ text: "" }));
      if (ui.payback.dataset.run === status.name) text(ui.payback, answer.text);
    };
    const graphTable = (made) =>
      el(
        "details",
        {},
        el("summary", {}, `${m.count(made.length, "graph")}, one by one`),
        el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "facts numbers" },
            el("thead", {}, el("tr", {}, ["Graph", "Blocks", "Tokens", "Batch", "For", "Seconds", "From cache"].map((t) => el("th", {}, t)))),
            el(
              "tbody",
              {},
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
                    m.number(g.seconds, 3),
                    g.cached ? "yes" : "no",
                  ].map((v) => el("td", {}, String(v))),
                ),
              ),
            ),
          ),
        ),
      );
    const verdict = (c, facts, status, graphs, recompiles, planned, breaks) => {
      const going = live.has(status.state);
      const last = (facts.recompiles || []).slice(-1)[0];
      if (c.state === "off" || facts.plan?.compile === false) return ["calm", "Compile is off: this run trains eagerly."];
      if (c.state === "fallback") return ["warn", `Asked for, but fell back to eager. ${c.reason || ""}`];
      if (c.state === "partly") return ["warn", `Partly compiled. ${c.reason || ""}`];
      if (going && c.compiling) return ["busy", `Compiling ${c.compiling}`];
      if (going && status.phase === "compile") return ["busy", c.graphs ? `Compiling: ${m.count(c.graphs, "graph")} so far.` : "Compiling the first graphs. Steps begin when they are made."];
      if (recompiles > 0) return ["bad", `${m.count(recompiles, "recompile")} beyond the plan.${last?.reason ? ` Last reason: ${last.reason}` : ""}`];
      if (going && graphs > 0 && graphs < planned && !status.step) return ["busy", `${graphs} of ${planned} planned graphs are made; each of the others is when it is first needed.`];
      const missing = going && graphs < planned ? ` ${m.count(planned - graphs, "planned graph")} still to come, with validation and samples.` : "";
      // Where linear layers are left out on purpose, breaks are what was asked for.
      if (graphs > 0 && breaks > 0 && planned) return ["warn", `Compiled, with ${m.count(breaks, "graph break")}: at each, a block falls into parts, and what is fused ends.${missing}`];
      if (graphs > 0) return ["good", `Compiled once, no recompile since.${missing}`];
      if (graphs === 0 && !going) return ["warn", "Compile was asked for and made no graph."];
      return ["calm", going ? "Nothing is compiled yet." : "This run kept no compile records."];
    };

    // Passes that are replayed as CUDA graphs: how many shapes, or why none.
    const recorded = (told) => {
      if (!told) return "";
      const others = told.reason ? ` Others run as they are: ${told.reason}.` : "";
      if (told.state === "recorded") return ` CUDA graphs: the passes of ${m.count(told.shapes, "shape")} are replayed, which keeps ${m.memory(told.kept)}.${others}`;
      return ` CUDA graphs are left out: ${told.reason}.`;
    };

    // A graph beyond the plan is an alarm: it stands on top, with what ends it.
    const alarm = (recompiles) => {
      const last = recompiles[recompiles.length - 1];
      if (!last) return null;
      const count = recompiles.length === 1 ? "A recompile after warm-up" : `${recompiles.length} recompiles after warm-up`;
      return el("div", { class: "trouble", id: "recompile-alarm", role: "alert" }, el("strong", {}, `${count}: ${last.reason || "torch gave no reason"}.`), last.setting ? el("p", { class: "remedy" }, `Ends it: ${last.setting}.`) : null);
    };
    // The newest in full; a data set's oddities, told before the first step, must not push the run out of sight.
    const warnings = (list = [], recompiles = []) => {
      const one = (w) => el("div", { class: "warning" }, el("strong", {}, /[.!?]$/.test(w.text) ? w.text : `${w.text}.`), w.remedy ? el("span", {}, ` ${w.remedy}`) : null);
      const earlier = list.slice(0, list.length > 2 ? -1 : 0).reverse();
      const unfolded = ui.warnings.querySelector("details")?.open;
      fill(
        ui.warnings,
        alarm(recompiles),
        list.slice(list.length > 2 ? -1 : 0).map(one),
        earlier.length ? el("details", { open: unfolded || null }, el("summary", {}, m.count(earlier.length, "earlier warning")), earlier.map(one)) : null,
      );
    };

    const nothing = (node, status, yet, ended) => fill(node, el("p", { class: "note" }, live.has(status.state) ? yet : ended));
    const validation = (rows = [], status) => {
      if (!rows.length) return nothing(ui.validation, status, "No measurement yet. Hold pictures out on the Dataset tab, or name validation folders on the Sampling tab.", "Nothing was measured.");
      const sets = [...new Set(rows.map((r) => r.set))];
      fill(
        ui.validation,
        el(
          "table",
          { class: "facts numbers" },
          el("thead", {}, el("tr", {}, ["Set", "First", "Latest", "Change", "Lowest", "At step"].map((t) => el("th", {}, t)))),
          el(
            "tbody",
            {},
            sets.map((name) => {
              const mine = rows.filter((r) => r.set === name);
              const first = mine[0];
              const latest = mine[mine.length - 1];
              const lowest = mine.reduce((a, b) => (b.loss < a.loss ? b : a));
              const change = mine.length > 1 && first.loss ? (100 * (latest.loss - first.loss)) / first.loss : null;
              return el(
                "tr",
                { "data-set": name },
                el("td", {}, name),
                el("td", {}, m.number(first.loss)),
                el("td", { "data-value": latest.loss }, m.number(latest.loss)),
                el("td", { class: change === null ? "" : change <= 0 ? "good" : "warn" }, change === null ? "–" : `${change > 0 ? "+" : ""}${change.toFixed(1)} %`),
                el("td", {}, m.number(lowest.loss)),
                el("td", {}, String(lowest.step)),
              );
            }),
          ),
        ),
        sigmaTable(rows),
      );
    };
    const sigmaTable = (rows) => {
      const first = rows[0];
      const latest = rows.filter((r) => r.set === first.set).pop();
      const sigmas = Object.keys(latest.sigma_losses || {});
      if (!sigmas.length) return null;
      return el(
        "details",
        {},
        el("summary", {}, `By noise level (${latest.set})`),
        el(
          "table",
          { class: "facts numbers" },
          el("thead", {}, el("tr", {}, ["Sigma", `Step ${first.step}`, `Step ${latest.step}`].map((t) => el("th", {}, t)))),
          el("tbody", {}, sigmas.map((s) => el("tr", {}, el("td", {}, s), el("td", {}, m.number((first.sigma_losses || {})[s])), el("td", {}, m.number(latest.sigma_losses[s]))))),
        ),
      );
    };

    const samples = (list = [], status) => {
      if (!list.length) return nothing(ui.samples, status, "No samples yet. Prompts are on the Sampling tab; Sample now draws them at once.", "No sample was drawn.");
      const prompts = new Map();
      for (const s of list) {
        if (!prompts.has(s.prompt_index)) prompts.set(s.prompt_index, []);
        prompts.get(s.prompt_index).push(s);
      }
      fill(
        ui.samples,
        [...prompts.values()].map((mine) =>
          el(
            "div",
            { class: "sample-row" },
            el("p", { class: "prompt" }, mine[mine.length - 1].prompt || "(no prompt)"),
            el(
              "div",
              { class: "strip" },
              mine.map((s) =>
                el(
                  "figure",
                  {},
                  el("button", { class: "picture", onclick: () => lightbox(mine, s, status.name) }, el("img", { src: picture(status.name, s.file), alt: `${s.prompt || "sample"}, step ${s.step}`, loading: "lazy" })),
                  el("figcaption", {}, s.step === 0 ? "before" : `step ${s.step.toLocaleString("en")}`),
                ),
              ),
            ),
          ),
        ),
      );
      ui.samples.querySelectorAll(".strip").forEach((strip) => (strip.scrollLeft = strip.scrollWidth));
    };
    const lightbox = (pictures, shown, run) => {
      let at = pictures.indexOf(shown);
      const image = el("img", { alt: "" });
      const caption = el("p", { class: "note" });
      const show = (index) => {
        at = (index + pictures.length) % pictures.length;
        image.src = picture(run, pictures[at].file);
        image.alt = pictures[at].prompt || "sample";
        text(caption, `${pictures[at].step === 0 ? "Before training" : `Step ${pictures[at].step}`} · ${pictures[at].prompt || ""}`);
      };
      const box = m.dialog("Sample", el("div", { class: "lightbox" }, image), caption, el("div", { class: "buttons" }, el("button", { onclick: () => show(at - 1) }, "← Earlier"), el("button", { onclick: () => show(at + 1) }, "Later →")));
      box.classList.add("wide-dialog");
      box.addEventListener("keydown", (e) => (e.key === "ArrowLeft" ? show(at - 1) : e.key === "ArrowRight" ? show(at + 1) : null));
      show(at);
    };

    const files = (facts, status) => {
      const list = facts.checkpoints || [];
      if (!list.length) return nothing(ui.files, status, "No file saved yet. The end of the run and a stop always save one; Save now does it at once.", "No LoRA file was saved.");
      fill(
        ui.files,
        list.slice().reverse().map((f) =>
          el(
            "div",
            { class: `file ${f.final ? "final" : ""}` },
            el("div", { class: "file-head" }, el("strong", {}, f.name, f.final ? el("span", { class: "tag good" }, "final") : null), el("span", { class: "note" }, [f.step !== null && f.step !== undefined ? `step ${f.step.toLocaleString("en")}` : "", m.bytes(f.size)].filter(Boolean).join(" · "))),
            m.pathLine(f.path, el("a", { class: "button small", href: m.url("/download", { run: status.name, file: f.name }), download: f.name }, "Download")),
          ),
        ),
      );
    };
    return { compile, warnings, validation, samples, files };
  };
})();
