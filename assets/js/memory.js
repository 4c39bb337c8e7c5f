// Whether a run will fit: bars by stage and part against the card, and the nearest change; and what a run takes.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, text } = m;
  const KEY = "monotile-card-gb";
  // What one part is called and coloured is the same in every bar.
  const PARTS = ["weights", "swap_ring", "text_encoders", "lora", "gradients", "optimizer", "activations", "recordings", "vae", "pictures", "workspace", "outside"];
  const TONES = { fits: "good", tight: "warn", does_not_fit: "bad", unknown: "calm" };

  const segments = (stage) => [...stage.parts, stage.outside ? { name: "outside", title: "CUDA itself, slack", bytes: stage.outside } : null].filter(Boolean);

  const bars = (facts) => {
    const room = facts.on_card ? facts.room : null;
    const most = Math.max(room || 0, ...facts.stages.map((s) => (facts.on_card ? s.total : s.allocated)));
    const row = (stage) => {
      const size = facts.on_card ? stage.total : stage.allocated;
      const over = room !== null && size > room;
      const said = segments(facts.on_card ? stage : { ...stage, outside: 0 }).map((p) => `${p.title} ${m.memory(p.bytes)}`).join(", ");
      return el(
        "div",
        { class: `fit-row ${stage.name === facts.peak ? "peak" : ""} ${over ? "over" : ""}`, "data-stage": stage.name },
        el("span", { class: "fit-name" }, stage.title),
        el(
          "div",
          { class: "fit-track", role: "img", "aria-label": `${stage.title}: ${m.memory(size)}: ${said}`, title: said },
          segments(facts.on_card ? stage : { ...stage, outside: 0 }).map((p) => el("span", { class: `fit-part p-${p.name}`, style: `width:${(100 * p.bytes) / most}%` })),
          room === null ? null : el("span", { class: "fit-limit", style: `left:${(100 * room) / most}%` }),
        ),
        el("span", { class: "fit-size" }, m.memory(size)),
      );
    };
    return el("div", { class: "fit-bars" }, facts.stages.map(row));
  };

  // Every part that has a colour in the bars; the sizes are those of the stage that needs most.
  const legend = (facts) => {
    const peak = facts.stages.find((s) => s.name === facts.peak);
    const parts = (stage) => segments(facts.on_card ? stage : { ...stage, outside: 0 }).map((p) => [p.name, p]);
    const most = new Map(parts(peak));
    const all = new Map(facts.stages.flatMap(parts));
    return el(
      "ul",
      { class: "fit-legend", "aria-label": `${peak.title}, by part` },
      PARTS.filter((name) => all.has(name)).map((name) =>
        el("li", {}, el("span", { class: `fit-key p-${name}` }), el("span", {}, all.get(name).title), most.has(name) ? el("strong", {}, m.memory(most.get(name).bytes)) : null),
      ),
    );
  };

  const table = (facts) => {
    const names = PARTS.filter((name) => name !== "outside" && facts.stages.some((s) => s.parts.some((p) => p.name === name)));
    const title = (name) => facts.stages.flatMap((s) => s.parts).find((p) => p.name === name).title;
    const cell = (stage, name) => stage.parts.find((p) => p.name === name)?.bytes;
    return el(
      "details",
      {},
      el("summary", {}, "By stage and part"),
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "facts numbers" },
          el("thead", {}, el("tr", {}, el("th", {}, ""), facts.stages.map((s) => el("th", {}, s.title)))),
          el("tbody", {}, [
            names.map((name) => el("tr", {}, el("th", {}, title(name)), facts.stages.map((s) => el("td", {}, cell(s, name) ? m.memory(cell(s, name)) : "–")))),
            facts.on_card ? el("tr", {}, el("th", {}, "CUDA itself, slack"), facts.stages.map((s) => el("td", {}, m.memory(s.outside)))) : null,
            el("tr", {}, el("th", {}, "in all"), facts.stages.map((s) => el("td", {}, el("strong", {}, m.memory(facts.on_card ? s.total : s.allocated))))),
          ]),
        ),
      ),
    );
  };

  const advice = (nearest) =>
    el(
      "div",
      { class: "fit-advice", id: "fit-advice" },
      el("div", {}, el("strong", {}, nearest.fits ? "The nearest change that fits" : "The nearest there is"), el("p", {}, nearest.words), el("p", { class: "note" }, `It costs ${nearest.costs.join("; ")}.`)),
      el("button", { class: "primary", id: "fit-apply", onclick: () => m.act("apply", { change: nearest.values }) }, "Apply"),
    );

  let node = null;
  let last = null;
  let turn = 0;
  const result = el("div", { id: "estimate" });
  const card = el("input", { id: "fit-card", type: "text", inputmode: "decimal", placeholder: "this machine's", autocomplete: "off", value: localStorage.getItem(KEY) || "" });
  const size = () => {
    const number = Number(card.value.replace(",", "."));
    return number > 0 && number <= 4096 ? number : null;
  };
  const update = async () => {
    if (!node) return;
    const mine = ++turn;
    if (!last) fill(result, el("p", { class: "note" }, "Working it out …"));
    try {
      const answer = await m.get("/memory", { vram: size() });
      const key = JSON.stringify(answer);
      if (mine !== turn || key === last) return;
      last = key;
      draw(answer);
    } catch (error) {
      last = null;
      fill(result, el("p", { class: "note" }, error.message));
    }
  };
  const draw = (facts) => {
    if (facts.said) return fill(result, el("p", { class: "note" }, facts.said));
    fill(
      result,
      el("div", { class: `verdict ${TONES[facts.verdict]}`, id: "fit-verdict", "data-verdict": facts.verdict }, facts.headline),
      facts.nearest ? advice(facts.nearest) : null,
      facts.problems.map((said) => el("p", { class: "note bad" }, said)),
      bars(facts),
      legend(facts),
      el("p", { class: `note ${facts.ram_verdict === "does_not_fit" ? "bad" : ""}`, id: "fit-ram" }, facts.ram_words),
      el("p", { class: "note" }, `Worked out from ${facts.sizes}; nothing is loaded for it.${facts.rough ? " A rough figure: this family's activations are not measured yet." : ""}`),
      table(facts),
    );
  };
  let typing = null;
  card.addEventListener("input", () => {
    localStorage.setItem(KEY, card.value);
    clearTimeout(typing);
    typing = setTimeout(update, 300);
  });
  m.whenPresent("#estimate-root", (found) => {
    node = found;
    last = null;
    fill(node, el("div", { class: "look-head" }, el("label", { class: "fit-ask" }, el("span", {}, "Card memory (GB)"), card), el("span", { class: "note look-note" }, "Empty: the card of this machine. A number plans for another.")), result);
    update();
  });
  m.on("desk", update);

  // ---- for the Run tab: memory over the steps, and who holds it now --------------------------------------------
  const DRAWN = {
    vram: [
      { label: "Allocated", key: "vram_allocated", colour: "--mt-accent", width: 2, band: true },
      { label: "Reserved", key: "vram_reserved", colour: "--mt-blue", width: 1.6 },
      { label: "Peak", key: "vram_peak", colour: "--mt-amber", width: 1.4, dash: [4, 4] },
    ],
    ram: [{ label: "RAM of the trainer", key: "ram", colour: "--mt-accent", width: 2, band: true }],
  };
  // A chart of the card's memory, or of RAM where a run has no card.
  m.memoryChart = (root) => {
    let kind = null;
    let chart = null;
    return {
      kind: () => kind,
      clear() {
        kind = null;
        fill(root);
      },
      draw(series) {
        const found = series.vram_allocated?.mean.some((v) => v !== null) ? "vram" : "ram";
        if (found !== kind) {
          kind = found;
          fill(root);
          chart = m.chart(root, {
            label: kind === "vram" ? "Video memory over steps" : "Memory over steps",
            empty: "Measured from the first step on.",
            format: m.memory,
            zeroBased: true,
            powers: true,
            series: DRAWN[kind],
          });
        }
        chart.set(series.step, series);
      },
    };
  };
  m.memoryNow = (place, row) => {
    const onCard = Boolean(row?.vram_total);
    const total = onCard ? row.vram_total : row?.ram_total;
    if (!total) return fill(place);
    const others = onCard ? row.vram_others : null;
    const ours = onCard ? (others === null || others === undefined ? row.vram_reserved : total - row.vram_free - others) : row.ram;
    const free = onCard ? row.vram_free : row.ram_available;
    const rest = Math.max(0, total - free - ours);
    const parts = [
      ["ours", onCard ? "this run" : "the trainer", ours],
      ["others", onCard && (others === null || others === undefined) ? "other programs and CUDA" : "other programs", rest],
      ["free", "free", free],
    ];
    fill(
      place,
      el("div", { class: "fit-track now", role: "img", "aria-label": parts.map(([, title, bytes]) => `${title} ${m.memory(bytes)}`).join(", ") }, parts.slice(0, 2).map(([name, , bytes]) => el("span", { class: `fit-part n-${name}`, style: `width:${(100 * bytes) / total}%` }))),
      el("ul", { class: "fit-legend" }, parts.map(([name, title, bytes]) => el("li", {}, el("span", { class: `fit-key n-${name}` }), el("span", {}, title), el("strong", {}, m.memory(bytes))))),
    );
  };
  m.memoryWords = (facts) => {
    if (!facts) return "";
    if (facts.words) return `${onceMore(facts.words)}.`;
    if (facts.ram_peak) return `RAM: estimated ${m.memory(facts.ram_estimated)}, peak ${m.memory(facts.ram_peak)}.`;
    return facts.headline || "";
  };
  m.swapWords = (swap, last) => {
    if (!swap) return "";
    const ms = (seconds) => `${Math.round(1000 * seconds)} ms`;
    const waited = last?.swap_wait === null || last?.swap_wait === undefined ? "" : ` The last step waited ${ms(last.swap_wait)} for them.`;
    return `Block swap: ${swap.blocks} of ${swap.of} blocks, ${m.memory(swap.host)} in RAM. Transfers alone take ${ms(swap.step_limit_seconds)} a step.${waited}`;
  };
  const onceMore = (words) => words[0].toUpperCase() + words.slice(1);
})();
