// Who is here for the first time finds the demo laid out, and is told so until there is a run or another form.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill } = m;
  let node = null;
  let runs = null;

  const draw = () => {
    if (!node) return;
    const { preset, changed } = m.state.desk;
    const shown = runs?.length === 0 && preset === "demo" && !(changed || []).length;
    node.hidden = !shown;
    if (!shown || node.childElementCount) return;
    const link = (title) => el("button", { class: "link", onclick: () => m.openTab(title) }, title);
    fill(
      node,
      el("strong", {}, "The demo is laid out. "),
      "Start training teaches a small model a creature that it has never seen: some minutes, without a card too. For a LoRA of your own, give the base model under ",
      link("Model"),
      " and your pictures under ",
      link("Dataset"),
      ", or begin with a preset for your card.",
    );
  };
  m.whenPresent("#bar-root", (bar) => {
    node = el("div", { class: "welcome", id: "welcome", hidden: true });
    bar.append(node);
    draw();
  });
  m.on("runs", (found) => ((runs = found), draw()));
  m.on("desk", draw);
})();
