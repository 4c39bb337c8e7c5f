// Names the states and phases of a run.

import { el, fill } from "./dom.js";

export const STATES = {
  starting: ["Starting", "busy"],
  running: ["Running", "busy"],
  stopping: ["Stopping", "busy"],
  done: ["Finished", "good"],
  stopped: ["Stopped", "calm"],
  failed: ["Failed", "bad"],
  dead: ["Ended without a word", "bad"],
};
export const PHASES = {
  scan: "Looking at the images",
  cache_latents: "Encoding the images",
  cache_text: "Encoding the captions",
  load: "Loading the model",
  compile: "Compiling",
  train: "Training",
  validate: "Measuring validation loss",
  sample: "Drawing samples",
  save: "Saving",
  done: "Finished",
};
// The states of a run at work.
export const LIVE = new Set(["starting", "running", "stopping"]);

// Says in an empty panel that something is still to come, or that it never came.
export const fillEmpty = (node, status, yet, ended) =>
  fill(node, el("p", { class: "note" }, LIVE.has(status.state) ? yet : ended));
