// Lists the errors that stop a start, below the bar.

import { el, fill } from "./dom.js";
import { goToField } from "./field_jump.js";
import { problemSentence } from "./field_marks.js";
import { t } from "./locale.js";
import { on } from "./state.js";

// Number of the list's row, counted from one as the rows are.
const row = (problem) => {
  const at = /\[(\d+)\]/.exec(problem.path || "");
  return at ? ` ${Number(at[1]) + 1}` : "";
};

// The list below the bar.
export const problemSummary = el("div", { class: "summary", id: "problem-summary", role: "alert", hidden: true });
const drawSummary = (problems) => {
  const errors = problems.filter((p) => p.severity === "error");
  problemSummary.hidden = !errors.length;
  if (!errors.length) return fill(problemSummary);
  fill(
    problemSummary,
    el("strong", {}, errors.length === 1 ? "1 problem to fix" : t`${errors.length} problems to fix`),
    el(
      "ul",
      {},
      errors.map((p) =>
        el(
          "li",
          {},
          p.id
            ? el(
                "button",
                { class: "link", onclick: () => goToField(p.id, p.tab) },
                `${t(p.tab)}: ${t(p.label)}${row(p)}`,
              )
            : null,
          el("span", {}, `${p.id ? " – " : ""}${problemSentence(p)}`),
        ),
      ),
    ),
  );
};
on("problems", drawSummary);
on("refused", () => problemSummary.scrollIntoView({ block: "nearest" }));
