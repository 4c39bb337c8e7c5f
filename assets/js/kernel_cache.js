// Shows the compile cache: its size, export, import, clearing.

import { pathLine } from "./clipboard.js";
import { el, fill, setText, whenPresent } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { address, getJson, postJson, readAnswer } from "./http.js";
import { t } from "./locale.js";
import { onTabOpened } from "./tabs.js";
import { showError, toast } from "./toasts.js";

whenPresent("#cache-root", (node) => {
  const size = el("span", { class: "note" });
  const place = el("div");
  const clearButton = el("button", { onclick: () => clearCache() }, "Clear cache");
  const exportButton = el("button", { id: "cache-export", onclick: () => exportCache() }, "Export");
  const file = el("input", {
    type: "file",
    accept: ".zip",
    hidden: true,
    "aria-label": "Compile cache file (.zip)",
    onchange: () => importCache(),
  });
  const importButton = el("button", { id: "cache-import", onclick: () => file.click() }, "Import…");
  const trust = el(
    "p",
    { class: "note" },
    "A compile cache contains code that will run on this machine: import one only from people you trust. " +
      "It works only with the same GPU model and torch version.",
  );
  fill(node, el("div", { class: "panel-head" }, exportButton, importButton, clearButton, size, file), place, trust);
  const exportCache = async () => {
    exportButton.disabled = true;
    setText(exportButton, "Exporting…");
    try {
      const response = await fetch(address("/cache/export"), { cache: "no-store" });
      if (!response.ok) await readAnswer(response);
      const archive = URL.createObjectURL(await response.blob());
      el("a", { href: archive, download: "monotile-compile-cache.zip" }).click();
      setTimeout(() => URL.revokeObjectURL(archive), 60_000);
    } catch (error) {
      showError(error);
    }
    exportButton.disabled = false;
    setText(exportButton, "Export");
    show();
  };
  const importCache = async () => {
    const archive = file.files[0];
    file.value = "";
    if (!archive) return;
    importButton.disabled = true;
    setText(importButton, "Importing…");
    try {
      const response = await fetch(address("/cache/import"), {
        method: "POST",
        headers: { "Content-Type": "application/zip" },
        body: archive,
      });
      toast((await readAnswer(response)).text);
    } catch (error) {
      showError(error);
    }
    importButton.disabled = false;
    setText(importButton, "Import…");
    show();
  };
  const show = async () => {
    try {
      const answer = await getJson("/cache");
      setText(size, answer.files ? t`${formatBytes(answer.bytes)} in ${formatCount(answer.files, "file")}` : "Empty");
      clearButton.disabled = exportButton.disabled = !answer.files;
      fill(place, pathLine(answer.path));
    } catch (error) {
      setText(size, error.message);
    }
  };
  const clearCache = async () => {
    try {
      const deleted = await postJson("/cache/clear");
      toast(t`Compile cache cleared (${formatBytes(deleted.bytes)}). The next run compiles again.`);
      show();
    } catch (error) {
      showError(error);
    }
  };
  show();
  onTabOpened("Compile", show);
});
