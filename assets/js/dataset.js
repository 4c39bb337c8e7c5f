// "Look at the images" on the Dataset tab, and the shape plan on the Compile tab: one job on the server feeds both.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, text } = m;
  let timer = null;
  let page = 0;
  let result = null;
  let drawn = null;

  const look = async () => {
    try {
      await m.post("/look");
      page = 0;
      watch();
    } catch (error) {
      m.failed(error);
    }
  };
  const stop = async () => m.post("/look/stop").catch(m.failed);

  const watch = async () => {
    clearTimeout(timer);
    let state;
    try {
      state = await m.get("/look");
    } catch {
      timer = setTimeout(watch, 2000);
      return;
    }
    drawState(state);
    if (state.state === "running") timer = setTimeout(watch, 400);
    else if (state.state === "done") {
      // Another look is drawn anew even if it found the same: its pictures are asked for by its number.
      const key = JSON.stringify([state.look, state.result]);
      result = state.result;
      drawResult(key !== drawn);
      drawn = key;
    }
  };
  // The plan follows the form without another look.
  let pause = null;
  m.on("desk", () => {
    if (!result) return;
    clearTimeout(pause);
    pause = setTimeout(watch, 300);
  });

  const roots = { look: null, plan: null };
  const frame = (node, kind) => {
    roots[kind] = node;
    fill(
      node,
      el(
        "div",
        { class: "look-head" },
        el("button", { class: kind === "look" ? "primary" : "", "data-look": kind, onclick: look }, kind === "look" ? "Look at the images" : "Make the shape plan"),
        el("div", { class: "look-progress", hidden: true }, el("div", { class: "progress busy" }, el("div")), el("span", { class: "note" }), el("button", { class: "small", onclick: stop }, "Cancel")),
        el("p", { class: "note look-note" }, kind === "look" ? "Reads sizes and captions, decodes every picture once, and lists what is odd. Nothing is changed." : "Counts tokens and graphs from the images and these settings, before anything is loaded."),
      ),
      el("div", { class: "look-result", id: `${kind}-result` }),
    );
    watch();
  };
  m.whenPresent("#look-root", (node) => frame(node, "look"));
  m.whenPresent("#plan-root", (node) => frame(node, "plan"));

  const drawState = (state) => {
    for (const node of Object.values(roots)) {
      if (!node) continue;
      const running = state.state === "running";
      const progress = node.querySelector(".look-progress");
      progress.hidden = !running;
      node.querySelector(".look-note").hidden = running;
      node.querySelector("[data-look]").disabled = running;
      const share = state.total ? state.done / state.total : 0.03;
      progress.querySelector(".progress > div").style.width = `${100 * share}%`;
      text(progress.querySelector("span"), state.total ? `${state.done.toLocaleString("en")} of ${m.count(state.total, "picture")}` : "Finding pictures…");
      if (state.state === "failed") {
        fill(node.querySelector(".look-result"), problemList(state.problems));
      }
    }
  };

  const problemList = (problems) => (problems.length ? el("ul", { class: "problem-list" }, problems.map(problem)) : null);
  const problem = (p) =>
    el(
      "li",
      { class: p.severity },
      el("strong", {}, p.text),
      p.remedy ? ` ${p.remedy}` : "",
      // Where the pictures are chosen is right above.
      p.id && p.id !== "f-dataset-folders" ? [" ", el("button", { class: "link", onclick: () => m.goToField(p.id, p.tab) }, `Go to ${p.label}`)] : null,
      p.files?.length ? el("details", {}, el("summary", {}, `All ${p.count.toLocaleString("en")}`), el("ul", { class: "plain-list" }, p.files.map((file) => el("li", {}, el("code", {}, file))), p.count > p.files.length ? el("li", {}, `and ${(p.count - p.files.length).toLocaleString("en")} more`) : null)) : null,
    );
  const tile = (value, label, tone) => el("div", { class: `stat ${tone || ""}` }, el("span", { class: "stat-value" }, value), el("span", { class: "stat-label" }, label));

  // As many as are listed below; red where one of them stops a start.
  const problemTile = (problems) => {
    const counted = problems.filter((p) => p.severity !== "note");
    const tone = counted.some((p) => p.severity === "error") ? "bad" : counted.length ? "warn" : "good";
    return tile(counted.length.toLocaleString("en"), counted.length === 1 ? "problem" : "problems", tone);
  };

  const stale = () => (result.stale ? el("p", { class: "warning" }, result.stale) : null);
  // changed: the result is another than what is drawn; a panel that was never drawn is drawn in any case.
  const drawResult = (changed) => {
    if (!result) return;
    const due = (root) => root && (changed || !root.querySelector(".look-result").childElementCount);
    if (due(roots.look)) {
      const node = roots.look.querySelector(".look-result");
      const c = result.counts;
      fill(
        node,
        stale(),
        el(
          "div",
          { class: "stats" },
          tile(c.images.toLocaleString("en"), c.images === 1 ? "picture" : "pictures"),
          tile(c.with_caption.toLocaleString("en"), "with a caption", c.with_caption < c.images ? "warn" : "good"),
          tile(c.validation.toLocaleString("en"), "for validation"),
          tile(c.sizes.toLocaleString("en"), "sizes"),
          tile(c.ignored.toLocaleString("en"), "files ignored"),
          problemTile(result.problems),
        ),
        result.headline ? [el("p", { class: "headline", id: "plan-headline" }, result.headline), el("p", { class: "note" }, result.steps)] : null,
        problemList(result.problems),
        result.histogram ? el("div", { class: "picture-box", id: "histogram" }) : null,
        lists(result.lists),
        c.images + c.validation ? el("h2", {}, "Pictures") : null,
        el("div", { class: "thumbs", id: "thumbs" }),
        el("div", { class: "pager" }),
      );
      if (result.histogram) m.svg(node.querySelector("#histogram"), result.histogram);
      loadPage();
    }
    if (due(roots.plan)) {
      const node = roots.plan.querySelector(".look-result");
      if (!result.headline) return fill(node, stale(), problemList(result.problems));
      fill(
        node,
        stale(),
        el("p", { class: "headline" }, result.headline),
        el("p", { class: "note" }, result.recommended),
        modeTable(result.modes),
        el("p", { class: "note" }, result.legend),
        el("details", {}, el("summary", {}, "The plan in words"), el("pre", { class: "log short" }, result.lines.join("\n"))),
      );
    }
  };
  const modeTable = (modes) =>
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        { class: "facts numbers", id: "mode-table" },
        el("thead", {}, el("tr", {}, ["Shape mode", "Graphs in all", "Training graphs", "Other graphs", "Buckets", "Left out", "Padding", "Cropping"].map((t) => el("th", {}, t)))),
        el(
          "tbody",
          {},
          modes.map((mode) =>
            el(
              "tr",
              { class: mode.chosen ? "chosen" : "" },
              el("td", {}, el("code", {}, mode.name), " ", mode.chosen ? el("span", { class: "tag" }, "set") : null, " ", mode.recommended ? el("span", { class: "tag good" }, "recommended") : null, mode.note ? el("span", { class: "note block" }, mode.note) : null),
              [mode.graphs, mode.training, mode.no_grad, mode.buckets, mode.left, mode.padding, mode.crop].map((v) => el("td", {}, v === null || v === undefined ? "–" : String(v))),
            ),
          ),
        ),
      ),
    );

  const lists = (groups) =>
    groups
      .filter((g) => g.items.length)
      .map((g) =>
        el(
          "details",
          {},
          el("summary", {}, `${g.title} (${g.items.length.toLocaleString("en")})`),
          el("ul", { class: "plain-list" }, g.items.slice(0, 200).map((item) => el("li", {}, el("code", {}, item.name), item.note ? ` ${item.note}` : ""))),
          g.items.length > 200 ? el("p", { class: "note" }, `and ${(g.items.length - 200).toLocaleString("en")} more`) : null,
        ),
      );

  const captionLine = (index, caption) => el("span", { class: caption ? "" : "missing", "data-caption": index }, caption || "no caption");
  const written = (index, caption) => {
    document.querySelector(`#thumbs [data-caption="${index}"]`)?.replaceWith(captionLine(index, caption));
    watch();
  };
  const loadPage = async () => {
    const node = document.getElementById("thumbs");
    if (!node) return;
    let answer;
    try {
      answer = await m.get("/look/items", { page });
    } catch (error) {
      return m.failed(error);
    }
    fill(
      node,
      answer.items.map((item) =>
        el(
          "figure",
          { class: "thumb" },
          el(
            "button",
            { class: "picture", title: "Show it large, and write its caption", "aria-label": `Caption of ${item.name}`, onclick: () => m.captionOf(answer.look, item.index, written) },
            el("img", { src: m.url("/thumb", { look: answer.look, item: item.index }), alt: "", loading: "lazy", width: item.width, height: item.height }),
          ),
          el("figcaption", {}, captionLine(item.index, item.caption), el("span", { class: "note", title: item.name }, `${item.validation ? "validation · " : ""}${item.name}`), el("span", { class: "note" }, `${item.width} × ${item.height}${item.bucket ? ` → ${item.bucket}` : ""}`)),
        ),
      ),
    );
    const turn = (by) => ((page += by), loadPage());
    fill(
      node.nextSibling,
      answer.pages > 1
        ? [
            el("button", { class: "small", disabled: page === 0, onclick: () => turn(-1) }, "← Before"),
            el("span", { class: "note" }, `Page ${page + 1} of ${answer.pages}`),
            el("button", { class: "small", disabled: page >= answer.pages - 1, onclick: () => turn(1) }, "Next →"),
          ]
        : null,
    );
  };
})();
