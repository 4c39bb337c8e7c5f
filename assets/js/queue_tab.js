// Draws the Queue tab: runs that are trained one after the other, with the times at which they begin and end.

import { sendRequest } from "./bridge.js";
import { el, fill, whenPresent } from "./dom.js";
import { formatCount } from "./format.js";
import { getJson, postJson } from "./http.js";
import { drawIcon } from "./icons.js";
import { language, t } from "./locale.js";
import { pollRuns } from "./run_list.js";
import { setNotices, wantsNotices } from "./run_notices.js";
import { LIVE, STATES } from "./run_states.js";
import { chooseRun } from "./run_tab.js";
import { on } from "./state.js";
import { currentTab, onTabOpened, openTab } from "./tabs.js";
import { showError, toast } from "./toasts.js";
/** @import { QueueEntry, QueueState } from "./queue" */

const WORDS = { ...STATES, waiting: ["Waiting", "calm"], skipped: ["Skipped", "calm"], missing: ["Deleted", "calm"] };

let root = null;
// What is on screen: the head and each entry, with all that it shows.
/** @type {{id: string, key: string, make: () => HTMLElement, node?: HTMLElement}[]} */
let drawn = [];

const refresh = async () => {
  if (!root || currentTab() !== "Queue") return;
  try {
    draw(await getJson("/queue"));
  } catch (error) {
    showError(error);
  }
};
// Carries out a button, then shows the list as it is now.
const ask = async (path, body) => {
  try {
    return await postJson(path, body);
  } catch (error) {
    showError(error);
    return null;
  } finally {
    await refresh();
    pollRuns();
  }
};
const press = (entry, what, more = {}) => ask("/queue/entry", { entry: entry.id, what, ...more });
const remove = async (entry) => {
  const answer = await ask("/queue/remove", { entry: entry.id });
  if (answer)
    toast(t`${entry.name} was taken off the queue.`, {
      action: "Undo",
      onaction: () => ask("/queue/restore", { token: answer.token }),
    });
};

const clock = (seconds) => {
  const moment = new Date(seconds * 1000);
  /** @type {Intl.DateTimeFormatOptions} */
  const time = { hour: "2-digit", minute: "2-digit" };
  const today = moment.toDateString() === new Date().toDateString();
  return moment.toLocaleString(language, today ? time : { day: "numeric", month: "short", ...time });
};
/** @param {QueueEntry} entry */
const times = (entry) => {
  const waits = entry.state === "waiting";
  const parts = [
    waits && entry.begins !== null && entry.ends !== null ? t`begins about ${clock(entry.begins)}` : null,
    entry.ends !== null ? t`ends about ${clock(entry.ends)}` : null,
    entry.like ? t`by the pace of ${entry.like}` : null,
    waits && entry.ends === null ? "no earlier run of the same settings tells how long it takes" : null,
  ];
  const text = parts.filter(Boolean).join(" · ");
  return text.charAt(0).toUpperCase() + text.slice(1);
};

/** @param {QueueEntry} entry */
const gpuChoice = (entry, gpus) =>
  el(
    "label",
    { class: "note" },
    "GPU ",
    el(
      "select",
      {
        "data-focus": `${entry.id}-gpu`,
        disabled: entry.state !== "waiting",
        onchange: (event) => press(entry, "gpu", { gpu: event.target.value || null }),
      },
      el("option", { value: "", selected: entry.gpu === null }, "any"),
      gpus.map((gpu) =>
        el("option", { value: gpu.id, selected: entry.gpu === gpu.id }, `${gpu.id}: ${gpu.name}`),
      ),
    ),
  );

/** @param {QueueEntry} entry */
const buttons = (entry, first, last) => {
  const button = (what, label, onclick, attributes = {}) =>
    el("button", { class: "small", "data-focus": `${entry.id}-${what}`, onclick, ...attributes }, label);
  const arrow = (what, label, disabled) =>
    button(what, drawIcon(what), () => press(entry, what), { "aria-label": label, title: label, disabled });
  if (entry.state === "waiting")
    return [
      arrow("up", t`Move ${entry.name} up`, first),
      arrow("down", t`Move ${entry.name} down`, last),
      button("now", "Run next", () => press(entry, "now"), { title: "Make it the next one, and start the queue" }),
      button("skip", "Skip", () => press(entry, "skip")),
      button("remove", "Remove", () => remove(entry)),
    ];
  const show = entry.run ? button("show", "Show run", () => (chooseRun(entry.run), openTab("Run"))) : null;
  if (LIVE.has(entry.state))
    return [
      show,
      button("skip", "Stop", () => press(entry, "skip"), { title: "It saves first; the next one follows" }),
    ];
  const again = entry.resumable ? "Resume" : "Try again";
  return [
    show,
    entry.state === "done" ? null : button("retry", again, () => press(entry, "retry")),
    button("remove", "Remove", () => remove(entry), { title: "Take it off this list; the run folder stays" }),
  ];
};

