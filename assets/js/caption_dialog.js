// Shows one image of the dataset at full size, with its caption to edit; a saved caption can be undone.

import { pathLine } from "./clipboard.js";
import { openDialog } from "./dialogs.js";
import { el, fill, setText } from "./dom.js";
import { formatWhole } from "./format.js";
import { address, getJson, postJson } from "./http.js";
import { lossBadge, lossSentence } from "./image_losses.js";
import { t } from "./locale.js";
import { showError, toast } from "./toasts.js";

/** @import { ScannedItems } from "./scan" */

/**
 * Opens the box.
 *
 * @param {Pick<ScannedItems, "scan" | "order" | "run">} items with the scan's number, the order of its images, and the
 *   run whose losses are shown
 * @param {number} index of the image
 * @param {(index: number, caption: string) => void} onsaved called after a caption was saved or undone
 */
export const openCaption = ({ scan, order, run }, index, onsaved) => {
  let at = index;
  // Previous and next go as the images are sorted.
  const placeOf = (item) => (order ? order.indexOf(item) : item);
  const itemAt = (place) => (order ? (order[place] ?? -1) : place);
  let shown = null;
  const count = () => order?.length ?? shown?.of ?? 0;
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
  const losses = el("p", { class: "note", id: "caption-losses" });
  const save = el("button", { class: "primary", id: "caption-save", onclick: () => saveCaption() }, "Save caption");
  const previous = el("button", { onclick: () => goTo(placeOf(at) - 1) }, "← Previous");
  const next = el("button", { id: "caption-next", onclick: () => goTo(placeOf(at) + 1) }, "Next →");

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
      t`${shown.name} (${formatWhole(placeOf(at) + 1)} of ${formatWhole(count())})`,
    );
    textarea.value = shown.text;
    previous.disabled = placeOf(at) === 0;
    next.disabled = placeOf(at) >= count() - 1;
    fill(place, pathLine(shown.file));
    showNote();
    showLosses(to);
  };
  const showLosses = async (item) => {
    fill(losses);
    if (!run) return;
    const answer = await getJson("/scan/losses", { scan, item, run }).catch(() => null);
    if (item !== at || !answer?.losses) return;
    fill(losses, t`Loss in ${run}: ${lossSentence(answer.losses)} `, lossBadge(answer.losses));
  };
  const goTo = async (to) =>
    (!changed() || (await saveCaption())) && to >= 0 && to < count() && show(itemAt(to));
  const saveCaption = async () => {
    if (!changed()) return true;
    const [here, edited, value] = [at, shown, textarea.value];
    try {
      const { token, caption } = await postJson("/scan/caption", { scan, item: here, text: value });
      Object.assign(edited, { text: value.trim(), note: "" });
      onsaved(here, caption);
      toast(t`The caption of ${edited.name} is saved.`, {
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
      toast(t`The caption of ${name} is restored.`);
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
      el("div", {}, el("label", { for: "caption-text" }, "Caption"), textarea, note, losses, place),
    ),
    el("div", { class: "buttons" }, save, previous, next),
  );
  box.classList.add("wide-dialog");
  box.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey)) return;
    if (event.key === "s") saveCaption();
    if (event.key !== "Enter") return;
    event.preventDefault();
    goTo(Math.min(placeOf(at) + 1, count() - 1));
  });
  // Closing saves nothing that nobody asked to save, and loses nothing either.
  box.addEventListener(
    "close",
    () =>
      changed() &&
      toast(t`The caption of ${shown.name} was not saved.`, { action: "Save caption", onaction: saveCaption }),
  );
  show(at).then(() => textarea.focus());
};
