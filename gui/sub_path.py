"""Serves the page below a path of another server, as a reverse proxy shows it: https://host/tools/monotile/."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class Root(NamedTuple):
    """Where the page is seen from outside. path: "" or "/tools/monotile". address: the whole address, or the path.

    host: the host name in the address; empty where only a path was given.
    """

    path: str
    address: str
    host: str


def read_root(text: str | None) -> Root:
    """Read --root-path: a path, or a whole address with one. ValueError with the remedy for anything else."""
    text = (text or "").strip().rstrip("/")
    parts = urlsplit(text)
    whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    path = parts.path if whole else text if text.startswith("/") or not text else f"/{text}"
    if not _PATH.fullmatch(path) or (whole and (parts.query or parts.fragment)):
        raise ValueError(
            f"{text!r} is no path to serve the page under. Give one such as /monotile, or the whole address: "
            "https://example.org/monotile."
        )
    return Root(path, text if whole else path, (parts.hostname or "") if whole else "")


class SubPath:
    """Tells the application the path that it lies under, whether the proxy takes that path off or passes it on."""

    def __init__(self, app: ASGIApp, *, root: Root) -> None:
        self.app = app
        self._root = root.path
        # Gradio builds addresses from these; a whole address rules over what the proxy tells, or forgets to tell.
        parts = urlsplit(root.address)
        known = {b"x-forwarded-host": parts.netloc, b"x-forwarded-proto": parts.scheme} if root.host else {}
        self._known = {name: value.encode() for name, value in known.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if path == self._root and path and scope["type"] == "http":
            await RedirectResponse(f"{self._root}/")(scope, receive, send)
            return
        if not path.startswith(f"{self._root}/"):
            raw = scope.get("raw_path") or path.encode("utf-8", "surrogateescape")
            scope = {**scope, "path": self._root + path, "raw_path": self._root.encode() + raw}
        headers = [pair for pair in scope["headers"] if pair[0] not in self._known]
        await self.app({**scope, "root_path": self._root, "headers": [*headers, *self._known.items()]}, receive, send)
