// Lists under the bar what stops a start.

import { el, fill } from "./dom.js";
import { goToField } from "./field_jump.js";
import { problemSentence } from "./field_marks.js";
import { on } from "./state.js";

// Which row of a list is meant: counted from one, as the rows are.
const row = (problem) => {
  const at = /\[(\d+)\]/.exec(problem.path || "");
  return at ? ` ${Number(at[1]) + 1}` : "";
};

// The list, which stands under the bar.
export const problemSummary = el("div", { class: "summary", id: "problem-summary", role: "alert", hidden: true });
const drawSummary = (problems) => {
  const bad = problems.filter((p) => p.severity === "error");
  problemSummary.hidden = !bad.length;
  if (!bad.length) return fill(problemSummary);
  fill(
    problemSummary,
    el("strong", {}, bad.length === 1 ? "One thing needs your attention" : `${bad.length} things need your attention`),
    el(
      "ul",
      {},
      bad.map((p) =>
        el(
          "li",
          {},
          p.id
            ? el("button", { class: "link", onclick: () => goToField(p.id, p.tab) }, `${p.tab}: ${p.label}${row(p)}`)
            : null,
          el("span", {}, `${p.id ? " – " : ""}${problemSentence(p)}`),
        ),
      ),
    ),
  );
};
on("problems", drawSummary);
on("refused", () => problemSummary.scrollIntoView({ block: "nearest" }));
