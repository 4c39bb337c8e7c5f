"""Makes the HTML report of a run, asked for on the Library tab, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from backend.base.paths import PROJECT_ROOT
from gui.run_routes import Name, or_refusal
from gui.run_store import RunStore

_MODULE = "backend.publish.run_report"
_LONGEST_S = 120
# The report's styles and pictures are inside of it; it has no script.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class ReportWriter:
    """Runs the program that writes a report, and sends what it wrote."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        # One after the other: each is a process that reads pictures and hashes files.
        self._turn = threading.Lock()

    def routes(self) -> APIRouter:
        """The routes of this module."""
        router = APIRouter()

        @router.get("/report")
        def report(run: Name, download: bool = False) -> Response:
            """One HTML file about a run, to look at or to keep."""
            path = or_refusal(lambda: self._store.run(run)).path
            kind = "attachment" if download else "inline"
            headers = {
                "Content-Disposition": f"{kind}; filename*=UTF-8''{quote(path.name)}-report.html",
                "Content-Security-Policy": _POLICY,
                "Cache-Control": "no-store",
            }
            with self._turn:
                content = _written(path)
            return Response(content, media_type="text/html", headers=headers)

        return router


def _written(run: Path) -> bytes:
    """What the program makes of a run. An answer with its own words where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.html"
        command = [sys.executable, "-m", _MODULE, str(run), "--out", str(target)]
        try:
            done = subprocess.run(
                command, cwd=PROJECT_ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S
            )
        except subprocess.TimeoutExpired:
            text = "The report took longer than two minutes. Write it in a terminal: launcher.py report RUN."
            raise HTTPException(504, text) from None
        if done.returncode != 0 or not target.is_file():
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise HTTPException(422, lines[-1].removeprefix("error: ") if lines else "The report could not be made.")
        return target.read_bytes()
