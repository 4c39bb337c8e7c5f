// Checks this machine for what torch.compile needs.

import { el, fill, setText, whenPresent } from "./dom.js";
import { getJson, postJson } from "./http.js";
import { showError } from "./toasts.js";

const SIGN = { ok: "✓", warn: "!", fail: "×" };
let timer = null;
whenPresent("#doctor-root", (node) => {
  const button = el("button", { id: "doctor", onclick: () => start() }, "Check this machine");
  const note = el(
    "span",
    { class: "note" },
    "Compiles a small function, forward and backward, and checks what torch.compile needs. Takes about 30 seconds.",
  );
  const result = el("div", { id: "doctor-result" });
  fill(node, el("div", { class: "panel-head" }, button, note), result);
  const start = async () => {
    try {
      await postJson("/doctor");
      watch();
    } catch (error) {
      showError(error);
    }
  };
  const watch = async () => {
    clearTimeout(timer);
    const answer = await getJson("/doctor").catch(() => null);
    if (!answer) return void (timer = setTimeout(watch, 2000));
    button.disabled = answer.state === "running";
    setText(button, answer.state === "running" ? "Checking…" : "Check this machine");
    if (answer.state === "running") timer = setTimeout(watch, 700);
    if (answer.checks?.length) {
      fill(
        result,
        el(
          "table",
          { class: "facts doctor" },
          el(
            "tbody",
            {},
            answer.checks.map((c) =>
              el(
                "tr",
                { class: c.state },
                el("td", { class: "sign", "aria-label": c.state }, SIGN[c.state] || "?"),
                el("th", {}, c.name),
                el(
                  "td",
                  {},
                  c.text,
                  c.remedy && c.state !== "ok" ? el("span", { class: "remedy block" }, c.remedy) : null,
                ),
              ),
            ),
          ),
        ),
        answer.state === "running"
          ? el("p", { class: "note" }, "The last check compiles a small function and takes longest…")
          : null,
      );
    }
    if (answer.state === "failed") fill(result, el("p", { class: "warning" }, answer.text));
  };
  watch();
});
