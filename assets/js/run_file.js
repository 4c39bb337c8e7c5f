// Makes what a run's file offers wherever it is listed.

import { el } from "./dom.js";
import { address } from "./http.js";

// A link that downloads a file of a run.
export const downloadLink = (run, file) =>
  el("a", { class: "button small", href: address("/download", { run, file }), download: file }, "Download");
