// Names the states and phases of a run.

import { el, fill } from "./dom.js";

export const STATES = {
  starting: ["Starting", "busy"],
  running: ["Running", "busy"],
  stopping: ["Stopping", "busy"],
  done: ["Finished", "good"],
  stopped: ["Stopped", "calm"],
  failed: ["Failed", "bad"],
  dead: ["Ended unexpectedly", "bad"],
};
export const PHASES = {
  scan: "Scanning the dataset",
  cache_latents: "Caching latents",
  cache_masks: "Caching masks",
  cache_text: "Caching text encoder outputs",
  load: "Loading the model",
  compile: "Compiling",
  train: "Training",
  validate: "Measuring validation loss",
  sample: "Making samples",
  save: "Saving",
  pause: "Waiting while the preview draws",
  done: "Finished",
};
// The states of a run at work.
export const LIVE = new Set(["starting", "running", "stopping"]);

// Fills an empty panel: yet, while more may come; ended, once the run is over.
export const fillEmpty = (node, status, yet, ended) =>
  fill(node, el("p", { class: "note" }, LIVE.has(status.state) ? yet : ended));
