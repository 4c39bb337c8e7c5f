"""Asks for the page's password on a remote bind, and slows down guessing."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gui.security import refuse

SHORTEST = 8
_FEWEST_DIFFERENT = 4


def password_fault(password: str) -> str:
    """Why a password can't guard a page that other machines reach, with the remedy; empty when it can."""
    if len(password) < SHORTEST:
        return f"The password has {len(password)} characters. Choose one of at least {SHORTEST}."
    if len(set(password)) < _FEWEST_DIFFERENT:
        return f"The password repeats the same characters. Use at least {_FEWEST_DIFFERENT} different ones."
    return ""


@dataclass
class _Guesses:
    """What one address has tried; times are seconds of the clock."""

    count: int = 0
    last: float = 0.0
    until: float = 0.0
    seen: set[bytes] = field(default_factory=set)
    """Digests of its wrong passwords, so that repeating one is not a new guess."""


class Brake:
    """A delay for each address that grows with its wrong passwords: none for the first few, then 1 s, 2 s, 4 s ...

    A browser tab that keeps sending an old password repeats one guess, and is not slowed down.
    """

    FREE = 5
    LONGEST_S = 300.0
    _FORGOTTEN_S = 3600.0
    _MOST_ADDRESSES = 10_000
    _MOST_SEEN = 100

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address: dict[str, _Guesses] = {}

    def wait_s(self, address: str) -> float:
        """Seconds until this address may try again; 0 when it may now."""
        guesses = self._by_address.get(address)
        return 0.0 if guesses is None else max(0.0, guesses.until - self._clock())

    def failed(self, address: str, password: bytes) -> None:
        """Count a wrong password."""
        now = self._clock()
        guesses = self._by_address.pop(address, None)
        if guesses is None or now - guesses.last > self._FORGOTTEN_S:
            guesses = _Guesses()
        # The one that tried last goes to the end, so that the first in the table is the one to forget.
        self._by_address[address] = guesses
        if len(self._by_address) > self._MOST_ADDRESSES:
            self._by_address.pop(next(iter(self._by_address)))
        guesses.last = now
        mark = hashlib.sha256(password).digest()
        if mark in guesses.seen:
            return
        if len(guesses.seen) < self._MOST_SEEN:
            guesses.seen.add(mark)
        guesses.count += 1
        if guesses.count >= self.FREE:
            guesses.until = now + min(self.LONGEST_S, 2.0 ** min(30, guesses.count - self.FREE))

    def passed(self, address: str) -> None:
        """Forget the guesses of an address that knows the password."""
        self._by_address.pop(address, None)


def address_of(scope: Scope) -> str:
    """The address that a request comes from; of IPv6 the network, since one machine has all addresses in it."""
    client = scope.get("client")
    try:
        address = ipaddress.ip_address((client or ("",))[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Password:
    """HTTP Basic authentication for a page that other machines can reach. Any user name, one password."""

    def __init__(self, app: ASGIApp, *, password: str, brake: Brake | None = None) -> None:
        self.app = app
        self._password = password.encode()
        self._brake = brake or Brake()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        guess, address = _password_of(Headers(scope=scope).get("authorization")), address_of(scope)
        # While it waits, an address learns nothing, not even that a guess was right.
        wait = self._brake.wait_s(address) if guess is not None else 0.0
        if wait > 0:
            after = {"Retry-After": str(math.ceil(wait))}
            text = f"Too many wrong passwords from this address. Try again in {math.ceil(wait)} s."
            await refuse(scope, receive, send, 429, text, after)
        elif guess is not None and hmac.compare_digest(guess, self._password):
            self._brake.passed(address)
            await self.app(scope, receive, send)
        else:
            if guess is not None:
                self._brake.failed(address, guess)
            challenge = {"WWW-Authenticate": 'Basic realm="Monotile", charset="UTF-8"'}
            await refuse(scope, receive, send, 401, "This page needs its password.", challenge)


def _password_of(header: str | None) -> bytes | None:
    """The password in an Authorization header; None where it carries none."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return None
