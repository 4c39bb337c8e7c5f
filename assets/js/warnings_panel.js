// Shows a run's warnings.

import { el, fill } from "./dom.js";
import { formatCount } from "./format.js";
import { t } from "./locale.js";
/** @import { RunFacts } from "./server" */

// A recompile after warm-up is an alarm: it is at the top, with its fix.
/**
 * @param {RunFacts["recompiles"]} recompiles
 */
const alarm = (recompiles) => {
  const last = recompiles[recompiles.length - 1];
  if (!last) return null;
  const many = recompiles.length;
  const count = many === 1 ? t("A recompile after warm-up") : t`${many} recompiles after warm-up`;
  return el(
    "div",
    { class: "trouble", id: "recompile-alarm", role: "alert" },
    el("strong", {}, `${count}: ${last.reason || "torch gave no reason"}.`),
    last.setting ? el("p", { class: "remedy" }, t`Fix: ${last.setting}.`) : null,
  );
};
// The newest in full; a dataset's warnings, which come before the first step, must not push the run out of sight.
/**
 * @param {import("./run_frame.js").RunFrame} ui
 * @param {RunFacts["warnings"]} list
 * @param {RunFacts["recompiles"]} recompiles
 */
export const drawWarnings = (ui, list = [], recompiles = []) => {
  const one = (w) =>
    el(
      "div",
      { class: "warning" },
      el("strong", {}, /[.!?]$/.test(w.text) ? w.text : `${w.text}.`),
      w.remedy ? el("span", {}, ` ${w.remedy}`) : null,
    );
  const earlier = list.slice(0, list.length > 2 ? -1 : 0).reverse();
  const unfolded = ui.warnings.querySelector("details")?.open;
  fill(
    ui.warnings,
    alarm(recompiles),
    list.slice(list.length > 2 ? -1 : 0).map(one),
    earlier.length
      ? el(
          "details",
          { open: unfolded || null },
          el("summary", {}, formatCount(earlier.length, "earlier warning")),
          earlier.map(one),
        )
      : null,
  );
};
