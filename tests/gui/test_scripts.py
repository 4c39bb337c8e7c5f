"""The page's scripts and styles: what they name exists, and how they are served."""

from __future__ import annotations

import mimetypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gui import theme
from tests.gui.conftest import Page

SCRIPTS = sorted((theme.ASSETS / "js").glob("*.js"))
COMPILER = Path(__file__).parent / "typescript"


@pytest.fixture(scope="session")
def tsc() -> list[str]:
    """The TypeScript compiler, installed once at the version that its lock file names."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if (not npm or not node) and not os.environ.get("CI"):
        pytest.skip("no Node.js on this machine: apt-get install nodejs npm")
    assert npm and node, "Node.js is missing: apt-get install nodejs npm"
    program, lock = COMPILER / "node_modules" / "typescript" / "bin" / "tsc", COMPILER / "package-lock.json"
    if not program.is_file() or program.stat().st_mtime < lock.stat().st_mtime:
        line = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
        installed = subprocess.run(line, cwd=COMPILER, capture_output=True, text=True, timeout=300)
        assert installed.returncode == 0, installed.stderr
        os.utime(program)
    return [node, str(program)]


def test_scripts_use_what_exists(tsc: list[str]) -> None:
    """Imports, functions, and the names in the server's answers that assets/js/server.d.ts types."""
    checked = subprocess.run([*tsc, "--project", str(theme.ASSETS / "js")], capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout


def test_every_script_is_loaded() -> None:
    """From main.js, or from a component's ``js_on_load``."""
    waiting, reached = ["main", "bridge", "table_editor"], set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += re.findall(
                r'(?:from|import) "\./(\w+)\.js";', (theme.ASSETS / "js" / f"{name}.js").read_text("utf-8")
            )
    assert reached == {path.stem for path in SCRIPTS}


def test_no_address_depends_on_where_the_page_lies() -> None:
    """Below a reverse proxy the page has a path of its own, so an address that begins with a slash leads elsewhere."""
    lines_with_addresses = [
        f"{path.name}: {line.strip()}"
        for path in SCRIPTS
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"""(?:href|src|action): ["'`]/|fetch\(["'`]|url\(/|window\.monotile""", line)
    ]
    assert not lines_with_addresses and '"/' not in theme.head()


def test_lines_and_files_are_short() -> None:
    too_long = []
    for path in (*SCRIPTS, *(theme.ASSETS / "css").glob("*.css"), theme.ASSETS / "js" / "server.d.ts"):
        lines = path.read_text("utf-8").splitlines()
        too_long += [f"{path.name}:{number}" for number, line in enumerate(lines, 1) if len(line) > 120]
        too_long += [f"{path.name} has {len(lines)} lines"] if len(lines) > 400 else []
    assert not too_long


def test_files_are_asked_for_again_and_are_scripts_on_any_system(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimetypes, "guess_type", lambda *_, **__: ("text/plain", None))
    files = re.findall(r'(?:src|href)="(page/[^"]+)"', theme.head())
    assert "page/js/main.js" in files and len(files) > len(theme.STYLES) + 2
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for file in files:
        answer = page.client.get(f"/{file}")
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-cache", file
        assert answer.headers["content-type"].startswith(kinds[Path(file).suffix]), file
        again = page.client.get(f"/{file}", headers={"if-none-match": answer.headers["etag"]})
        assert again.status_code == 304 and again.headers["cache-control"] == "no-cache", file


def test_every_part_of_an_estimate_has_a_colour_and_a_place_in_the_legend() -> None:
    from backend.plan.memory.report import PARTS

    script = (theme.ASSETS / "js" / "memory_estimate.js").read_text(encoding="utf-8")
    style = (theme.ASSETS / "css" / "content.css").read_text(encoding="utf-8")
    assert [name for name in PARTS if f'"{name}"' not in script or f".p-{name} {{" not in style] == []
