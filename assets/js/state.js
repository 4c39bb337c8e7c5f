// Holds the server's latest state of the form, and passes events between the modules of the page.

/** @import { News, PageState } from "./server" */

/** @type {PageState} */
export const pageState = { draft: {}, problems: [], presets: [], settings: [], runs: [] };

const listeners = new Map();
/**
 * @template {keyof News} Name
 * @param {Name} name
 * @param {(detail: News[Name]) => void} callback
 */
export const on = (name, callback) => {
  if (!listeners.has(name)) listeners.set(name, []);
  listeners.get(name).push(callback);
};

/**
 * @template {keyof News} Name
 * @param {Name} name
 * @param {News[Name]} detail
 */
export const emit = (name, detail) => (listeners.get(name) || []).forEach((callback) => callback(detail));
