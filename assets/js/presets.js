// Presets: the list, what loading one would change, saving and renaming; and settings that come from other programs.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, dialog } = m;

  const ask = (title, label, value, button, done, hint) => {
    const name = el("input", { type: "text", value, id: "ask-name", maxlength: 80, spellcheck: "false", required: true });
    const form = el(
      "form",
      {
        class: "ask",
        onsubmit: (event) => {
          event.preventDefault();
          if (!name.value.trim()) return name.focus();
          box.close();
          done(name.value.trim());
        },
      },
      el("label", { for: "ask-name" }, label),
      name,
      hint ? el("p", { class: "note" }, hint) : null,
      el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, button)),
    );
    const box = dialog(title, form);
    name.select();
  };

  const DEFAULTS = { name: "", builtin: true, description: "Every setting as it comes." };
  let presetBox = null;
  let chosen = null;
  let keep = true;
  const openPresets = () => {
    chosen = m.state.desk.preset || null;
    keep = true;
    presetBox = dialog("Presets", el("div", { class: "presets" }, el("div", { class: "preset-list", role: "listbox", "aria-label": "Presets" }), el("div", { class: "preset-side" })));
    presetBox.classList.add("wide-dialog");
    drawPresets();
    if (chosen !== null) pick(chosen);
  };
  const drawPresets = () => {
    if (!presetBox?.isConnected) return;
    const list = presetBox.querySelector(".preset-list");
    // By number, so that 8 GB come before 12.
    const sorted = (builtin) => m.state.presets.filter((p) => p.builtin === builtin).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
    // The chosen family's first, since a preset is mostly sought by card.
    const own = m.state.desk.family;
    const builtin = sorted(true);
    const families = [...new Set(builtin.map((p) => p.family))].filter(Boolean).sort((a, b) => (b === own) - (a === own));
    const groups = [
      ["Yours", sorted(false)],
      ["To begin with", [...builtin.filter((p) => !p.family), DEFAULTS]],
      ...families.map((family) => [m.state.desk.families[family], builtin.filter((p) => p.family === family)]),
    ];
    fill(
      list,
      groups.map(([title, presets]) => [
        presets.length ? el("div", { class: "list-title" }, title) : null,
        presets.map((p) =>
          el(
            "button",
            {
              role: "option",
              class: "preset",
              "data-preset": p.name,
              "aria-selected": p.name === chosen ? "true" : "false",
              onclick: () => pick(p.name),
              ondblclick: () => load(p.name),
            },
            el("strong", {}, p.name || "Defaults", p.name && p.name === m.state.desk.preset ? el("span", { class: "tag" }, "loaded") : null),
            p.description ? el("span", {}, p.description) : null,
          ),
        ),
      ]),
    );
    if (chosen === null) fill(presetBox.querySelector(".preset-side"), el("p", { class: "note" }, "Choose a preset to see what loading it would change."));
  };
  // What is on the right belongs to what is chosen on the left, or is empty: its Load button must never load another.
  const pick = (name) => {
    chosen = name;
    drawPresets();
    fill(presetBox.querySelector(".preset-side"), el("p", { class: "note" }, "Comparing…"));
    m.act("compare", { name, keep });
  };
  const load = (name) => {
    presetBox?.close();
    m.act("load", { name, keep });
  };
  // A preset for a card names no model and no pictures: those that were given already need not be given again.
  const keepOwn = (name, own) => {
    const box = el("input", { type: "checkbox", id: "keep-own", onchange: () => ((keep = box.checked), pick(name)) });
    box.checked = keep;
    return el("label", { class: "keep-own" }, box, el("span", {}, `Keep what the preset does not name: ${own.join(", ")}`));
  };
  // Bytes, not text: the server tells a wrong encoding from a wrong line.
  const chooseFile = (accept, done) => {
    const file = el("input", { type: "file", accept });
    file.onchange = () => file.files.length && sendFile(file.files[0], done);
    file.click();
  };
  const sendFile = async (file, done) => {
    if (file.size > 1_000_000) return m.toast(`${file.name} is too large for a settings file (over 1 MB). Pictures and models are named by their folder.`, { kind: "error" });
    const bytes = await file.arrayBuffer().then((content) => new Uint8Array(content)).catch(() => null);
    if (!bytes) return m.toast(`${file.name} can't be read. Choose a settings file, not a folder.`, { kind: "error" });
    let binary = "";
    bytes.forEach((byte) => (binary += String.fromCharCode(byte)));
    done(file.name, btoa(binary));
  };
  let sent = null;
  const importChosen = (name, content) => {
    presetBox?.close();
    sent = { name: name.replace(/\.(toml|json)$/i, ""), content };
    m.act("import", sent);
  };
  const importFile = () => chooseFile(".toml,.json,text/plain", importChosen);
  // A file dropped anywhere is imported; left to the browser, it would take the page's place.
  document.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  document.addEventListener("drop", (event) => {
    const files = event.dataTransfer?.files;
    if (!files?.length || event.defaultPrevented) return;
    event.preventDefault();
    if (files.length > 1) return m.toast("Drop one settings file at a time. Pictures are named by their folder, on the Dataset tab.", { kind: "error" });
    sendFile(files[0], importChosen);
  });
  // Settings of another trainer: nothing is taken before its difference was seen.
  m.on("brought", ({ name, kind, rest, rows, groups, off, wantsDataset }) => {
    const box = dialog(
      `Import ${name}`,
      el("p", { class: "note" }, `Read as ${kind}. ${rows.length ? `Taking it changes ${m.count(rows.length, "setting")}, listed below. ${rest}` : "The form already shows exactly this."}`),
      rows.length ? differenceTable(rows) : null,
      groups.map(({ title, notes }) =>
        el(
          "details",
          { class: "brought", open: title.startsWith("Not taken") || null },
          el("summary", {}, `${title} (${notes.length})`),
          el("ul", { class: "bad-list" }, notes.map((note) => el("li", {}, (note.line ? `Line ${note.line}: ` : "") + note.text))),
        ),
      ),
      off.length ? el("p", { class: "note" }, `Empty or off there, so nothing is lost: ${off.join(", ")}`) : null,
      el(
        "div",
        { class: "buttons" },
        el("button", { class: "primary", "data-do": "take-import", onclick: () => (box.close(), m.act("take-import", { name })) }, "Take these settings"),
        wantsDataset
          ? el(
              "button",
              {
                "data-do": "add-dataset",
                onclick: () => chooseFile(".toml", (_, dataset) => (box.close(), m.act("import", { ...sent, dataset }))),
              },
              "Add its data set file…",
            )
          : null,
      ),
    );
    box.classList.add("wide-dialog");
  });

  m.on("presets", drawPresets);
  m.on("difference", ({ name, builtin, rows, own, problems }) => {
    if (!presetBox?.isConnected || name !== chosen) return;
    const bad = (problems || []).filter((p) => p.severity === "error");
    fill(
      presetBox.querySelector(".preset-side"),
      el("h3", {}, name || "Defaults"),
      own.length ? keepOwn(name, own) : null,
      bad.length
        ? [el("p", { class: "note" }, "This preset can't be loaded:"), el("ul", { class: "bad-list" }, bad.map((p) => el("li", {}, (p.line ? `Line ${p.line}: ` : "") + m.sentence(p))))]
        : rows.length
          ? [
              el("p", { class: "note" }, `Loading changes ${m.count(rows.length, "setting")}, listed below.${name ? ` ${own.length && keep ? "Other settings" : "Settings"} that the preset does not name get their defaults.` : ""}`),
              differenceTable(rows),
            ]
          : el("p", { class: "note" }, "The form already shows exactly this preset."),
      el(
        "div",
        { class: "buttons" },
        bad.length ? null : el("button", { class: "primary", "data-do": "load", onclick: () => load(name) }, "Load"),
        name ? el("a", { class: "button", href: m.url("/preset", { name }), download: "" }, "Export") : null,
        builtin ? null : el("button", { onclick: () => (presetBox.close(), ask("Rename preset", "New name", name, "Rename", (to) => m.act("rename", { name, to }))) }, "Rename"),
        builtin ? null : el("button", { class: "danger", onclick: () => (presetBox.close(), m.act("delete", { name })) }, "Delete"),
      ),
    );
  });
  m.on("importFailed", ({ name, problems }) =>
    dialog(
      `${name} can't be imported`,
      el("p", { class: "note" }, "Nothing was changed. Mend these in the file and import it again:"),
      el("ul", { class: "bad-list" }, problems.filter((p) => p.severity === "error").map((p) => el("li", {}, (p.line ? `Line ${p.line}: ` : "") + (p.path ? `${p.path}: ` : "") + m.sentence(p)))),
    ),
  );
  const differenceTable = (rows) =>
    el(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "What changes" },
      el(
        "table",
        { class: "facts difference" },
        el("thead", {}, el("tr", {}, el("th", {}, "Setting"), el("th", {}, "Now"), el("th", {}, "After loading"))),
        el("tbody", {}, rows.map((row) => el("tr", {}, el("td", {}, row.label), el("td", { class: "old" }, row.before), el("td", {}, row.after)))),
      ),
    );

  const save = () => {
    const { preset } = m.state.desk;
    const known = m.state.presets.find((p) => p.name === preset);
    if (known && !known.builtin) m.act("save", { name: preset });
    else saveAs();
  };
  const saveAs = () => {
    const { preset } = m.state.desk;
    ask("Save as a preset", "Name", preset ? `${preset} 2` : "", "Save", (name) => m.act("save-as", { name }), "Kept in presets/user on this machine, as TOML.");
  };

  m.presets = { open: openPresets, save, saveAs, importFile };
})();
