// Shows one image of the dataset at full size, with its caption to edit; a saved caption can be undone.

import { pathLine } from "./clipboard.js";
import { openDialog } from "./dialogs.js";
import { el, fill, setText } from "./dom.js";
import { address, getJson, postJson } from "./http.js";
import { showError, toast } from "./toasts.js";

// scan: its number. index: of the image. onsaved(index, caption): called after a caption was saved or undone.
export const openCaption = (scan, index, onsaved) => {
  let at = index;
  let shown = null;
  const image = el("img", { alt: "" });
  const textarea = el("textarea", {
    id: "caption-text",
    rows: 5,
    spellcheck: "true",
    "aria-describedby": "caption-note",
    oninput: () => showNote(),
  });
  const note = el("p", { class: "note", id: "caption-note", "aria-live": "polite" });
  const place = el("div");
  const save = el("button", { class: "primary", id: "caption-save", onclick: () => saveCaption() }, "Save caption");
  const previous = el("button", { onclick: () => goTo(at - 1) }, "← Previous");
  const next = el("button", { id: "caption-next", onclick: () => goTo(at + 1) }, "Next →");

  const changed = () => shown !== null && textarea.value.trim() !== shown.text;
  const showNote = (message) => {
    save.disabled = !changed();
    setText(previous, changed() ? "← Save and previous" : "← Previous");
    setText(next, changed() ? "Save and next →" : "Next →");
    setText(note, message || (changed() ? "Not saved yet." : shown.note));
  };
  const show = async (to) => {
    let caption;
    try {
      caption = await getJson("/scan/caption", { scan, item: to });
    } catch (error) {
      return setText(note, error.message);
    }
    // Both at once: what is typed meanwhile, or after a failed answer, still belongs to the caption before.
    [at, shown] = [to, caption];
    image.src = address("/thumb", { scan, item: at });
    setText(
      box.querySelector("h2"),
      `${shown.name} (${(at + 1).toLocaleString("en")} of ${shown.of.toLocaleString("en")})`,
    );
    textarea.value = shown.text;
    previous.disabled = at === 0;
    next.disabled = at >= shown.of - 1;
    fill(place, pathLine(shown.file));
    showNote();
  };
  const goTo = async (to) => (!changed() || (await saveCaption())) && to >= 0 && to < (shown?.of ?? 0) && show(to);
  const saveCaption = async () => {
    if (!changed()) return true;
    const [here, edited, value] = [at, shown, textarea.value];
    try {
      const { token, caption } = await postJson("/scan/caption", { scan, item: here, text: value });
      Object.assign(edited, { text: value.trim(), note: "" });
      onsaved(here, caption);
      toast(`The caption of ${edited.name} is saved.`, {
        action: "Undo",
        onaction: () => undo(token, here, edited.name),
      });
      showNote("Saved.");
      return true;
    } catch (error) {
      setText(note, error.message);
      return false;
    }
  };
  const undo = async (token, here, name) => {
    try {
      onsaved(here, (await postJson("/scan/caption/undo", { token })).caption);
      toast(`The caption of ${name} is restored.`);
    } catch (error) {
      showError(error);
    }
  };

  const box = openDialog(
    "Caption",
    el(
      "div",
      { class: "caption-box" },
      image,
      el("div", {}, el("label", { for: "caption-text" }, "Caption"), textarea, note, place),
    ),
    el("div", { class: "buttons" }, save, previous, next),
  );
  box.classList.add("wide-dialog");
  box.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey)) return;
    if (event.key === "s") saveCaption();
    if (event.key !== "Enter") return;
    event.preventDefault();
    goTo(Math.min(at + 1, (shown?.of ?? 1) - 1));
  });
  // Closing saves nothing that nobody asked to save, and loses nothing either.
  box.addEventListener(
    "close",
    () =>
      changed() &&
      toast(`The caption of ${shown.name} was not saved.`, { action: "Save caption", onaction: saveCaption }),
  );
  show(at).then(() => textarea.focus());
};
