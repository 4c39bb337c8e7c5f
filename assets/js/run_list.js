// Asks the server for the list of runs, and shows when the server can't be reached.

import { el, whenPresent } from "./dom.js";
import { getJson } from "./http.js";
import { wantsNotices } from "./run_notices.js";
import { LIVE } from "./run_states.js";
import { emit, pageState } from "./state.js";

let banner = null;
const showOffline = (lost) => {
  if (lost === Boolean(banner)) return;
  if (lost)
    banner = document.body.appendChild(
      el(
        "div",
        { class: "offline", role: "status" },
        "The page has lost its server. Runs continue without it. The page reconnects by itself.",
      ),
    );
  else {
    banner.remove();
    banner = null;
  }
};

// News: "runs" with every run, newest first; "active" with the one at work, or null.
export const pollRuns = async () => {
  let answer;
  try {
    answer = await getJson("/runs");
  } catch {
    showOffline(true);
    return;
  }
  showOffline(false);
  pageState.runs = answer.runs;
  emit("runs", answer.runs);
  emit("active", answer.runs.find((run) => LIVE.has(run.state)) || null);
};
const visible = () => document.visibilityState === "visible";
// A page that is out of sight asks too where a person waits for its notice.
setInterval(() => (visible() || wantsNotices()) && pollRuns(), 2000);
document.addEventListener("visibilitychange", () => visible() && pollRuns());
whenPresent("#bar-root", pollRuns);
