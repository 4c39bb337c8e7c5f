// Connects the page with Gradio: the server's messages arrive as the value of one hidden component, and the page's
// requests leave as another's. `gui/app.py` hands over both.

import { translate } from "./locale.js";
import { emit, pageState } from "./state.js";
import { removeToast, toast } from "./toasts.js";
import { isTyping } from "./untouched_fields.js";
/** @import { Message } from "./server" */

// Requests that act on the whole form as it is on the screen. Gathering it takes Gradio a moment.
const WHOLE = new Set(["refresh", "save", "save-as", "start", "enqueue"]);
let send = null;
const waiting = [];
export const connectMessages = (props, watch) => {
  const receiveValue = () => props.value && receive(props.value);
  watch("value", receiveValue);
  receiveValue();
};
export const connectRequests = (props, trigger) => {
  send = (request) => {
    props.value = { ...request, at: Date.now() + Math.random() };
    trigger(WHOLE.has(request.what) || isTyping() ? "submit" : "click");
  };
  waiting.splice(0).forEach(send);
};
export const sendRequest = (what, details = {}) => {
  // After one undo, the message that offered it would undo one more.
  if (what === "undo") removeToast("undo");
  return send ? send({ what, ...details }) : waiting.push({ what, ...details });
};
// Settings as the page's language calls them; the search finds their English names too.
const inLanguage = (setting) => ({
  ...setting,
  label: translate(setting.label),
  help: translate(setting.help),
  group: translate(setting.group),
  aliases: translate(setting.label) === setting.label ? setting.aliases : [...setting.aliases, setting.label],
  columns: setting.columns.map((each) => ({ ...each, label: translate(each.label), help: translate(each.help) })),
});
// Two edits are answered at the same time, so the older answer can arrive last: what it says of the form is past.
let newest = 0;
/**
 * @param {Message} message
 */
const takeState = (message) => {
  if (message.number < newest) return;
  newest = message.number;
  if (message.settings) message.settings = message.settings.map(inLanguage);
  for (const key of ["draft", "problems", "presets", "settings"]) if (message[key]) pageState[key] = message[key];
  if (message.draft) emit("draft", message.draft);
  if (message.presets) emit("presets", message.presets);
  if (message.settings) emit("settings", message.settings);
  if (message.problems) emit("problems", message.problems);
};
/**
 * @param {Message} message
 */
export const receive = (message) => {
  takeState(message);
  if (message.notice) {
    const { text, kind, action, request } = message.notice;
    // Undo always undoes the newest change: an older message must not offer it.
    const only = request?.what === "undo" ? "undo" : undefined;
    toast(text, { kind, action, only, onaction: request && (() => sendRequest(request.what, request)) });
  }
  if (message.behind) sendRequest("refresh");
  if (message.difference) emit("difference", message.difference);
  if (message.foreign) emit("foreign", message.foreign);
  if (message.importFailed) emit("importFailed", message.importFailed);
  if (message.started) emit("started", message.started);
  if (message.queued) emit("queued", message.queued);
  if (message.refused) emit("refused", message.problems || []);
};
