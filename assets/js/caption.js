// A picture of the look, large, with its caption to read and write; what was there before can be had back.
(() => {
  "use strict";
  const m = window.monotile;
  const { el, fill, text } = m;

  // look: its number. index: of the picture. written(index, caption): called when a caption is another now.
  m.captionOf = (look, index, written) => {
    let at = index;
    let shown = null;
    const image = el("img", { alt: "" });
    const words = el("textarea", { id: "caption-text", rows: 5, spellcheck: "true", "aria-describedby": "caption-note", oninput: () => said() });
    const note = el("p", { class: "note", id: "caption-note", "aria-live": "polite" });
    const place = el("div");
    const save = el("button", { class: "primary", id: "caption-save", onclick: () => keep() }, "Save");
    const before = el("button", { onclick: () => go(at - 1) }, "← Before");
    const next = el("button", { id: "caption-next", onclick: () => go(at + 1) }, "Next →");

    const changed = () => shown !== null && words.value.trim() !== shown.text;
    const said = (now) => {
      save.disabled = !changed();
      text(before, changed() ? "← Save and before" : "← Before");
      text(next, changed() ? "Save and next →" : "Next →");
      text(note, now || (changed() ? "Not saved yet." : shown.said));
    };
    const open = async (to) => {
      let found;
      try {
        found = await m.get("/look/caption", { look, item: to });
      } catch (error) {
        return text(note, error.message);
      }
      // Both at once: what is written meanwhile, or after an answer that failed, is still the caption of before.
      [at, shown] = [to, found];
      image.src = m.url("/thumb", { look, item: at });
      text(box.querySelector("h2"), `${shown.name} (${(at + 1).toLocaleString("en")} of ${shown.of.toLocaleString("en")})`);
      words.value = shown.text;
      before.disabled = at === 0;
      next.disabled = at >= shown.of - 1;
      fill(place, m.pathLine(shown.file));
      said();
    };
    const go = async (to) => (!changed() || (await keep())) && to >= 0 && to < (shown?.of ?? 0) && open(to);
    const keep = async () => {
      if (!changed()) return true;
      const [here, was, value] = [at, shown, words.value];
      try {
        const { token, caption } = await m.post("/look/caption", { look, item: here, text: value });
        Object.assign(was, { text: value.trim(), said: "" });
        written(here, caption);
        m.toast(`The caption of ${was.name} is saved.`, { action: "Undo", onaction: () => undo(token, here, was.name) });
        said("Saved.");
        return true;
      } catch (error) {
        text(note, error.message);
        return false;
      }
    };
    const undo = async (token, here, called) => {
      try {
        written(here, (await m.post("/look/caption/undo", { token })).caption);
        m.toast(`The caption of ${called} is as it was.`);
      } catch (error) {
        m.failed(error);
      }
    };

    const box = m.dialog(
      "Caption",
      el("div", { class: "caption-box" }, image, el("div", {}, el("label", { for: "caption-text" }, "Caption"), words, note, place)),
      el("div", { class: "buttons" }, save, before, next),
    );
    box.classList.add("wide-dialog");
    box.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey)) return;
      if (event.key === "s") keep();
      if (event.key !== "Enter") return;
      event.preventDefault();
      go(Math.min(at + 1, (shown?.of ?? 1) - 1));
    });
    // Closing writes nothing that was not asked for, and loses nothing either.
    box.addEventListener("close", () => changed() && m.toast(`The caption of ${shown.name} was not saved.`, { action: "Save it", onaction: keep }));
    open(at).then(() => words.focus());
  };
})();
