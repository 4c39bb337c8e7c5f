// Says when a run has ended: in a corner of the page, and through the browser where a person has asked for that.

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

/** @type {Map<string, string>} */
let before = new Map();
on("runs", (runs) => {
  for (const run of runs) {
    const known = before.get(run.name);
    if (!known || !LIVE.has(known) || LIVE.has(run.state)) continue;
    const [word, tone] = STATES[run.state] || [run.state, "calm"];
    toast(`${run.name}: ${run.text}`, { kind: tone === "bad" ? "error" : "info" });
    if (wantsNotices()) new Notification(`${word}: ${run.name}`, { body: run.text, tag: run.name });
  }
  before = new Map(runs.map((run) => [run.name, run.state]));
});
