// What the page adds to Gradio's widgets: problems beside fields, marks on changed ones, folder suggestions.
(() => {
  "use strict";
  const m = window.monotile;
  const { el } = m;

  const input = (field) => field.querySelector("input:not([type=hidden]), textarea");

  // Tabs and folded panels are drawn only when they are opened, in Gradio's own time, and one that has just been drawn
  // may fold itself again: so look, open the outermost thing that is still shut, and look again.
  let jump = 0;
  m.goToField = async (id, tab) => {
    const mine = ++jump;
    const setting = m.state.settings.find((s) => s.id === id);
    const title = tab || setting?.tab;
    for (const end = performance.now() + 20000; performance.now() < end && mine === jump; ) {
      if (title) m.openTab(title);
      const shut = (setting?.folds || []).map((fold) => document.getElementById(fold)?.querySelector(".label-wrap")).find((head) => !head?.classList.contains("open"));
      const field = document.getElementById(id);
      field?.classList.add("sought");
      if (shut === undefined && field?.offsetParent) return arrive(field);
      shut?.click();
      await new Promise((resolve) => setTimeout(resolve, 120));
    }
  };
  const arrive = (field) => {
    field.scrollIntoView({ block: "center", behavior: m.calm() ? "auto" : "smooth" });
    (field.querySelector("[aria-invalid=true]") || input(field) || field.querySelector("button") || field).focus({ preventScroll: true });
    field.classList.add("found");
    setTimeout(() => field.classList.remove("found"), 1600);
  };
  m.calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

  m.setInput = (node, value) => {
    const kind = node.tagName === "TEXTAREA" ? HTMLTextAreaElement : HTMLInputElement;
    Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(node, value);
    node.dispatchEvent(new Event("input", { bubbles: true }));
  };

  const sentence = (problem) => [problem.text, problem.remedy].filter(Boolean).join(" ");
  m.sentence = sentence;

  const unmark = (field) => {
    field.querySelectorAll(".field-problem").forEach((node) => node.remove());
    field.classList.remove("has-problem", "has-warning");
    input(field)?.removeAttribute("aria-invalid");
  };
  const mark = (field, problems) => {
    unmark(field);
    for (const problem of problems.filter((p) => p.id === field.id)) {
      const note = el("div", { class: `field-problem ${problem.severity}` }, sentence(problem));
      note.id = `problem-${problem.id}-${field.querySelectorAll(".field-problem").length}`;
      field.append(note);
      field.classList.add("has-problem");
      if (problem.severity === "warning") field.classList.add("has-warning");
      const target = input(field);
      if (target && problem.severity === "error") {
        if (!problem.path.includes("[")) target.setAttribute("aria-invalid", "true");
        target.setAttribute("aria-describedby", note.id);
      }
    }
  };
  const fieldsHere = () => [...document.querySelectorAll("[id^='f-'].block, .k-tables[id^='f-']")];
  m.on("problems", (problems) => {
    fieldsHere().forEach((field) => mark(field, problems));
    // A dot on the tab says where to look.
    const bad = new Set(problems.filter((p) => p.severity === "error").map((p) => p.tab));
    document.querySelectorAll("#tabs button[role=tab]").forEach((tab) => {
      tab.classList.toggle("tab-problem", bad.has(tab.textContent.trim()));
    });
  });

  const idOf = (path) => `f-${path.replaceAll(".", "-")}`;
  const markChanged = (field) => {
    const changed = m.state.desk.changedFromDefault || [];
    field.classList.toggle("is-changed", changed.some((path) => idOf(path) === field.id));
  };
  // What the chosen family lacks is not shown, unless somebody set it or looked for it.
  const markLacking = (field) => {
    const lacking = m.state.desk.lacking || [];
    field.classList.toggle("is-lacking", lacking.some((path) => idOf(path) === field.id));
  };
  // What a part is called differs by family: clip_l.safetensors for FLUX, another file for Qwen-Image.
  const hint = (field) => {
    const [, where] = Object.entries(m.state.desk.parts || {}).find(([path]) => idOf(path) === field.id) || [];
    if (where && input(field)) input(field).placeholder = where;
  };
  m.on("desk", () => fieldsHere().forEach((field) => (markChanged(field), markLacking(field), hint(field))));
  m.whenPresent("[id^='f-'].block, .k-tables[id^='f-']", (field) => {
    mark(field, m.state.problems);
    markChanged(field);
    markLacking(field);
    hint(field);
  });

  // A list under an input, used by the search box and by every path field.
  // source(text) -> items {label, detail, value}; pick(item) is called with the chosen one.
  m.suggest = (box, source, pick, { minimum = 0, name = "Suggestions" } = {}) => {
    let items = [];
    let at = -1;
    let turn = 0;
    let list = null;
    const id = `list-${Math.random().toString(36).slice(2, 9)}`;
    box.setAttribute("role", "combobox");
    box.setAttribute("aria-autocomplete", "list");
    box.setAttribute("aria-expanded", "false");
    box.setAttribute("autocomplete", "off");
    const close = () => {
      list?.remove();
      list = null;
      at = -1;
      box.setAttribute("aria-expanded", "false");
      box.removeAttribute("aria-activedescendant");
    };
    const choose = (index) => {
      const item = items[index];
      close();
      if (item) pick(item);
    };
    const highlight = (index) => {
      at = (index + items.length) % items.length;
      [...list.children].forEach((node, i) => node.setAttribute("aria-selected", i === at ? "true" : "false"));
      list.children[at].scrollIntoView({ block: "nearest" });
      box.setAttribute("aria-activedescendant", list.children[at].id);
    };
    const show = () => {
      list?.remove();
      if (!items.length) return close();
      const place = box.getBoundingClientRect();
      list = el(
        "div",
        { class: "suggestions", role: "listbox", id, "aria-label": name },
        items.map((item, i) =>
          el(
            "div",
            { role: "option", id: `${id}-${i}`, "aria-selected": "false", onpointerdown: (e) => (e.preventDefault(), choose(i)) },
            el("span", { class: "what" }, item.label),
            item.detail ? el("span", { class: "where" }, item.detail) : null,
          ),
        ),
      );
      const width = Math.min(Math.max(place.width, 440), window.innerWidth - 16);
      const left = Math.max(8, Math.min(place.left, window.innerWidth - width - 8));
      list.style.cssText = `left:${left + window.scrollX}px;top:${place.bottom + window.scrollY + 4}px;width:${width}px`;
      // A dialog lies above everything: a list that belongs to it has to live inside.
      (box.closest("dialog") || document.body).append(list);
      box.setAttribute("aria-expanded", "true");
      box.setAttribute("aria-controls", id);
      at = -1;
    };
    const update = async () => {
      const mine = ++turn;
      const text = box.value;
      let found = [];
      if (text.length >= minimum) {
        try {
          found = await source(text);
        } catch {
          found = [];
        }
      }
      if (mine !== turn || document.activeElement !== box) return;
      items = found;
      show();
    };
    box.addEventListener("input", update);
    box.addEventListener("focus", () => box.value.length >= minimum && update());
    box.addEventListener("blur", close);
    box.addEventListener("keydown", (event) => {
      if (!list) return;
      if (event.key === "ArrowDown") highlight(at + 1);
      else if (event.key === "ArrowUp") highlight(at < 0 ? items.length - 1 : at - 1);
      else if (event.key === "Enter" && (at >= 0 || box.dataset.first)) choose(Math.max(at, 0));
      else if (event.key === "Escape") close();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    return { update, close };
  };

  m.pathInput = (box, kind = "any") => {
    // Another machine is asked only where a person typed its name: not for what a file put here.
    let typed = "";
    const host = (text) => /^\s*[\\/]{2}[^\\/]*/.exec(text)?.[0] ?? "";
    box.addEventListener("input", (event) => event.isTrusted && (typed = host(box.value)));
    const offered = m.suggest(
      box,
      async (text) =>
        (await m.get("/fs", { prefix: text, kind, typed: host(text) === typed })).entries.map((entry) => ({
          label: entry.folder ? `${entry.name}/` : entry.name,
          detail: entry.note || "",
          value: entry.folder ? entry.path + entry.separator : entry.path,
          folder: entry.folder,
        })),
      (item) => {
        m.setInput(box, item.value);
        if (item.folder) offered.update();
      },
      { name: "Folders and files" },
    );
  };
  // The help stands under the input. Long ones are cut to two lines, and shown whole while the field is used.
  const addHelp = (field) => {
    const setting = m.state.settings.find((s) => s.id === field.id);
    if (!setting || setting.kind === "tables" || field.querySelector(".mt-help")) return;
    const help = el("div", { class: "mt-help", id: `help-${field.id}` }, el("span", {}, setting.help));
    const place = field.querySelector("label.container") || field.querySelector(".container") || field.querySelector("label")?.parentElement || field;
    place.append(help);
    const target = input(field);
    if (target && !target.getAttribute("aria-describedby")) target.setAttribute("aria-describedby", help.id);
    const measure = () => {
      const span = help.firstChild;
      if (help.offsetParent) field.classList.toggle("long-help", span.scrollHeight > span.clientHeight + 4);
    };
    new ResizeObserver(measure).observe(help);
  };
  m.whenPresent("[id^='f-'].block", addHelp);
  m.on("settings", () => document.querySelectorAll("[id^='f-'].block").forEach(addHelp));

  m.whenPresent(".k-path", (field) => {
    const box = input(field);
    if (box) m.pathInput(box);
  });
  m.whenPresent(".k-int input, .k-int textarea", (box) => box.setAttribute("inputmode", "numeric"));
  m.whenPresent(".k-float input, .k-float textarea", (box) => box.setAttribute("inputmode", "decimal"));
})();
