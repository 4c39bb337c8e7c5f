// Keeps a panel up to date with a route's answer.

import { el, fill, whenPresent } from "./dom.js";
import { getJson } from "./http.js";
import { on } from "./state.js";
/** @import { Answers } from "./server" */

// Asks again only when the settings that matter have changed.
/**
 * Draws an answer when its element comes and whenever the form has changed. Returns what asks again.
 *
 * @template {keyof Answers} Route
 * @param {string} selector
 * @param {Route} path
 * @param {(node: HTMLElement, answer: Answers[Route]) => void} draw
 */
export const followRoute = (selector, path, draw) => {
  let node = null;
  let last = null;
  const update = async () => {
    if (!node) return;
    try {
      const answer = await getJson(path);
      const key = JSON.stringify(answer);
      if (key === last) return;
      last = key;
      draw(node, answer);
    } catch (error) {
      fill(node, el("p", { class: "note" }, error.message));
    }
  };
  whenPresent(selector, (root) => {
    node = root;
    last = null;
    update();
  });
  on("draft", update);
  return update;
};
