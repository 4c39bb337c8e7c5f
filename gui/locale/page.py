"""Draws the form in a visitor's language: Gradio builds it once, so its description is translated as it is sent."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gui.locale.catalogue import ENGLISH, Catalogue, best_language, catalogues

COOKIE = "monotile-language"
# Gradio writes the form into the page as JSON, in which it escapes what could end the script.
_CONFIG = re.compile(rb"(?<=window\.gradio_config = )\{.*?\}(?=;</script>)", re.DOTALL)
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "'": "\\u0027"}
_TEXTS = ("label", "placeholder", "info")


def language_of(headers: Headers) -> str:
    """The language of a request: the one that was chosen on the page, else the browser's first that there is."""
    try:
        picked = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        picked = None
    available = [ENGLISH, *catalogues()]
    if picked is not None and picked.value in available:
        return picked.value
    return best_language(headers.get("accept-language", ""), available)


class InLanguage:
    """Sends the page in the language of the request. Everything but the page itself passes as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if headers is None or scope["method"] != "GET" or path not in ("", "/"):
            await self.app(scope, receive, send)
            return
        language = language_of(headers)
        # A compressed page could not be translated.
        plain = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
        await self.app({**scope, "headers": plain}, receive, _Rewritten(send, language).send)


class _Rewritten:
    """Collects a page's body and sends it translated."""

    def __init__(self, send: Send, language: str) -> None:
        self._send, self._language = send, language
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Take one message of the answer; what is no page is passed on."""
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            if not kind.startswith("text/html"):
                await self._send(message)
                return
            self._start = message
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            body = translated_page(self._body, self._language)
            headers = MutableHeaders(raw=list(self._start["headers"]))
            headers["content-length"] = str(len(body))
            headers["content-language"] = self._language
            headers.append("vary", "Cookie, Accept-Language")
            await self._send({**self._start, "headers": headers.raw})
            await self._send({"type": "http.response.body", "body": body})


@lru_cache(maxsize=8)
def translated_page(body: bytes, language: str) -> bytes:
    """The page's HTML with `language` as its own, and the texts of Gradio's description of the form translated."""
    catalogue = catalogues().get(language)
    # Gradio's scripts set `lang` to the browser's language; ours read the other attribute, and set it right.
    body = body.replace(b'lang="en"', f'lang="{language}" data-language="{language}"'.encode(), 1)
    if catalogue is None:
        return body

    def rewritten(match: re.Match[bytes]) -> bytes:
        config = json.loads(match.group())
        for component in config.get("components", []):
            _translate(component.get("props", {}), catalogue)
        text = json.dumps(config, ensure_ascii=False, separators=(",", ":"))
        return "".join(_ESCAPED.get(letter, letter) for letter in text).encode()

    return _CONFIG.sub(rewritten, body, count=1)


def _translate(props: dict[str, Any], catalogue: Catalogue) -> None:
    """Replace the texts of one component; values stay as they are."""
    for name in _TEXTS:
        if isinstance(props.get(name), str):
            props[name] = catalogue.translate(props[name])
    if isinstance(props.get("choices"), list):
        # A choice that is called as in TOML keeps that name.
        props["choices"] = [
            [catalogue.translate(name) if name != value or " " in name else name, value]
            for name, value in props["choices"]
        ]
    for tab in props.get("initial_tabs") or []:
        tab["label"] = catalogue.translate(tab["label"])
    note = re.fullmatch(r'<p class="note">(.*)</p>', str(props.get("value", "")), re.DOTALL)
    if note:
        props["value"] = f'<p class="note">{catalogue.translate(note[1])}</p>'
