// Offers the languages of the page. The server reads the choice from a cookie, as it draws the form in that language.

import { openDialog } from "./dialogs.js";
import { el } from "./dom.js";
import { drawIcon } from "./icons.js";
import { language, t } from "./locale.js";

const TITLE = "Language of the page";
const YEAR_S = 365 * 24 * 3600;

/** @type {() => [string, string][]} */
const languages = () => JSON.parse(document.getElementById("languages")?.textContent || "[]");

// What was typed is sent as its field is left, which the way to this dialog did.
const SENT_MS = 300;
const choose = (code) => {
  // The path keeps pages below a reverse proxy apart.
  const path = new URL(document.baseURI).pathname;
  document.cookie = `monotile-language=${code}; path=${path}; max-age=${YEAR_S}; samesite=lax`;
  setTimeout(() => window.location.reload(), SENT_MS);
};
const openLanguages = () => {
  const button = ([code, name]) =>
    el(
      "button",
      {
        class: code === language ? "language chosen" : "language",
        lang: code,
        translate: "no",
        "data-language": code,
        "aria-current": code === language ? "true" : null,
        onclick: () => (box.close(), code === language || choose(code)),
      },
      name,
    );
  const box = openDialog(TITLE, el("div", { class: "languages" }, languages().map(button)));
  /** @type {HTMLElement} */ (box.querySelector(".chosen") || box.querySelector(".language"))?.focus();
};

// The button in the bar.
export const languageButton = el(
  "button",
  { class: "icon", id: "language", "aria-haspopup": "dialog", title: TITLE, onclick: openLanguages },
  drawIcon("globe"),
);
languageButton.setAttribute("aria-label", TITLE === t(TITLE) ? TITLE : `${t(TITLE)} (Language)`);
