"""Protects the page from other web sites.

A page on 127.0.0.1 is reachable by every site that the person's browser has open: by a form post, by an embedded
picture, and, through DNS rebinding, under a name that the attacker owns. Gradio checks none of this, so small ASGI
layers (these, and the password's) do, for Gradio's routes and ours alike.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})

# Nothing may leave the machine: the browser itself enforces it. Gradio's front end needs inline scripts and evaluates
# its HTML templates, so it has the two "unsafe" words; they are about our own page, not about other hosts.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "media-src 'self' data: blob:; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)


_UPLOADS = re.compile(r"/upload(_progress)?/?$")


def is_loopback(host: str) -> bool:
    """True when ``host`` (a name or an address, without port) can only mean this machine."""
    name = host.strip("[]").lower()
    if name in LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(header: str) -> str:
    """The name or address in a Host header, lower case, without port and brackets; empty when malformed."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower().rstrip(".")
    except ValueError:
        return ""


def own_path(scope: Scope) -> str:
    """The path of a request below the one that a reverse proxy shows the page under."""
    return scope["path"].removeprefix(scope.get("root_path", ""))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class TrustedHosts:
    """Refuses requests whose Host header is a name that this server does not answer to.

    A local bind answers to loopback names and addresses. A remote bind also answers to any literal address and to the
    machine's own name: DNS rebinding needs a name, so an address in the Host header was typed by a person.
    """

    def __init__(self, app: ASGIApp, *, remote: bool = False, names: Iterable[str] = ()) -> None:
        self.app = app
        self.remote = remote
        self.names = {name.lower().rstrip(".") for name in names}
        if remote:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    def allows(self, header: str) -> bool:
        """Whether a Host header's value may be answered."""
        name = host_name(header)
        if not name:
            return False
        return is_loopback(name) or name in self.names or (self.remote and _is_address(name))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if len(headers.getlist("host")) != 1 or not self.allows(headers["host"]):
                await refuse(
                    scope,
                    receive,
                    send,
                    400,
                    "The page does not answer to this address. Start it with --allow-host NAME to allow it.",
                )
                return
        await self.app(scope, receive, send)


class SameOrigin:
    """Refuses requests that another web site sends through the person's browser.

    Writing methods need an Origin equal to the Host, or none at all (curl, scripts). Reads are refused when the browser
    says that they come from another site, so that nothing can be embedded or asked for from elsewhere; a link of
    another site opens the page itself and no other address.
    names: hosts that a reverse proxy shows the page under; it may name one of them in X-Forwarded-Host, which no site
    can add to a request of the person's browser.
    """

    def __init__(self, app: ASGIApp, *, names: Iterable[str] = ()) -> None:
        self.app = app
        self._names = {name.lower().rstrip(".") for name in names}

    def allows(self, method: str, path: str, headers: Headers) -> bool:
        """Whether a request with this method and these headers comes from our own page or from no page at all."""
        site = headers.get("sec-fetch-site", "none")
        foreign = site not in ("same-origin", "none")
        if method in SAFE_METHODS:
            return not foreign or (headers.get("sec-fetch-mode") == "navigate" and path in ("", "/"))
        origin = headers.get("origin")
        if origin is not None:
            try:
                parts = urlsplit(origin)
            except ValueError:
                return False
            return parts.scheme in ("http", "https") and parts.netloc.lower() in self._hosts(headers)
        return not foreign

    def _hosts(self, headers: Headers) -> set[str]:
        """Host, with port, of the page as the browser may see it."""
        forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip().lower()
        return {headers.get("host", "").lower()} | ({forwarded} if host_name(forwarded) in self._names else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A websocket is a GET that browsers send cross-site without asking: it is judged as a write.
        if scope["type"] in ("http", "websocket"):
            method = scope["method"] if scope["type"] == "http" else "POST"
            if not self.allows(method, own_path(scope), Headers(scope=scope)):
                await refuse(scope, receive, send, 403, "A page of another web site may not use this one.")
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """Refuses request bodies above a size: what is sent to the page is settings, captions and names.

    roomy: paths whose route bounds and stores its own body piece by piece.
    """

    LARGEST_BYTES = 16_000_000

    def __init__(self, app: ASGIApp, *, roomy: Iterable[str] = ()) -> None:
        self.app = app
        self._roomy = frozenset(roomy)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or own_path(scope) in self._roomy:
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > self.LARGEST_BYTES:
            await refuse(scope, receive, send, 413, "This is too large for the page (over 16 MB).")
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            # A body without a length: the reader sees it end as if the connection was lost.
            return message if received <= self.LARGEST_BYTES else {"type": "http.disconnect"}

        await self.app(scope, counted, send)


class NoUploads:
    """Refuses Gradio's own uploads: no field of the page takes a file that way, and their number has no bound."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _UPLOADS.search(scope["path"]):
            await refuse(scope, receive, send, 403, "The page takes no file uploads.")
            return
        await self.app(scope, receive, send)


class Hardening:
    """Adds the headers that keep every answer on this machine, unframed and read as what it says it is."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
                headers.setdefault("X-Content-Type-Options", "nosniff")
                headers.setdefault("X-Frame-Options", "DENY")
                headers.setdefault("Referrer-Policy", "no-referrer")
                headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
                # Gradio lets any loopback origin read its answers; our page needs no other origin at all.
                for name in ("access-control-allow-origin", "access-control-allow-credentials"):
                    if name in headers:
                        del headers[name]
            await send(message)

        await self.app(scope, receive, send_hardened if scope["type"] == "http" else send)


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, text: str, headers: dict[str, str] | None = None
) -> None:
    """Answer a request, or close a websocket, with one sentence."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text})
        return
    await PlainTextResponse(text, status, headers)(scope, receive, send)
