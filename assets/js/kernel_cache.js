// Shows the cache of compiled kernels: its size, export, import, clearing.

import { pathLine } from "./clipboard.js";
import { el, fill, setText, whenPresent } from "./dom.js";
import { formatBytes, formatCount } from "./format.js";
import { address, getJson, postJson, readAnswer } from "./http.js";
import { onTabOpened } from "./tabs.js";
import { showError, toast } from "./toasts.js";

whenPresent("#cache-root", (node) => {
  const size = el("span", { class: "note" });
  const place = el("div");
  const clear = el("button", { onclick: () => empty() }, "Clear the cache");
  const export_ = el("button", { id: "cache-export", onclick: () => take() }, "Export");
  const file = el("input", {
    type: "file",
    accept: ".zip",
    hidden: true,
    "aria-label": "Archive of compiled kernels",
    onchange: () => bring(),
  });
  const import_ = el("button", { id: "cache-import", onclick: () => file.click() }, "Import…");
  const trust = el(
    "p",
    { class: "note" },
    "Kernels are code that will run: import archives only from people you trust. They fit the same GPU and torch only.",
  );
  fill(node, el("div", { class: "look-head" }, export_, import_, clear, size, file), place, trust);
  const take = async () => {
    export_.disabled = true;
    setText(export_, "Exporting…");
    try {
      const response = await fetch(address("/cache/export"), { cache: "no-store" });
      if (!response.ok) await readAnswer(response);
      const archive = URL.createObjectURL(await response.blob());
      el("a", { href: archive, download: "monotile-compile-cache.zip" }).click();
      setTimeout(() => URL.revokeObjectURL(archive), 60_000);
    } catch (error) {
      showError(error);
    }
    export_.disabled = false;
    setText(export_, "Export");
    show();
  };
  const bring = async () => {
    const chosen = file.files[0];
    file.value = "";
    if (!chosen) return;
    import_.disabled = true;
    setText(import_, "Importing…");
    try {
      const response = await fetch(address("/cache/import"), {
        method: "POST",
        headers: { "Content-Type": "application/zip" },
        body: chosen,
      });
      toast((await readAnswer(response)).text);
    } catch (error) {
      showError(error);
    }
    import_.disabled = false;
    setText(import_, "Import…");
    show();
  };
  const show = async () => {
    try {
      const answer = await getJson("/cache");
      setText(size, answer.files ? `${formatBytes(answer.bytes)} in ${formatCount(answer.files, "file")}` : "Empty");
      clear.disabled = export_.disabled = !answer.files;
      fill(place, pathLine(answer.path));
    } catch (error) {
      setText(size, error.message);
    }
  };
  const empty = async () => {
    try {
      const gone = await postJson("/cache/clear");
      toast(`${formatBytes(gone.bytes)} of compiled kernels deleted. The next run compiles anew.`);
      show();
    } catch (error) {
      showError(error);
    }
  };
  show();
  onTabOpened("Compile", show);
});
