"""Serves the page's own files: scripts, style, pictures."""

from __future__ import annotations

import os
from pathlib import PurePath

from fastapi.staticfiles import StaticFiles
from starlette.responses import Response
from starlette.types import Scope

# Python asks the system, and some Windows machines call a script plain text, which no browser loads as a module.
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


class Assets(StaticFiles):
    """Files that a browser keeps, and asks about before it uses them again.

    Modules import each other by relative addresses, so a version in the address of one would not reach the others, and
    a module under two addresses would run twice. The question costs an answer without a body.
    """

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file, or 304 when the browser has this version of it."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "no-cache"
        kind = _TYPES.get(PurePath(full_path).suffix)
        if kind and response.status_code == 200:
            response.headers["Content-Type"] = kind
        return response
