// Shows the check of the base model, as soon as one is given.

import { sendRequest } from "./bridge.js";
import { el, fill, table } from "./dom.js";
import { goToField } from "./field_jump.js";
import { formatBytes } from "./format.js";
import { t } from "./locale.js";
import { followRoute } from "./route_panel.js";
/** @import { Problem } from "./server" */

/**
 * @param {Problem} p
 */
const problem = (p) => {
  const elsewhere = p.id && p.path !== "model.base_model";
  return el(
    "li",
    { class: p.severity },
    el("strong", {}, p.text),
    p.remedy ? ` ${p.remedy}` : "",
    elsewhere
      ? [" ", el("button", { class: "link", onclick: () => goToField(p.id, p.tab) }, t`Go to ${p.label}`)]
      : null,
  );
};
followRoute("#model-root", "/model", (node, answer) => {
  if (!answer.path)
    return fill(
      node,
      el("p", { class: "note" }, "Enter the base model's folder or file above. It is checked at once."),
    );
  const good = !answer.problems.some((p) => p.severity === "error");
  const { fits } = answer;
  fill(
    node,
    el(
      "div",
      { class: `verdict ${good ? "good" : "bad"}`, id: "model-verdict" },
      good
        ? t`${answer.title} found, ${formatBytes(answer.total)} on disk.`
        : fits
          ? t`This is ${fits.title}, but the model family is set to ${answer.title}.`
          : "This base model can't be used yet.",
    ),
    fits
      ? el(
          "div",
          { class: "buttons" },
          el(
            "button",
            { class: "primary", id: "take-family", onclick: () => sendRequest("apply", { change: fits.change }) },
            t`Set the model family to ${fits.title}`,
          ),
        )
      : answer.problems.length
        ? el("ul", { class: "problem-list" }, answer.problems.map(problem))
        : null,
    answer.parts.length
      ? table(
          ["Part", "Folder or file", "On disk"],
          answer.parts.map((p) =>
            el(
              "tr",
              {},
              el("td", {}, p.name),
              el("td", {}, el("code", {}, p.place)),
              el("td", {}, p.bytes === null ? el("span", { class: "bad" }, "missing") : formatBytes(p.bytes)),
            ),
          ),
          { class: "facts" },
        )
      : null,
    answer.facts.length ? el("p", { class: "note" }, answer.facts.join(" · ")) : null,
  );
});
