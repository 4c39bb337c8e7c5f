// Draws the Library tab: earlier runs, found by words and compared with each other; a deleted run can be restored.

import { el, fill, setText, whenPresent } from "./dom.js";
import { formatCount, formatWhole } from "./format.js";
import { getJson, postJson } from "./http.js";
import { t } from "./locale.js";
import { loraPanel } from "./lora_file.js";
import { runCard } from "./run_card.js";
import { closeComparison, comparisonPanel, MOST_COMPARED, showComparison } from "./run_comparison.js";
import { pollRuns } from "./run_list.js";
import { on } from "./state.js";
import { currentTab, onTabOpened } from "./tabs.js";
import { showError, toast } from "./toasts.js";
/** @import { Library, LibraryRun } from "./library" */

const A_PAGE = 25;
const view = { words: "", most: A_PAGE, mark: "", asked: 0 };
/** @type {Set<string>} */
const marked = new Set();
/** @type {Map<string, {key: string, node: HTMLElement}>} */
const cards = new Map();
/** @type {ReturnType<typeof frame> | null} */
let ui = null;

// ---- asking ----------------------------------------------------------------------------------------------------
const refresh = async () => {
  if (!ui || currentTab() !== "Library") return;
  const number = ++view.asked;
  try {
    const answer = await getJson("/library", { words: view.words, most: view.most, seen: view.mark });
    // An answer to fewer letters than are typed by now.
    if (number !== view.asked) return;
    view.mark = answer.mark;
    if (answer.runs) draw(answer);
    if (answer.unread) setTimeout(refresh, 50);
  } catch (error) {
    showError(error);
  }
};
const afresh = () => {
  view.mark = "";
  refresh();
};
let typing = 0;
const search = (words, wait = 150) => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    if (words === view.words) return;
    Object.assign(view, { words, most: A_PAGE });
    afresh();
  }, wait);
};
const searchTag = (name) => {
  ui.words.value = `tag:${/\s/.test(name) ? `"${name}"` : name}`;
  search(ui.words.value, 0);
  ui.words.focus();
};

// ---- deleting --------------------------------------------------------------------------------------------------
const remove = async (run) => {
  const again = () => (afresh(), pollRuns());
  try {
    const { token } = await postJson("/delete", { run });
    mark(run, false);
    again();
    const restore = async () => {
      try {
        await postJson("/restore", { token });
        again();
      } catch (error) {
        showError(error);
      }
    };
    toast(t`${run} was moved to the bin.`, { action: "Undo", onaction: restore });
  } catch (error) {
    showError(error);
  }
};

// ---- comparing -------------------------------------------------------------------------------------------------
const mark = (run, wanted) => {
  if (wanted && marked.size >= MOST_COMPARED) {
    toast(t`At most ${MOST_COMPARED} runs can be compared at once.`, { kind: "error" });
    return false;
  }
  if (wanted) marked.add(run);
  else marked.delete(run);
  drawMarked();
  return wanted;
};
const unmark = () => {
  marked.clear();
  for (const { node } of cards.values()) {
    const box = node.querySelector(".compare-check input");
    if (box instanceof HTMLInputElement) box.checked = false;
  }
  drawMarked();
};
const drawMarked = () => {
  ui.marked.hidden = !marked.size;
  const hint = marked.size < 2 ? " Choose one more to compare." : "";
  setText(ui.markedWords, t`${formatCount(marked.size, "run")} chosen.${hint}`);
  ui.compare.disabled = marked.size < 2;
};

// ---- drawing ---------------------------------------------------------------------------------------------------
const EXAMPLES = 'Words of name, tags, notes, base model or state; also "rank 16", tag:portrait, state:failed';

