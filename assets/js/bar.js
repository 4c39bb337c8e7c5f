// The bar on top: presets, search, undo, theme, Start; and the summary of problems under it.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill } = m;
  const mac = /Mac|iPhone|iPad/.test(navigator.platform);

  // ---- the bar itself ------------------------------------------------------------------------------------------
  let parts = null;
  const build = (root) => {
    const search = el("input", { type: "search", id: "search", placeholder: "Search settings", "aria-label": "Search settings", "data-first": "1" });
    parts = {
      preset: el("button", { class: "preset-button", id: "preset-button", "aria-haspopup": "dialog", onclick: m.presets.open }, "Presets"),
      save: el("button", { id: "save-preset", onclick: m.presets.save, title: "Save the form to its preset" }, "Save"),
      undo: el("button", { class: "icon", id: "undo", "aria-label": "Undo the last load", title: "Undo the last load", disabled: true, onclick: () => m.act("undo") }, m.icon("undo")),
      redo: el("button", { class: "icon", id: "redo", "aria-label": "Redo the load", title: "Redo the load", disabled: true, onclick: () => m.act("redo") }, m.icon("redo")),
      theme: el("button", { class: "icon", id: "theme", "aria-label": "Light or dark", title: "Light or dark", onclick: switchTheme }, m.icon("theme")),
      chip: el("button", { class: "chip", id: "run-chip", hidden: true, onclick: () => m.openTab("Run") }),
      start: el("button", { class: "primary", id: "start", title: `Check everything and start training (${mac ? "⌘" : "Ctrl"} Enter)`, onclick: start }, "Start training"),
      summary: el("div", { class: "summary", id: "problem-summary", role: "alert", hidden: true }),
    };
    fill(
      root,
      el("h1", { class: "offscreen" }, "Monotile"),
      el(
        "header",
        { class: "bar" },
        el("a", { class: "brand", href: m.url("/"), "aria-label": "Monotile", onclick: (e) => (e.preventDefault(), m.openTab("Model")) }, el("img", { src: m.url("/page/logo.svg"), alt: "", width: 30, height: 30 }), el("span", {}, "Monotile")),
        el(
          "div",
          { class: "preset-group" },
          parts.preset,
          parts.save,
          el("button", { id: "save-as", onclick: m.presets.saveAs, title: "Save the form under a new name" }, "Save as…"),
          el("button", { id: "import", onclick: m.presets.importFile, title: "Add a preset from a TOML file, or bring over settings of sd-scripts, musubi-tuner or kohya_ss" }, "Import…"),
          parts.undo,
          parts.redo,
        ),
        el("div", { class: "search" }, search, el("kbd", { "aria-hidden": "true" }, "/")),
        parts.chip,
        el("div", { class: "bar-end" }, parts.theme, parts.start),
      ),
      parts.summary,
    );
    m.suggest(
      search,
      (text) => find(text),
      (item) => {
        search.value = "";
        search.blur();
        m.goToField(item.id, item.tab);
      },
      { minimum: 1, name: "Settings" },
    );
    drawDesk(m.state.desk);
    drawSummary(m.state.problems);
  };
  m.whenPresent("#bar-root", build);

  const plain = (text) => text.toLowerCase().replace(/[_\-.]+/g, " ");
  const find = (text) => {
    const words = plain(text).split(/\s+/).filter(Boolean);
    const scored = [];
    for (const s of m.state.settings) {
      const names = [s.label, s.name, ...s.aliases].map(plain);
      const all = `${names.join(" ")} ${plain(s.help)} ${plain(s.group)}`;
      if (!words.every((word) => all.includes(word))) continue;
      const joined = words.join(" ");
      const score = names.some((n) => n === joined) ? 0 : names.some((n) => n.startsWith(joined)) ? 1 : names.some((n) => n.includes(joined)) ? 2 : 3;
      const alias = s.aliases.find((a) => plain(a).includes(joined));
      scored.push({ score, item: { label: s.label, detail: `${s.tab} · ${score < 3 && alias && !plain(s.label).includes(joined) ? `= ${alias}` : s.name}`, id: s.id, tab: s.tab } });
    }
    return scored.sort((a, b) => a.score - b.score).slice(0, 12).map((s) => s.item);
  };

  const drawDesk = (desk) => {
    if (!parts) return;
    const changed = (desk.changed || []).length;
    fill(
      parts.preset,
      el("span", { class: "preset-name" }, desk.preset || "Presets"),
      desk.preset && changed ? el("span", { class: "preset-changed" }, `${changed} changed`) : null,
      m.icon("down_small"),
    );
    const known = m.state.presets.find((p) => p.name === desk.preset);
    parts.save.disabled = Boolean(known && !known.builtin && !changed);
    parts.undo.disabled = !desk.canUndo;
    parts.redo.disabled = !desk.canRedo;
  };
  m.on("desk", drawDesk);

  // Which row of a list is meant: counted from one, as the rows are.
  const row = (problem) => {
    const at = /\[(\d+)\]/.exec(problem.path || "");
    return at ? ` ${Number(at[1]) + 1}` : "";
  };
  const drawSummary = (problems) => {
    if (!parts) return;
    const bad = problems.filter((p) => p.severity === "error");
    parts.summary.hidden = !bad.length;
    if (!bad.length) return fill(parts.summary);
    fill(
      parts.summary,
      el("strong", {}, bad.length === 1 ? "One thing needs your attention" : `${bad.length} things need your attention`),
      el(
        "ul",
        {},
        bad.map((p) =>
          el(
            "li",
            {},
            p.id
              ? el("button", { class: "link", onclick: () => m.goToField(p.id, p.tab) }, `${p.tab}: ${p.label}${row(p)}`)
              : null,
            el("span", {}, `${p.id ? " – " : ""}${m.sentence(p)}`),
          ),
        ),
      ),
    );
  };
  m.on("problems", drawSummary);
  m.on("refused", () => parts?.summary.scrollIntoView({ block: "nearest" }));

  // ---- start, theme, keys --------------------------------------------------------------------------------------
  let starting = null;
  const start = () => {
    if (parts.start.disabled) return;
    parts.start.disabled = true;
    m.text(parts.start, "Checking…");
    clearTimeout(starting);
    starting = setTimeout(ready, 20000);
    m.act("start");
  };
  const ready = () => {
    clearTimeout(starting);
    if (!parts) return;
    parts.start.disabled = false;
    m.text(parts.start, "Start training");
  };
  m.start = start;
  m.on("started", ({ run }) => {
    ready();
    m.state.run = run;
    m.openTab("Run");
    m.emit("run", run);
  });
  m.on("refused", ready);

  m.on("active", (active) => {
    if (!parts) return;
    parts.chip.hidden = !active;
    if (active) {
      const share = active.total_steps ? Math.floor((100 * (active.step || 0)) / active.total_steps) : null;
      const short = active.name.replace(/-\d{8}-\d{6}(-\d+)?$/, "");
      fill(parts.chip, el("span", { class: "pulse" }), el("span", { class: "chip-name" }, short), share === null ? null : el("span", {}, `${share} %`));
      parts.chip.title = active.text || active.name;
      document.title = `${share === null ? "" : `${share} % · `}Monotile`;
    } else document.title = "Monotile";
  });

  const setTheme = (theme) => {
    document.body.classList.toggle("dark", theme === "dark");
    document.documentElement.style.colorScheme = theme;
    m.emit("theme", theme);
  };
  function switchTheme() {
    const theme = document.body.classList.contains("dark") ? "light" : "dark";
    try {
      localStorage.setItem("monotile-theme", theme);
    } catch {
      // Private windows may refuse storage; the choice then lasts until the page is closed.
    }
    setTheme(theme);
  }
  m.whenPresent("#bar-root", () => {
    let kept = null;
    try {
      kept = localStorage.getItem("monotile-theme");
    } catch {
      kept = null;
    }
    setTheme(kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  });

  const command = mac ? "⌘" : "Ctrl";
  const KEYS = [
    [`${command} Enter`, "Start training"],
    [`${command} S`, "Save the preset"],
    ["/", "Search settings"],
    ["Esc", "Leave a field, close a dialog"],
    ["?", "Show these keys"],
  ];
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      start();
    } else if (event.key === "s" && (event.ctrlKey || event.metaKey) && !event.shiftKey) {
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) m.presets.save();
    } else if (event.key === "?" && !typing && !document.querySelector("dialog[open]")) {
      m.dialog("Keys", el("table", { class: "facts" }, el("tbody", {}, KEYS.map(([key, what]) => el("tr", {}, el("th", {}, el("kbd", {}, key)), el("td", {}, what))))));
    } else if (event.key === "/" && !typing && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      document.getElementById("search")?.focus();
    } else if (event.key === "Escape" && typing) {
      event.target.blur();
    }
  });
})();
