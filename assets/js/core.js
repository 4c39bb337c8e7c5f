// Small helpers that the other scripts share. Nothing here ever turns text into HTML.
(() => {
  "use strict";
  // Behind a reverse proxy the page may lie below a path: every address of our own begins with it.
  const script = document.currentScript || document.querySelector("script[src*='/page/monotile.js']");
  const base = script ? new URL(script.src).pathname.replace(/\/page\/monotile\.js$/, "") : "";
  const m = (window.monotile = { state: { desk: {}, problems: [], presets: [], settings: [] } });
  const listeners = new Map();

  m.on = (name, callback) => {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(callback);
  };
  m.emit = (name, detail) => (listeners.get(name) || []).forEach((callback) => callback(detail));

  // el("button", { class: "b", onclick: f }, "text", otherElement): strings become text nodes.
  m.el = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "value") node.value = value;
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  };
  m.fill = (node, ...children) => {
    node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  };
  m.text = (node, value) => {
    if (node && node.textContent !== value) node.textContent = value;
  };
  // A drawing made by our own server, put in as elements so that it takes the page's colours.
  m.svg = (node, source) => {
    const parsed = new DOMParser().parseFromString(source, "image/svg+xml").documentElement;
    if (parsed.nodeName === "svg") node.replaceChildren(document.importNode(parsed, true));
  };

  // Icons as paths, since fonts differ in which arrows and signs they have.
  const ICONS = {
    up: "M8 12.5V3.5M4 7.5l4-4 4 4",
    down: "M8 3.5v9M4 8.5l4 4 4-4",
    copy: "M6 6h7v7H6zM3.5 10V3.5H10",
    remove: "M4 4l8 8M12 4l-8 8",
    undo: "M6 3.5L3 6.5l3 3M3 6.5h6a3.5 3.5 0 010 7H7",
    redo: "M10 3.5l3 3-3 3M13 6.5H7a3.5 3.5 0 000 7h2",
    theme: "M8 2.5a5.5 5.5 0 100 11 5.5 5.5 0 000-11zM8 2.5v11M8 5l3 .8M8 8h5M8 11l3-.8",
    down_small: "M4.5 6.5L8 10l3.5-3.5",
  };
  m.icon = (name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  };

  const read = async (response) => {
    const kind = response.headers.get("content-type") || "";
    const body = kind.includes("json") ? await response.json() : await response.text();
    if (!response.ok) throw new Error((body && body.detail) || (typeof body === "string" && body) || response.statusText);
    return body;
  };
  m.url = (path, query) => base + (query ? `${path}?${new URLSearchParams(query)}` : path);
  m.get = async (path, query = {}) => {
    const search = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== undefined && v !== null));
    return read(await fetch(m.url(search.size ? `${path}?${search}` : path), { cache: "no-store" }));
  };
  m.post = async (path, body = {}) =>
    read(await fetch(m.url(path), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }));

  // Gradio mounts tabs and components in its own time: what needs an element waits for it here.
  m.whenPresent = (selector, callback) => {
    const done = new WeakSet();
    const look = () => {
      for (const node of document.querySelectorAll(selector)) {
        if (done.has(node)) continue;
        done.add(node);
        callback(node);
      }
    };
    // What is there already, as when the scripts come late, waits until all of them have run.
    queueMicrotask(look);
    new MutationObserver(look).observe(document.documentElement, { childList: true, subtree: true });
  };

  m.openTab = (title) => {
    const tab = [...document.querySelectorAll("#tabs button[role=tab]")].find((b) => b.textContent.trim() === title);
    if (tab && tab.getAttribute("aria-selected") !== "true") tab.click();
    return Boolean(tab);
  };
  // A refreshed page shows the tab that it showed. Private windows may refuse storage: then it begins anew.
  const TAB = "monotile-tab";
  m.keptTab = () => {
    try {
      return sessionStorage.getItem(TAB);
    } catch {
      return null;
    }
  };
  document.addEventListener("click", (event) => {
    const tab = event.target.closest?.("#tabs button[role=tab]");
    try {
      if (tab) sessionStorage.setItem(TAB, tab.textContent.trim());
    } catch {
      // As above.
    }
  });
  m.currentTab = () => document.querySelector("#tabs button[role=tab][aria-selected=true]")?.textContent.trim();

  // A box over the page; closed by Escape, by its button and by a click beside it.
  m.dialog = (title, ...content) => {
    const box = m.el(
      "dialog",
      { class: "dialog", "aria-label": title },
      m.el("div", { class: "dialog-head" }, m.el("h2", {}, title), m.el("button", { class: "quiet", "aria-label": "Close", onclick: () => box.close() }, m.icon("remove"))),
      content,
    );
    box.addEventListener("close", () => box.remove());
    box.addEventListener("click", (event) => event.target === box && box.close());
    document.body.append(box);
    box.showModal();
    return box;
  };

  let toasts;
  // only: at most one message with this mark is shown.
  m.toast = (text, { kind = "info", action, onaction, seconds = 6, only } = {}) => {
    toasts ||= document.body.appendChild(m.el("div", { class: "toasts", role: "status", "aria-live": "polite" }));
    const close = () => note.remove();
    if (only) toasts.querySelector(`[data-only=${only}]`)?.remove();
    const note = m.el(
      "div",
      { class: `toast ${kind}`, "data-only": only },
      m.el("span", {}, text),
      action ? m.el("button", { class: "link", onclick: () => (close(), onaction()) }, action) : null,
      m.el("button", { class: "quiet", "aria-label": "Close this message", onclick: close }, m.icon("remove")),
    );
    toasts.append(note);
    while (toasts.children.length > 4) toasts.firstChild.remove();
    setTimeout(close, (action ? seconds * 2 : seconds) * 1000);
  };
  m.failed = (error) => m.toast(error.message || String(error), { kind: "error", seconds: 12 });

  m.copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without https (a page on another machine) browsers hide the clipboard: the old way still works.
      const area = document.body.appendChild(m.el("textarea", { class: "offscreen", value: text }));
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    m.toast("Copied.");
  };
  m.pathLine = (path, extra) =>
    m.el(
      "div",
      { class: "path-line" },
      m.el("code", { title: path }, path),
      m.el("button", { class: "small", onclick: () => m.copy(path) }, "Copy path"),
      extra || null,
    );

  m.duration = (seconds) => {
    if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    const s = Math.round(seconds);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  };
  const sized = (count, step) => {
    if (count === null || count === undefined) return "–";
    const units = ["B", "KB", "MB", "GB", "TB"];
    let unit = 0;
    while (count >= step && unit < units.length - 1) (count /= step), unit++;
    return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
  };
  // Disks are sold by thousands; memory comes in powers of two, and a card "of 24 GB" has 24 of these.
  m.bytes = (count) => sized(count, 1000);
  m.memory = (count) => sized(count, 1024);
  m.number = (value, digits = 4) =>
    value === null || value === undefined ? "–" : Number(value).toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: false });
  m.count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many || one + "s"}`;

  // The server's messages arrive as the value of one hidden component; the page's requests leave as another's.
  let send = null;
  const waiting = [];
  m.bridge = (props, watch) => {
    const take = () => props.value && m.receive(props.value);
    watch("value", take);
    take();
  };
  m.actor = (props, trigger) => {
    send = (request) => {
      props.value = { ...request, at: Date.now() + Math.random() };
      trigger("submit");
    };
    waiting.splice(0).forEach(send);
  };
  m.act = (what, details = {}) => {
    // Gone back once: the message that offered it would go back further.
    if (what === "undo") toasts?.querySelector("[data-only=undo]")?.remove();
    return send ? send({ what, ...details }) : waiting.push({ what, ...details });
  };
  m.receive = (message) => {
    for (const key of ["desk", "problems", "presets", "settings"]) if (message[key]) m.state[key] = message[key];
    if (message.desk) m.emit("desk", message.desk);
    if (message.presets) m.emit("presets", message.presets);
    if (message.settings) m.emit("settings", message.settings);
    if (message.problems) m.emit("problems", message.problems);
    if (message.notice) {
      const { text, kind, action, request } = message.notice;
      // The way back is always that of the newest change: an older message must not offer it as its own.
      const only = request?.what === "undo" ? "undo" : undefined;
      m.toast(text, { kind, action, only, onaction: request && (() => m.act(request.what, request)) });
    }
    if (message.behind) m.act("refresh");
    if (message.difference) m.emit("difference", message.difference);
    if (message.brought) m.emit("brought", message.brought);
    if (message.importFailed) m.emit("importFailed", message.importFailed);
    if (message.started) m.emit("started", message.started);
    if (message.refused) m.emit("refused", message.problems || []);
  };

  const flush = () => (window.monotileReady || []).splice(0).forEach((callback) => callback(m));
  window.monotileFlush = flush;
  document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", flush) : queueMicrotask(flush);
})();
