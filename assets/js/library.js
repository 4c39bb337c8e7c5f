// The Library tab: what earlier runs left, with the way back for what was deleted.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill } = m;
  let root = null;
  let shown = "";

  const WORDS = { starting: "starting", running: "running", stopping: "stopping", done: "finished", stopped: "stopped", failed: "failed", dead: "ended without a word" };

  const refresh = async () => {
    if (!root || m.currentTab() !== "Library") return;
    try {
      const answer = await m.get("/library");
      const key = JSON.stringify(answer);
      if (key === shown) return;
      shown = key;
      draw(answer.runs);
    } catch (error) {
      m.failed(error);
    }
  };

  const metadata = async (run, file) => {
    try {
      const { metadata } = await m.get("/lora-metadata", { run, file });
      const rows = Object.entries(metadata);
      const box = m.dialog(
        file,
        rows.length
          ? el("div", { class: "scroll" }, el("table", { class: "facts" }, el("tbody", {}, rows.map(([k, v]) => el("tr", {}, el("th", {}, k), el("td", {}, v))))))
          : el("p", { class: "note" }, "The file carries no metadata."),
      );
      box.classList.add("wide-dialog");
    } catch (error) {
      m.failed(error);
    }
  };

  const remove = async (run) => {
    try {
      const { token } = await m.post("/delete", { run });
      shown = "";
      refresh();
      m.pollRuns();
      m.toast(`${run} is in the bin.`, {
        action: "Undo",
        onaction: async () => {
          try {
            await m.post("/restore", { token });
            shown = "";
            refresh();
            m.pollRuns();
          } catch (error) {
            m.failed(error);
          }
        },
      });
    } catch (error) {
      m.failed(error);
    }
  };

  const fileRow = (run, f) =>
    el(
      "div",
      { class: "file" },
      el("div", { class: "file-head" }, el("strong", {}, f.name), el("span", { class: "note" }, m.bytes(f.size))),
      m.pathLine(f.path, [
        el("a", { class: "button small", href: m.url("/download", { run: run.name, file: f.name }), download: f.name }, "Download"),
        el("button", { class: "small", onclick: () => metadata(run.name, f.name) }, "Details"),
      ]),
    );
  // The finished file, or else the newest; what was saved on the way unfolds.
  const files = (run) => {
    const first = run.files.find((f) => f.final) || run.files[run.files.length - 1];
    const rest = run.files.filter((f) => f !== first).reverse();
    return [
      first ? fileRow(run, first) : el("p", { class: "note" }, "No LoRA file was saved."),
      rest.length ? el("details", {}, el("summary", {}, m.count(rest.length, "earlier file")), rest.map((f) => fileRow(run, f))) : null,
    ];
  };

  const draw = (runs) => {
    if (!runs.length) {
      return fill(root, el("div", { class: "empty" }, el("h2", {}, "Nothing here yet"), el("p", {}, "Finished runs, their samples and their LoRA files are kept here.")));
    }
    fill(
      root,
      el(
        "div",
        { class: "library" },
        runs.map((run) =>
          el(
            "article",
            { class: "card run-card", "data-run": run.name },
            el("div", { class: "card-head" }, el("h2", {}, run.name), el("span", { class: `state ${run.tone}` }, WORDS[run.state] || run.state)),
            el("p", { class: "note" }, [run.when, run.total_steps ? `${(run.step || 0).toLocaleString("en")} of ${run.total_steps.toLocaleString("en")} steps` : null, run.bytes ? m.bytes(run.bytes) : null, run.memory ? `memory ${run.memory}` : null].filter(Boolean).join(" · ")),
            run.pictures.length ? el("div", { class: "strip small-strip" }, run.pictures.map((file) => el("img", { src: m.samplePicture(run.name, file), alt: "Sample of this run", loading: "lazy" }))) : null,
            files(run),
            el("p", { class: "note" }, "Folder"),
            m.pathLine(run.path),
            el(
              "div",
              { class: "buttons" },
              el("button", { onclick: () => (m.chooseRun(run.name), m.openTab("Run")) }, "Show"),
              el("button", { title: "Put this run's settings into the form", onclick: () => m.act("load-run", { name: run.name }) }, "Load settings"),
              run.resumable ? el("button", { onclick: () => m.resume(run.name) }, "Resume") : null,
              run.live ? null : el("button", { class: "danger", onclick: () => remove(run.name) }, "Delete"),
            ),
          ),
        ),
      ),
    );
  };

  m.whenPresent("#library-root", (node) => {
    root = node;
    shown = "";
    refresh();
  });
  m.on("runs", refresh);
  document.addEventListener("click", (event) => event.target.closest?.("#tabs button[role=tab]") && setTimeout(refresh, 60));
})();
