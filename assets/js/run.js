// The Run tab: everything in it comes from the run's own folder, once a second, whoever started the run.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, text } = m;

  const STATES = {
    starting: ["Starting", "busy"],
    running: ["Running", "busy"],
    stopping: ["Stopping", "busy"],
    done: ["Finished", "good"],
    stopped: ["Stopped", "calm"],
    failed: ["Failed", "bad"],
    dead: ["Ended without a word", "bad"],
  };
  const PHASES = {
    scan: "Looking at the images",
    cache_latents: "Encoding the images",
    cache_text: "Encoding the captions",
    load: "Loading the model",
    compile: "Compiling",
    train: "Training",
    validate: "Measuring validation loss",
    sample: "Drawing samples",
    save: "Saving",
    done: "Finished",
  };
  const LIVE = new Set(["starting", "running", "stopping"]);
  const view = { run: null, key: null, seen: null, zoom: null, facts: null, log: { offset: 0, generation: null } };
  let ui = null;
  let runs = [];

  // ---- the frame -----------------------------------------------------------------------------------------------
  const card = (id, title, ...content) => {
    const head = el("div", { class: "card-head" }, el("h2", {}, title));
    return el("section", { class: "card", id }, head, content);
  };
  const stat = (id, label) => el("div", { class: "stat", id: `stat-${id}` }, el("span", { class: "stat-value" }, "–"), el("span", { class: "stat-label" }, label));
  const setStat = (id, value, tone) => {
    const node = document.getElementById(`stat-${id}`);
    if (!node) return;
    text(node.firstChild, value);
    node.className = `stat ${tone || ""}`;
  };

  const build = (root) => {
    const smooth = el("input", { type: "range", id: "smoothing", min: 0, max: 99, value: 90, "aria-label": "Smoothing of the loss line", oninput: () => (text(ui.smoothValue, `${smooth.value} %`), drawLoss()) });
    ui = {
      empty: el("div", { class: "empty", id: "run-empty" }, el("img", { src: "/page/logo.svg", alt: "", width: 56 }), el("h2", {}, "No runs yet"), el("p", {}, "Set up the model and the dataset, then press Start training. Runs started in a terminal appear here too.")),
      body: el("div", { id: "run-body", hidden: true }),
      picker: el("select", { id: "run-picker", "aria-label": "Run", onchange: (e) => choose(e.target.value) }),
      state: el("span", { class: "state", id: "run-state" }),
      stop: el("button", { id: "stop", class: "danger", onclick: () => ask("stop") }, "Stop"),
      save: el("button", { id: "save-now", onclick: () => ask("save") }, "Save now"),
      sample: el("button", { id: "sample-now", onclick: () => ask("sample") }, "Sample now"),
      resume: el("button", { id: "resume", onclick: () => m.resume(view.run) }, "Resume"),
      phase: el("div", { class: "phase", id: "run-phase" }),
      eta: el("div", { class: "eta", id: "run-eta" }),
      bar: el("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, id: "run-progress" }, el("div")),
      trouble: el("div", { class: "trouble", id: "run-error", role: "alert", hidden: true }),
      warnings: el("div", { id: "run-warnings" }),
      loss: el("div", { class: "plot tall", id: "loss-plot" }),
      memory: el("div", { class: "plot", id: "memory-plot" }),
      memoryNow: el("div", { class: "fit-now", id: "memory-now" }),
      memoryNote: el("p", { class: "note", id: "memory-note" }),
      smoothValue: el("output", {}, "90 %"),
      resetZoom: el("button", { class: "small", hidden: true, onclick: () => lossChart.reset() }, "Whole run"),
      compile: el("div", { class: "verdict", id: "compile-verdict" }),
      payback: el("p", { class: "note", id: "compile-payback" }),
      reasons: el("div", { id: "compile-reasons" }),
      validation: el("div", { id: "validation" }),
      samples: el("div", { id: "samples" }),
      files: el("div", { id: "run-files" }),
      log: el("pre", { class: "log", id: "run-log", tabindex: 0, "aria-label": "Log of the run" }),
      follow: el("input", { type: "checkbox", id: "follow" }),
      folder: el("div", { id: "run-folder" }),
    };
    ui.follow.checked = true;
    const lossCard = card(
      "card-loss",
      "Loss",
      ui.loss,
    );
    const log = el("input", { type: "checkbox", id: "log-scale", onchange: () => lossChart.log(log.checked) });
    lossCard.firstChild.append(el("div", { class: "card-tools" }, ui.resetZoom, el("label", { class: "smooth" }, log, "Log scale"), el("label", { class: "smooth" }, "Smoothing", smooth, ui.smoothValue)));
    const memoryCard = card("card-memory", "Memory", ui.memory, ui.memoryNow, ui.memoryNote);
    const normsCard = card("card-norms", "Weight norms");
    drawNorms = m.norms(normsCard);
    const compileCard = card(
      "card-compile",
      "Compile",
      ui.compile,
      el("div", { class: "stats" }, stat("graphs", "graphs"), stat("recompiles", "recompiles"), stat("breaks", "graph breaks"), stat("compile", "spent compiling"), stat("hits", "cache hits"), stat("misses", "cache misses"), stat("limits", "limit hits"), stat("syncs", "device waits a step")),
      ui.payback,
      ui.reasons,
    );
    const logCard = card("card-log", "Log", ui.log);
    logCard.firstChild.append(el("label", { class: "smooth" }, ui.follow, "Follow"));
    fill(
      ui.body,
      el(
        "div",
        { class: "run-top card" },
        el("div", { class: "run-line" }, ui.picker, ui.state, el("div", { class: "run-buttons" }, ui.sample, ui.save, ui.resume, ui.stop)),
        el("div", { class: "run-progress-line" }, ui.phase, ui.eta),
        ui.bar,
        el("div", { class: "stats now" }, stat("step", "step"), stat("loss", "loss, last ~50 steps"), stat("lr", "learning rate"), stat("speed", "a step"), stat("epoch", "epoch"), stat("memory", "memory")),
        ui.folder,
      ),
      ui.trouble,
      ui.warnings,
      el("div", { class: "columns" }, lossCard, memoryCard),
      normsCard,
      compileCard,
      el("div", { class: "columns" }, card("card-validation", "Validation loss", ui.validation), card("card-files", "LoRA files", ui.files)),
      card("card-samples", "Samples", ui.samples),
      logCard,
    );
    fill(root, ui.empty, ui.body);
    panels = m.panels(ui, setStat, LIVE);
    lossChart = m.chart(ui.loss, {
      label: "Training loss over steps",
      empty: "The line begins with the first step.",
      height: 330,
      format: (v) => m.number(v, 4),
      series: [
        { label: "Loss", key: "loss", colour: "--mt-faint", width: 1, band: true },
        { label: "Smoothed", key: "smooth", colour: "--mt-accent", width: 2.2 },
      ],
      onzoom: (range) => {
        view.zoom = range;
        view.key = null;
        ui.resetZoom.hidden = !range;
        poll(true);
      },
    });
    memory = m.memoryChart(ui.memory);
    drawPicker();
    if (view.run) {
      restart();
      poll(true);
    }
  };
  let lossChart = null;
  let panels = null;
  let drawNorms = null;
  let memory = null;
  m.whenPresent("#run-root", build);

  // ---- which run -----------------------------------------------------------------------------------------------
  const choose = (run) => {
    if (run === view.run && view.facts) return;
    Object.assign(view, { run, key: null, seen: null, zoom: null, facts: null, live: null, series: null, log: { offset: 0, generation: null } });
    restart();
    poll(true);
  };
  const restart = () => {
    if (!ui) return;
    lossChart.clear();
    drawNorms(null);
    ui.resetZoom.hidden = true;
    memory.clear();
    text(ui.log, "");
    for (const node of [ui.samples, ui.validation, ui.files, ui.reasons, ui.warnings]) fill(node);
    ui.trouble.hidden = true;
  };
  m.on("run", choose);
  m.chooseRun = choose;

  const drawPicker = () => {
    if (!ui) return;
    ui.empty.hidden = runs.length > 0;
    ui.body.hidden = runs.length === 0;
    const label = (r) => `${r.name} · ${(STATES[r.state] || [r.state])[0].toLowerCase()}`;
    const wanted = runs.map((r) => `${r.name}|${label(r)}`).join("\n") + view.run;
    if (ui.picker.dataset.shown === wanted) return;
    ui.picker.dataset.shown = wanted;
    fill(ui.picker, runs.map((r) => el("option", { value: r.name }, label(r))));
    ui.picker.value = view.run;
  };

  // Once the page is opened: back to the tab of before, or to the run that is going on.
  let begun = false;
  const begin = (active) => {
    const wanted = m.keptTab() || (active ? "Run" : null);
    begun ||= !wanted || m.openTab(wanted);
  };
  const pollRuns = async () => {
    try {
      const answer = await m.get("/runs");
      runs = answer.runs;
      m.state.runs = runs;
      m.emit("runs", runs);
      const active = runs.find((r) => LIVE.has(r.state));
      m.emit("active", active || null);
      begin(active);
      if (!runs.some((r) => r.name === view.run) && runs.length) choose((active || runs[0]).name);
      // A run that began elsewhere (a terminal, another tab) is what one wants to see, unless an old one was chosen.
      else if (active && active.name !== view.run && active.name !== m.state.lastActive) choose(active.name);
      m.state.lastActive = active?.name;
      drawPicker();
      offline(false);
    } catch (error) {
      offline(true);
    }
  };
  let gone = null;
  const offline = (is) => {
    if (is === Boolean(gone)) return;
    if (is) gone = document.body.appendChild(el("div", { class: "offline", role: "status" }, "The page has lost its server. Runs go on without it; it reconnects by itself."));
    else {
      gone.remove();
      gone = null;
    }
  };

  // ---- polling -------------------------------------------------------------------------------------------------
  let busy = false;
  let again = false;
  const poll = async (now) => {
    if (!view.run || !ui || (!now && m.currentTab() !== "Run")) return;
    if (busy) return void (again = again || now);
    busy = true;
    const run = view.run;
    try {
      const width = Math.max(120, Math.min(1200, Math.round(ui.loss.clientWidth || 600)));
      const query = { run, width, key: view.key, seen: view.seen, log_offset: view.log.offset };
      if (view.zoom) Object.assign(query, { since: Math.floor(view.zoom.since), until: Math.ceil(view.zoom.until) });
      const answer = await m.get("/live", query);
      if (run === view.run) {
        take(answer);
        takeLog(answer.log);
      }
    } catch (error) {
      if (/no run/i.test(error.message)) view.run = null;
    }
    busy = false;
    if (again) {
      again = false;
      poll(true);
    }
  };
  const takeLog = (answer) => {
    if (answer.reset) ui.log.textContent = "";
    view.log.offset = answer.offset;
    if (!answer.text) return;
    ui.log.append(answer.text);
    // The tail is what is read; the whole file lies in the run's folder.
    if (ui.log.textContent.length > 300_000) ui.log.textContent = ui.log.textContent.slice(-200_000);
    if (ui.follow.checked) ui.log.scrollTop = ui.log.scrollHeight;
  };
  setInterval(() => document.visibilityState === "visible" && poll(false), 1000);
  setInterval(() => document.visibilityState === "visible" && pollRuns(), 2000);
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && (pollRuns(), poll(true)));
  m.whenPresent("#bar-root", pollRuns);
  m.pollRuns = pollRuns;
  document.addEventListener("click", (event) => event.target.closest?.("#tabs button[role=tab]") && setTimeout(() => (poll(true), lossChart?.refresh()), 60));

  // ---- drawing -------------------------------------------------------------------------------------------------
  const take = (answer) => {
    view.status = answer.status;
    view.last = answer.last;
    if (answer.series) {
      view.key = answer.key;
      view.series = m.joined(view.series, answer.series);
      drawLoss();
      memory.draw(view.series);
      drawNorms(view.series, view.last || {});
    }
    // What is still to come is told differently once the run has ended.
    const live = LIVE.has(answer.status.state);
    if (answer.facts || live !== view.live) {
      Object.assign(view, { live, seen: answer.seen, facts: answer.facts || view.facts });
      panels.validation(view.facts.validation, answer.status);
      panels.samples(view.facts.samples, answer.status);
      panels.files(view.facts, answer.status);
      panels.warnings(view.facts.warnings, view.facts.recompiles);
    }
    drawMemoryNow();
    drawStatus(answer.status, answer.last || {});
    panels.compile(answer.last || {}, answer.status, view.facts || {});
  };

  // Before the first step has been timed, only the end of a phase is known, not that of the run.
  const left = (s) => {
    if (!(s.eta_s >= 1)) return "";
    return `${m.duration(s.eta_s)} left${s.s_per_step || s.phase === "train" ? "" : " in this phase"}`;
  };

  const drawStatus = (s, last) => {
    const [word, tone] = STATES[s.state] || [s.state, "calm"];
    text(ui.state, word);
    ui.state.className = `state ${tone}`;
    const live = LIVE.has(s.state);
    ui.stop.hidden = ui.save.hidden = ui.sample.hidden = !live;
    ui.stop.disabled = s.state === "stopping";
    text(ui.stop, s.state === "stopping" ? "Stopping…" : "Stop");
    ui.resume.hidden = live || !s.resumable;
    // Compiling has no count of its own: what stands there are the steps.
    const training = s.phase === "train" || s.phase === "compile" || !s.phase || !live;
    const done = training ? s.step : s.done;
    const total = training ? s.total_steps : s.total;
    const share = total ? Math.min(1, (done || 0) / total) : null;
    const phase = live ? PHASES[s.phase] || "Starting" : word;
    const amount = total ? ` · ${training ? "step " : ""}${(done || 0).toLocaleString("en")} of ${total.toLocaleString("en")}` : "";
    text(ui.phase, phase + amount);
    text(ui.eta, live ? left(s) : s.elapsed_s ? `took ${m.duration(s.elapsed_s)}${s.generation ? " since it was resumed" : ""}` : "");
    ui.bar.firstChild.style.width = `${100 * (share ?? (live ? 0.02 : 0))}%`;
    ui.bar.setAttribute("aria-valuenow", Math.round(100 * (share ?? 0)));
    ui.bar.setAttribute("aria-label", phase);
    ui.bar.className = `progress ${tone} ${live && share === null ? "waiting" : ""}`;
    setStat("step", s.step === null || s.step === undefined ? "–" : `${s.step.toLocaleString("en")}${s.total_steps ? ` / ${s.total_steps.toLocaleString("en")}` : ""}`);
    setStat("loss", m.number(last.loss_smooth ?? last.loss, 4));
    setStat("lr", last.lr === null || last.lr === undefined ? "–" : Number(last.lr).toExponential(2));
    // The median that the time left is reckoned with; a single step may have waited for a save.
    const speed = s.s_per_step ?? last.s_per_step;
    setStat("speed", speed ? (speed < 1 ? `${Math.round(speed * 1000)} ms` : `${speed.toFixed(2)} s`) : "–");
    const epochs = view.facts?.plan?.steps?.epochs;
    const hundredths = (v) => String(Number(v.toFixed(2)));
    setStat("epoch", epochs && s.total_steps ? `${hundredths((epochs * s.step) / s.total_steps)} / ${hundredths(epochs)}` : "–");
    const memory = last.vram_reserved ?? last.ram;
    setStat("memory", memory ? m.memory(memory) : "–");
    text(document.querySelector("#stat-memory .stat-label"), last.vram_reserved ? "VRAM" : "RAM");
    if (ui.folder.dataset.path !== s.path) {
      ui.folder.dataset.path = s.path;
      fill(ui.folder, m.pathLine(s.path));
    }
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
        error.exception ? el("details", {}, el("summary", {}, "The exception itself"), el("pre", {}, error.exception)) : null,
      );
    }
  };

  const smoothed = (values, share) => {
    // Bias-corrected, so that the line starts at the first value and not at zero.
    let sum = 0;
    let weight = 0;
    return values.map((v) => {
      if (v === null || v === undefined) return weight ? sum / weight : null;
      sum = share * sum + (1 - share) * v;
      weight = share * weight + (1 - share);
      return sum / weight;
    });
  };
  const drawLoss = () => {
    if (!view.series || !lossChart) return;
    const share = document.getElementById("smoothing").value / 100;
    lossChart.set(view.series.step, { ...view.series, smooth: { mean: smoothed(view.series.loss.mean, share) } });
  };

  const drawMemoryNow = () => {
    m.memoryNow(ui.memoryNow, view.last);
    const on = memory.kind() === "ram" && view.series?.step.length ? "Training on the CPU: the chart shows the trainer's RAM. " : "";
    text(ui.memoryNote, on + [m.memoryWords(view.facts?.memory), m.swapWords(view.facts?.swap, view.last)].filter(Boolean).join(" "));
  };

  // ---- buttons -------------------------------------------------------------------------------------------------
  const SAID = { stop: "Stopping: the run saves first.", save: "A LoRA file is saved after this step.", sample: "Samples are drawn after this step." };
  const ask = async (what) => {
    try {
      await m.post("/control", { run: view.run, what });
      m.toast(SAID[what]);
      poll(true);
      pollRuns();
    } catch (error) {
      m.failed(error);
    }
  };
  m.resume = async (run) => {
    try {
      await m.post("/resume", { run });
      m.toast("Going on from the last saved state, with the run's own settings; the form changes nothing in it.");
      m.openTab("Run");
      choose(run);
      pollRuns();
    } catch (error) {
      m.failed(error);
    }
  };
})();