/** @param {QueueEntry} entry */
const card = (entry, state, waiting) => {
  const [word, tone] = WORDS[entry.state] || [entry.state, "calm"];
  const place = waiting.indexOf(entry);
  return el(
    "article",
    { class: "card queue-entry", "data-entry": entry.id },
    el(
      "div",
      { class: "card-head" },
      el("h2", {}, entry.run || entry.name),
      el("span", { class: `state ${tone}` }, word),
    ),
    entry.total && LIVE.has(entry.state)
      ? el("div", { class: "progress" }, el("div", { style: `width: ${(100 * entry.step) / entry.total}%` }))
      : null,
    el("p", {}, entry.text),
    el("p", { class: "note" }, times(entry)),
    el(
      "div",
      { class: "buttons" },
      buttons(entry, place === 0, place === waiting.length - 1),
      state.gpus.length > 1 ? gpuChoice(entry, state.gpus) : null,
    ),
  );
};

const check = (id, label, title, checked, onchange) =>
  el(
    "label",
    { class: "check", title },
    el("input", { type: "checkbox", id, checked, onchange, "data-focus": id }),
    label,
  );

/** @param {QueueState} state */
const head = (state) => {
  const waiting = state.entries.filter((entry) => entry.state === "waiting").length;
  const ended = state.entries.some((entry) => entry.state !== "waiting" && !LIVE.has(entry.state));
  const switchQueue = () => ask("/queue/set", { on: !state.on });
  return el(
    "section",
    { class: "card", id: "queue-head" },
    el(
      "div",
      { class: "card-head" },
      el("h2", {}, state.on ? "The queue is on" : "The queue is paused"),
      el("span", { class: "note" }, t`${formatCount(waiting, "run")} waiting`),
    ),
    state.paused_by
      ? el(
          "ul",
          { class: "problem-list", role: "alert" },
          el("li", {}, t`The queue has paused itself. ${t(state.paused_by)}`),
        )
      : null,
    el(
      "p",
      { class: "note" },
      "Runs are trained in this order, one at a time on each GPU. A run that fails stops no other, " +
        "unless the disk is full or can't be written. The queue continues when this page is closed.",
    ),
    el(
      "div",
      { class: "buttons" },
      el(
        "button",
        { class: state.on ? "" : "primary", id: "queue-switch", "data-focus": "switch", onclick: switchQueue },
        state.on ? "Pause queue" : "Start queue",
      ),
      el(
        "button",
        { id: "queue-add", "data-focus": "add", onclick: () => sendRequest("enqueue") },
        "Add the form's settings",
      ),
      ended
        ? el("button", { "data-focus": "clear", onclick: () => ask("/queue/clear", {}) }, "Remove ended")
        : null,
    ),
    check(
      "queue-continue",
      "Continue a run that ends unexpectedly",
      "After a crash or a power cut it resumes from its saved state, once the page or the queue is started again.",
      state.continue_ended,
      (event) => ask("/queue/set", { continue_ended: event.target.checked }),
    ),
    check(
      "queue-notices",
      "Notify me in this browser when a run ends",
      "The page has to stay open, in any tab.",
      wantsNotices(),
      async (event) => {
        const wanted = event.target.checked;
        event.target.checked = await setNotices(wanted);
        if (wanted && !event.target.checked)
          toast("This browser does not allow notices of this page.", { kind: "error" });
      },
    ),
  );
};

// Head and entries in order. Times move with the clock, so that only their words count.
/** @param {QueueState} state */
const partsOf = (state) => {
  const waiting = state.entries.filter((entry) => entry.state === "waiting");
  const ended = state.entries.some((entry) => entry.state !== "waiting" && !LIVE.has(entry.state));
  const empty = () =>
    el(
      "div",
      { class: "empty" },
      el("h2", {}, "No runs in the queue"),
      el("p", {}, "Set up a run in the form, then add it. Each run keeps the settings that it was added with."),
    );
  const cards = state.entries.map((entry) => {
    const shown = [{ ...entry, begins: null, ends: null }, times(entry), waiting.indexOf(entry), waiting.length];
    return { id: entry.id, key: JSON.stringify([shown, state.gpus]), make: () => card(entry, state, waiting) };
  });
  const key = JSON.stringify([state.on, state.paused_by, state.continue_ended, waiting.length, ended]);
  const first = { id: "head", key, make: () => head(state) };
  return [first, ...(cards.length ? cards : [{ id: "empty", key: "", make: empty }])];
};

/** @param {QueueState} state */
const draw = (state) => {
  const focus = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.focus;
  const [before, parts] = [drawn, partsOf(state)];
  // What did not change stays, so that an open list of GPUs is not closed.
  const same = before.map((part) => part.id).join() === parts.map((part) => part.id).join();
  drawn = parts.map((part, at) => ({
    ...part,
    node: same && part.key === before[at].key ? before[at].node : part.make(),
  }));
  if (same) drawn.forEach((part, at) => part.node !== before[at].node && before[at].node.replaceWith(part.node));
  else
    fill(
      root,
      el(
        "div",
        { class: "library" },
        drawn.map((part) => part.node),
      ),
    );
  if (focus) /** @type {HTMLElement | null} */ (root.querySelector(`[data-focus="${CSS.escape(focus)}"]`))?.focus();
};

whenPresent("#queue-root", (node) => {
  root = node;
  drawn = [];
  refresh();
});
on("runs", refresh);
on("queued", refresh);
onTabOpened("Queue", refresh);

// The button in the bar.
export const queueButton = el(
  "button",
  {
    class: "wide-only",
    id: "enqueue",
    title: "Check everything and add these settings to the queue",
    onclick: () => sendRequest("enqueue"),
  },
  "Add to queue",
);
