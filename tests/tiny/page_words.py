"""Shows sentences of the server as the page does: with its own script, in Node.js."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest

from backend.base.paths import PROJECT_ROOT
from gui.locale import catalogue

needs_node = pytest.mark.skipif(
    not shutil.which("node") and "CI" not in os.environ, reason="no Node.js on this machine"
)
_ENGLISH = re.compile("[A-Za-z]+ [a-z]+ [a-z]+")
# Prints sentences of the server as the page shows them, with the real script and a catalogue of its own.
SHOWN = """
import { readFileSync } from "node:fs";
const [script, texts, sentences] = JSON.parse(readFileSync(0, "utf8"));
globalThis.document = { documentElement: { dataset: { language: "de" }, lang: "de" } };
globalThis.MutationObserver = class { observe() {} };
globalThis.fetch = async () => ({ ok: true, json: async () => ({ stop: ".", texts, counts: {} }) });
const { translate } = await import(`data:text/javascript,${encodeURIComponent(script)}`);
console.log(JSON.stringify(sentences.map((sentence) => translate(sentence))));
"""


def as_shown(texts: dict[str, str], sentences: list[str]) -> dict[str, str]:
    """Each sentence of the server, and what the page makes of it with these texts."""
    script = (PROJECT_ROOT / "assets" / "js" / "locale.js").read_text("utf-8")
    script = script.replace("import.meta.url", '"http://page/js/locale.js"')
    request = json.dumps([script, texts, sentences])
    line = ["node", "--input-type=module", "-e", SHOWN]
    done = subprocess.run(line, input=request, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return dict(zip(sentences, json.loads(done.stdout), strict=True))


def left_in_english(sentences: list[str], names: str = "") -> list[str]:
    """Those that the page does not recognise in each language, or not whole. names: what stays as it is, a pattern."""
    german, chinese = (as_shown(catalogue.catalogues()[code].texts, sentences) for code in ("de", "zh-CN"))
    left = [shown for text, shown in german.items() if shown == text and _is_english(text, names)]
    return left + [shown for shown in chinese.values() if _is_english(shown, names)]


def _is_english(text: str, names: str) -> bool:
    return bool(_ENGLISH.search(re.sub(names, "", text)))
