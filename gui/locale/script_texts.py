"""Finds the texts that people see in the page's scripts: strings and template literals, by what they look like.

A template literal becomes a text with numbers in place of its values: ``Undo ${name}`` -> ``Undo {1}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<tick>`)
    |(?P<word>[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*)
    |(?P<number>\d[\w.]*)
    |(?P<mark>=>|[=!]==?|\?\.|\?\?|\|\||&&|\.\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)
REGEX = re.compile(r"/(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
_ESCAPES = {"n": "\n", "t": "\t"}
# Attributes and properties whose values are for the browser or the server.
_KEYS = frozenset(
    (
        "class",
        "id",
        "type",
        "name",
        "role",
        "style",
        "for",
        "href",
        "src",
        "rel",
        "accept",
        "method",
        "headers",
        "font",
        "kind",
        "key",
        "colour",
        "mode",
        "inputmode",
        "weekday",
        "spellcheck",
        "autocomplete",
        "block",
        "behavior",
        "month",
        "day",
        "hour",
        "minute",
        "credentials",
        "cache",
        "tag",
        "scrollLeft",
    )
)
_NOT_SHOWN = re.compile(
    r"(querySelector(All)?|closest|matches|matchMedia|whenPresent|followRoute|getElementById|getJson|postJson|address"
    r"|addEventListener|toggle|contains|add|remove|has|get|set|on|emit|startsWith|endsWith|includes|calling|getItem"
    r"|setItem|createElementNS|createElement|getPropertyValue|colour|press|sendRequest|import|split|replaceAll|replace"
    r"|localeCompare|toLocaleString|setProperty|insertAdjacentElement|dispatchEvent|Event|CustomEvent|Set|RegExp|ask)"
)
# Functions whose plain words are shown; with the places of the arguments that are.
_SHOWN = {"el": range(2, 99), "t": range(1), "setText": range(1, 2), "fill": range(1, 99), "stat": range(1, 2),
          "tile": range(1, 2), "labelled": range(1), "button": range(1, 2), "openDialog": range(1)}  # fmt: skip
_WORDS = re.compile(r"[A-Za-z]{2,}[,:]? +\(?[A-Za-z0-9]|^[A-Z][a-z]|^[^\w\s] [A-Z][a-z]")
_CODE = re.compile(
    r"^[.#\[/]|^--|^[A-Z][a-z]+-[A-Z]|^[\w-]+\.[a-z]+$|^data:|[a-z]=|^\d\S*$|:\w+\(|^Arrow|px|^x1 Enter$|^[a-z]+/|^M\d"
)


class Found(NamedTuple):
    """One text. count: it is the noun of a number (``formatCount``). other: its plural, where the script gives one."""

    text: str
    line: int
    count: bool = False
    other: str = ""


@dataclass
class _Frame:
    """An open bracket: what was called, which argument or key is being read."""

    bracket: str
    called: str = ""
    at: int = 0
    key: str = ""
    words: bool = False
    """Whether it is a table of words: ``const WORDS = {``."""


class _Reader:
    """One pass over a script. `texts` has what it found."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.place = 0
        self.before = ""
        self.frames = [_Frame("")]
        self.texts: list[Found] = []
        self._joined: tuple[str, int] | None = None

    def read(self, until: str = "") -> None:
        """Read to the end, or to the bracket that closes a value within a template."""
        depth = len(self.frames)
        while self.place < len(self.source):
            start = self.place
            match = TOKEN.match(self.source, start)
            assert match is not None
            kind, word = str(match.lastgroup), match.group()
            if kind == "mark" and word == "/" and (self.before in "" or self.before[-1] in "(,=:[!&|?{};>+"):
                regex = REGEX.match(self.source, start)
                self.place, self.before = (regex.end() if regex else start + 1), "/regex"
                continue
            self.place = match.end()
            if kind == "space":
                continue
            if until and word == until and len(self.frames) == depth:
                return
            if kind == "string":
                self._string(_plain(word), start)
                self.before = '"'
            elif kind == "tick":
                self._template(start)
                self.before = "`"
            else:
                if kind == "mark":
                    self._mark(word)
                self.before = word

    def _mark(self, mark: str) -> None:
        frame = self.frames[-1]
        if mark in "([{":
            name = self.before if mark == "(" and re.match(r"[\w$.]+$", self.before) else ""
            words = mark == "{" and self.source[: self.place].endswith("WORDS = {")
            self.frames.append(_Frame(mark, name.rsplit(".", 1)[-1], words=words))
        elif mark in ")]}" and len(self.frames) > 1:
            self.frames.pop()
        elif mark == ",":
            frame.at += 1
            frame.key = ""
        elif mark == ":" and frame.bracket == "{" and not frame.key:
            frame.key = self.before

    def _string(self, text: str, start: int) -> None:
        after = re.compile(r"\s*([^\s])").match(self.source, self.place)
        is_key = bool(after and after[1] == ":" and self.frames[-1].bracket == "{" and self.before in ("{", ","))
        if is_key:
            if re.match(r"[A-Z][a-z]+ ", text):
                self._add(text, start)
            self.before = text
            self.frames[-1].key = text
            self.place = after.end() if after else self.place
            return
        # Literals that are added up are one text.
        rest = re.compile(r"\s*\+\s*\n?\s*(?=[\"'])").match(self.source, self.place)
        held = self._joined or ("", start)
        if rest:
            self._joined = (held[0] + text, held[1])
            self.place = rest.end()
            return
        self._joined = None
        self._consider(held[0] + text, held[1])

    def _template(self, start: int) -> None:
        tagged = self.before == "t" and self.source[start - 1 : start] == "t"
        before, text, number = self.before, "", 0
        while self.source[self.place] != "`":
            if self.source.startswith("${", self.place):
                number += 1
                text += f"{{{number}}}"
                self.place += 2
                self.frames.append(_Frame("${"))
                self.before = "{"
                self.read("}")
                self.frames.pop()
            elif self.source[self.place] == "\\":
                text += _ESCAPES.get(self.source[self.place + 1], self.source[self.place + 1])
                self.place += 2
            else:
                text += self.source[self.place]
                self.place += 1
        self.place += 1
        self.before = before
        if tagged or self._looks_shown(re.sub(r"\{\d+\}", "x1", text), template=True):
            self._add(text, start)

    def _consider(self, text: str, start: int) -> None:
        frame = self.frames[-1]
        if frame.bracket == "(" and frame.called == "formatCount" and frame.at > 0:
            if frame.at == 1:
                self.texts.append(Found(text, self._line(start), True))
            else:
                self.texts[-1] = self.texts[-1]._replace(other=text)
        elif self._looks_shown(text):
            self._add(text, start)

    def _looks_shown(self, text: str, template: bool = False) -> bool:
        frame = self.frames[-1]
        if self.before in ("===", "!==", "case", "from", "import") or self.source.startswith(" in window", self.place):
            return False
        if text == "calm" or _CODE.search(text.strip()):
            return False
        outer = next((each for each in reversed(self.frames) if each.bracket in "({"), frame)
        if outer.bracket == "{" and (outer.key in _KEYS or outer.key.startswith("data-")):
            return False
        if outer.bracket == "(" and _NOT_SHOWN.fullmatch(outer.called):
            return False
        if outer.bracket == "(" and outer.called == "el" and outer.at == 0:
            return False
        if re.search(r"(className|cssText|clipPath|innerHTML|id|aspectRatio|width)\s*=\s*$", self._head()):
            return False
        if re.search(r"[A-Za-z]{2}", text) and (text != text.strip() and not template):
            return True
        if template:
            plain = text.replace("x1", "")
            return bool(re.search(r"[A-Za-z]{2,}", plain) and re.search(r"\S \S", text) and "%;" not in text)
        if _WORDS.search(text):
            return True
        shown = _SHOWN.get(outer.called)
        return bool(
            re.search(r"^[a-z]{2,}$", text)
            and (outer.words or (outer.bracket == "(" and shown is not None and outer.at in shown))
        )

    def _head(self) -> str:
        line = self.source[max(0, self.place - 400) : self.place].rsplit("\n", 1)[-1]
        return line.rsplit('"', 2)[0].rsplit("`", 2)[0]

    def _add(self, text: str, start: int) -> None:
        self.texts.append(Found(text.strip(), self._line(start)))

    def _line(self, place: int) -> int:
        return self.source.count("\n", 0, place) + 1


def _plain(literal: str) -> str:
    """The value of a quoted string."""
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), literal[1:-1])


def texts_of(source: str) -> Iterator[Found]:
    """Every text of one script, in its order."""
    reader = _Reader(source)
    reader.read()
    yield from reader.texts