const frame = (root) => {
  const words = el("input", {
    type: "search",
    id: "library-words",
    placeholder: "Search runs",
    maxlength: 500,
    "aria-label": "Search runs",
    "aria-describedby": "library-hint",
    oninput: () => search(words.value),
  });
  const compare = el(
    "button",
    { class: "primary", id: "library-compare", onclick: () => showComparison([...marked]) },
    "Compare",
  );
  const markedWords = el("span", {});
  const parts = {
    words,
    compare,
    markedWords,
    count: el("span", { class: "note", id: "library-count", role: "status" }),
    tags: el("div", { class: "run-tags", id: "library-all-tags" }),
    known: el("datalist", { id: "library-tags" }),
    marked: el(
      "div",
      { class: "marked-runs", id: "library-marked", hidden: true },
      markedWords,
      compare,
      el("button", { onclick: () => (unmark(), closeComparison()) }, "Clear"),
    ),
    list: el("div", { class: "library", id: "library-list" }),
    more: el("button", { id: "library-more", hidden: true, onclick: () => ((view.most += A_PAGE), afresh()) }),
    empty: el("div", { class: "empty" }),
  };
  fill(
    root,
    loraPanel(),
    el(
      "section",
      { class: "library-search" },
      el("div", { class: "library-line" }, words, parts.count),
      el("p", { class: "note", id: "library-hint" }, EXAMPLES),
      parts.tags,
      parts.known,
      parts.marked,
    ),
    comparisonPanel(),
    parts.empty,
    parts.list,
    parts.more,
  );
  words.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && words.value) ((words.value = ""), search("", 0), event.stopPropagation());
    if (event.key === "ArrowDown" || event.key === "Enter") (event.preventDefault(), goTo(0));
  });
  parts.list.addEventListener("keydown", moveBetweenCards);
  return parts;
};
const goTo = (place) => {
  const node = ui.list.children[place];
  if (node instanceof HTMLElement) (node.focus(), node.scrollIntoView({ block: "nearest" }));
};
// Up and down go from card to card, x chooses one to compare, n writes notes.
const moveBetweenCards = (event) => {
  const place = [...ui.list.children].indexOf(event.target);
  if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const press = (selector) => event.target.querySelector(selector)?.click();
  if (event.key === "ArrowDown") goTo(place + 1);
  else if (event.key === "ArrowUp") place ? goTo(place - 1) : ui.words.focus();
  else if (event.key === "x") press(".compare-check input");
  else if (event.key === "n") press(".edit-notes");
  else return;
  event.preventDefault();
};

/** @param {LibraryRun} run */
const cardOf = (run) => {
  const key = JSON.stringify(run);
  const known = cards.get(run.name);
  // A card in which somebody writes stays as it is.
  if (known && (known.key === key || isWritten(known.node))) return known.node;
  const node = runCard(run, { marked: marked.has(run.name), mark, remove, onsaved: afresh, ontag: searchTag });
  const focus = known?.node.contains(document.activeElement) ? focusMark(document.activeElement) : null;
  if (known) known.node.replaceWith(node);
  cards.set(run.name, { key, node });
  const again = focus && node.querySelector(focus);
  if (again instanceof HTMLElement) again.focus();
  return node;
};
const isWritten = (node) => {
  const tag = node.querySelector(".add-tag");
  return Boolean(node.querySelector("[data-editing]") || (tag instanceof HTMLInputElement && tag.value));
};
const focusMark = (field) =>
  [".add-tag", ".edit-notes", ".compare-check input"].find((selector) => field.matches(selector)) || null;

// Nodes that stay are not moved, so that the focus stays too.
const keepInOrder = (parent, nodes) => {
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, at) => parent.children[at] !== node && parent.insertBefore(node, parent.children[at] || null));
};

/** @param {Library} answer */
const draw = (answer) => {
  const { runs, matching, total, unread } = answer;
  const names = new Set(runs.map((run) => run.name));
  for (const name of [...cards.keys()]) if (!names.has(name)) cards.delete(name);
  keepInOrder(ui.list, runs.map(cardOf));
  const text = view.words ? t`${formatWhole(matching)} of ${formatWhole(total)} runs` : formatCount(total, "run");
  setText(ui.count, unread ? t`${text}, reading ${formatWhole(unread)} more…` : text);
  ui.more.hidden = runs.length >= matching;
  setText(ui.more, t`Show more (${formatWhole(matching - runs.length)} left)`);
  fill(
    ui.tags,
    answer.tags
      .slice(0, 20)
      .map((tag) =>
        el("button", { class: "tag", onclick: () => searchTag(tag.name) }, `#${tag.name} ${tag.count}`),
      ),
  );
  fill(
    ui.known,
    answer.tags.map((tag) => el("option", { value: tag.name })),
  );
  ui.empty.hidden = runs.length > 0 || Boolean(unread);
  fill(
    ui.empty,
    el("h2", {}, total ? "No run has all of these words" : "No runs yet"),
    el("p", {}, total ? EXAMPLES : "Earlier runs are listed here, with their samples and LoRA files."),
  );
};

whenPresent("#library-root", (node) => {
  cards.clear();
  ui = frame(node);
  afresh();
});
on("runs", refresh);
onTabOpened("Library", refresh);
