// Switches between light and dark, and keeps the choice.

import { el, whenPresent } from "./dom.js";
import { drawIcon } from "./icons.js";
import { emit } from "./state.js";

const TITLE = "Switch between light and dark theme";
const setTheme = (theme) => {
  document.body.classList.toggle("dark", theme === "dark");
  document.documentElement.style.colorScheme = theme;
  emit("theme", theme);
};
const switchTheme = () => {
  const theme = document.body.classList.contains("dark") ? "light" : "dark";
  try {
    localStorage.setItem("monotile-theme", theme);
  } catch {
    // Private windows may refuse storage; the choice then lasts until the page is closed.
  }
  setTheme(theme);
};
whenPresent("#bar-root", () => {
  let kept = null;
  try {
    kept = localStorage.getItem("monotile-theme");
  } catch {
    kept = null;
  }
  setTheme(kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
});

// The button in the bar.
export const themeButton = el(
  "button",
  { class: "icon", id: "theme", "aria-label": TITLE, title: TITLE, onclick: switchTheme },
  drawIcon("theme"),
);
