// Says when a run has ended: in a corner of the page, and through the browser where a person has asked for that.

import { t } from "./locale.js";
import { LIVE, STATES } from "./run_states.js";
import { on } from "./state.js";
import { toast } from "./toasts.js";

const KEY = "monotile-notices";
const stored = () => {
  try {
    return localStorage.getItem(KEY) === "1";
  } catch {
    return false; // where storage is refused, nobody has asked
  }
};
const granted = () => "Notification" in window && Notification.permission === "granted";

// Whether the browser is to show a notice when a run ends.
export const wantsNotices = () => stored() && granted();

// Asks the browser for its leave; the answer is whether notices are now wanted.
export const setNotices = async (wanted) => {
  if (wanted && "Notification" in window && !granted()) await Notification.requestPermission();
  try {
    localStorage.setItem(KEY, wanted && granted() ? "1" : "0");
  } catch {
    return false;
  }
  return wantsNotices();
};

const notify = (title, run) => {
  try {
    new Notification(title, { body: t(run.text), tag: run.name });
  } catch {
    // a browser of a phone shows none of a page; the corner of the page has said it
  }
};

/** @type {Map<string, string>} */
let before = new Map();
on("runs", (runs) => {
  const known = before;
  before = new Map(runs.map((run) => [run.name, run.state]));
  for (const run of runs) {
    const earlier = known.get(run.name);
    if (!earlier || !LIVE.has(earlier) || LIVE.has(run.state)) continue;
    const [word, tone] = STATES[run.state] || [run.state, "calm"];
    toast(`${run.name}: ${t(run.text)}`, { kind: tone === "bad" ? "error" : "info" });
    if (wantsNotices()) notify(`${t(word)}: ${run.name}`, run);
  }
});
