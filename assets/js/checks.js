// What is checked while settings are made: the base model, the drawings, memory, the doctor.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, text } = m;

  // Asks again only when the settings that matter have changed.
  const follow = (selector, path, draw) => {
    let node = null;
    let last = null;
    const update = async () => {
      if (!node) return;
      try {
        const answer = await m.get(path);
        const key = JSON.stringify(answer);
        if (key === last) return;
        last = key;
        draw(node, answer);
      } catch (error) {
        fill(node, el("p", { class: "note" }, error.message));
      }
    };
    m.whenPresent(selector, (found) => {
      node = found;
      last = null;
      update();
    });
    m.on("desk", update);
    return update;
  };
  // What runs have done meanwhile is told when its tab is opened.
  const whenOpened = (title, update) =>
    document.addEventListener("click", (event) => {
      if (event.target.closest?.("#tabs button[role=tab]")?.textContent.trim() === title) update();
    });

  const problem = (p) => {
    const elsewhere = p.id && p.path !== "model.base_model";
    return el("li", { class: p.severity }, el("strong", {}, p.text), p.remedy ? ` ${p.remedy}` : "", elsewhere ? [" ", el("button", { class: "link", onclick: () => m.goToField(p.id, p.tab) }, `Go to ${p.label}`)] : null);
  };
  follow("#model-root", "/model", (node, answer) => {
    if (!answer.path) return fill(node, el("p", { class: "note" }, "Give the base model's folder or file, and what is in it is checked at once."));
    const good = !answer.problems.some((p) => p.severity === "error");
    const { fits } = answer;
    fill(
      node,
      el("div", { class: `verdict ${good ? "good" : "bad"}`, id: "model-verdict" }, good ? `${answer.title} found, ${m.bytes(answer.total)} on disk.` : fits ? `This is ${fits.title}, and the family is set to ${answer.title}.` : "This base model can't be trained on yet."),
      fits
        ? el("div", { class: "buttons" }, el("button", { class: "primary", id: "take-family", onclick: () => m.act("apply", { change: fits.change }) }, `Set the family to ${fits.title}`))
        : answer.problems.length
          ? el("ul", { class: "problem-list" }, answer.problems.map(problem))
          : null,
      answer.parts.length
        ? el(
            "table",
            { class: "facts" },
            el("thead", {}, el("tr", {}, el("th", {}, "Part"), el("th", {}, "Folder or file"), el("th", {}, "On disk"))),
            el("tbody", {}, answer.parts.map((p) => el("tr", {}, el("td", {}, p.name), el("td", {}, el("code", {}, p.place)), el("td", {}, p.bytes === null ? el("span", { class: "bad" }, "missing") : m.bytes(p.bytes))))),
          )
        : null,
      answer.facts.length ? el("p", { class: "note" }, answer.facts.join(" · ")) : null,
    );
  });

  follow("#timesteps-picture", "/picture/timesteps", (node, answer) => m.svg(node, answer.svg));
  follow("#lr-picture", "/picture/lr", (node, answer) => m.svg(node, answer.svg));

  follow("#profile-note", "/profile", (node, answer) => fill(node, answer.text ? el("p", { class: "note" }, answer.text) : null));

  whenOpened("Compile", follow("#payback-note", "/payback", (node, answer) => fill(node, answer.text ? el("p", { class: "note" }, answer.text) : null)));

  m.whenPresent("#cache-root", (node) => {
    const size = el("span", { class: "note" });
    const place = el("div");
    const clear = el("button", { onclick: () => empty() }, "Clear the cache");
    const export_ = el("button", { id: "cache-export", onclick: () => take() }, "Export");
    const file = el("input", { type: "file", accept: ".zip", hidden: true, "aria-label": "Archive of compiled kernels", onchange: () => bring() });
    const import_ = el("button", { id: "cache-import", onclick: () => file.click() }, "Import…");
    const trust = el("p", { class: "note" }, "Kernels are code that will run: import archives only from people you trust. They fit the same GPU and torch only.");
    fill(node, el("div", { class: "look-head" }, export_, import_, clear, size, file), place, trust);
    const take = async () => {
      export_.disabled = true;
      text(export_, "Exporting…");
      try {
        const response = await fetch(m.url("/cache/export"), { cache: "no-store" });
        if (!response.ok) throw new Error((await response.json()).detail);
        const address = URL.createObjectURL(await response.blob());
        el("a", { href: address, download: "monotile-compile-cache.zip" }).click();
        setTimeout(() => URL.revokeObjectURL(address), 60_000);
      } catch (error) {
        m.failed(error);
      }
      export_.disabled = false;
      text(export_, "Export");
      show();
    };
    const bring = async () => {
      const chosen = file.files[0];
      file.value = "";
      if (!chosen) return;
      import_.disabled = true;
      text(import_, "Importing…");
      try {
        const response = await fetch(m.url("/cache/import"), { method: "POST", headers: { "Content-Type": "application/zip" }, body: chosen });
        const said = await response.json();
        if (!response.ok) throw new Error(said.detail);
        m.toast(said.text);
      } catch (error) {
        m.failed(error);
      }
      import_.disabled = false;
      text(import_, "Import…");
      show();
    };
    const show = async () => {
      try {
        const answer = await m.get("/cache");
        text(size, answer.files ? `${m.bytes(answer.bytes)} in ${m.count(answer.files, "file")}` : "Empty");
        clear.disabled = export_.disabled = !answer.files;
        fill(place, m.pathLine(answer.path));
      } catch (error) {
        text(size, error.message);
      }
    };
    const empty = async () => {
      try {
        const gone = await m.post("/cache/clear");
        m.toast(`${m.bytes(gone.bytes)} of compiled kernels deleted. The next run compiles anew.`);
        show();
      } catch (error) {
        m.failed(error);
      }
    };
    show();
    whenOpened("Compile", show);
  });

  follow("#memory-root", "/machine", (node, answer) =>
    fill(
      node,
      el("div", { class: "stats" }, answer.tiles.map((t) => el("div", { class: "stat" }, el("span", { class: "stat-value" }, t.value), el("span", { class: "stat-label" }, t.label)))),
      answer.rows.length ? el("table", { class: "facts" }, el("tbody", {}, answer.rows.map((r) => el("tr", {}, el("th", {}, r[0]), el("td", {}, r[1]))))) : null,
      answer.notes.map((note) => el("p", { class: "note" }, note)),
    ),
  );

  // ---- doctor --------------------------------------------------------------------------------------------------
  const SIGN = { ok: "✓", warn: "!", fail: "×" };
  let timer = null;
  m.whenPresent("#doctor-root", (node) => {
    const button = el("button", { id: "doctor", onclick: () => start() }, "Check this machine");
    const note = el("span", { class: "note" }, "Compiles a small function forward and backward, and looks for what torch.compile needs. About half a minute.");
    const result = el("div", { id: "doctor-result" });
    fill(node, el("div", { class: "look-head" }, button, note), result);
    const start = async () => {
      try {
        await m.post("/doctor");
        watch();
      } catch (error) {
        m.failed(error);
      }
    };
    const watch = async () => {
      clearTimeout(timer);
      const answer = await m.get("/doctor").catch(() => null);
      if (!answer) return void (timer = setTimeout(watch, 2000));
      button.disabled = answer.state === "running";
      text(button, answer.state === "running" ? "Checking…" : "Check this machine");
      if (answer.state === "running") timer = setTimeout(watch, 700);
      if (answer.checks?.length) {
        fill(
          result,
          el(
            "table",
            { class: "facts doctor" },
            el("tbody", {}, answer.checks.map((c) => el("tr", { class: c.state }, el("td", { class: "sign", "aria-label": c.state }, SIGN[c.state] || "?"), el("th", {}, c.name), el("td", {}, c.text, c.remedy && c.state !== "ok" ? el("span", { class: "remedy block" }, c.remedy) : null)))),
          ),
          answer.state === "running" ? el("p", { class: "note" }, "Compiling a small function is the last and longest check…") : null,
        );
      }
      if (answer.state === "failed") fill(result, el("p", { class: "warning" }, answer.text));
    };
    watch();
  });
})();
