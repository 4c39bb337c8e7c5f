"""Reads a file's bytes into a TOML table: encodings and syntax, each mistake with its line and the fix."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from backend.base.problems import Problem
from backend.base.redact import redact
from backend.config.lines import first_open_line, split
from backend.config.sniff import binary_kind, text_encoding

LARGEST_BYTES = 2_000_000
TOO_DEEP = "the file is nested too deeply"
_DEEPEST = 30
# tomllib takes time by the square of a key's parts
_LONG_KEY = re.compile(r"^[ \t]*\[{0,2}[ \t]*[\w\"'-]+(?:[ \t]*\.[ \t]*[\w\"'-]+){100}", re.MULTILINE)
_MOST_SYNTAX_ERRORS = 20
_WHERE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KEY_LINE = re.compile(r"""\s*(?:[\w-]+|"[^"]*"|'[^']*')(?:\.[\w-]+)*\s*=""")
_TEXT_WITH_BACKSLASH = re.compile(r'"([^"\n]*\\[^"\n]*)"')
_SECRET = re.compile(r"token|secret|passw|api_?key", re.IGNORECASE)

_FIXES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"[“”„‘’‚«»]"), 'These quotes are typographic; use straight ones: "text"'),
    (re.compile(r"=\s*(True|False)\b"), "Write true or false in small letters"),
    (re.compile(r"=\s*(None|null|nil|NULL)\b"), "TOML has no empty value: remove the line"),
    (re.compile(r"=\s*(#.*)?$"), "Write a value after the =, or remove the line"),
    (re.compile(r"=\s*[+-]?\.\d"), "Write a 0 before the point: 0.5"),
    (re.compile(r"=\s*\d+,\d+\s*(#.*)?$"), "Write a point, not a comma: 1.5"),
    (re.compile(r"=\s*[+-]?\d+\.\s*(#.*)?$"), "Write a digit after the point: 1.0"),
    (re.compile(r"=\s*0\d"), "Remove the leading zeros"),
    (re.compile(r"^\s*[\w-]+\s*:"), "Write = between name and value, not a colon"),
    (re.compile(r"^\s*[\w-]+\s+[\w-]+\s*="), "A name has no spaces; write _ instead"),
    (re.compile(r"=\s*[A-Za-z_/~.\\]"), 'Put the text in quotes: "text"'),
)


class Read(NamedTuple):
    """What came out of a file.

    data: None when nothing could be read. text: what data was parsed from, line for line as in the file, bad lines
    fixed or emptied. holes: lines had to be emptied.
    """

    data: dict[str, Any] | None
    text: str | None
    problems: list[Problem]
    holes: bool = False


def read_file(path: Path) -> Read:
    """Read and parse a TOML file; every reason why it can't be is a Problem, never an exception."""
    try:
        if path.is_dir():
            return _failed(f"{path} is a folder", "Choose a .toml file in it")
        if path.exists() and not path.is_file():
            return _failed(f"{path} is not a file but a pipe, socket or device", "Choose a .toml file")
        if path.stat().st_size > LARGEST_BYTES:
            return _failed(f"{path} is too large for settings", "Choose the .toml file, not a model or a picture")
        raw = path.read_bytes()
    except FileNotFoundError:
        return _failed(f"there is no file {path}", "Check the name and the folder")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return _failed(f"{path} can't be read: {reason}", "Check that you have permission to read it")
    return read_bytes(raw)


def read_bytes(raw: bytes) -> Read:
    """Decode and parse the bytes of a TOML file. UTF-8, with or without a byte order mark."""
    no_text = _no_text(raw)
    if no_text is not None:
        return Read(None, None, [no_text])
    return read_text(raw.decode("utf-8-sig"))


def read_text(text: str) -> Read:
    """Parse TOML text. After a syntax error it continues without the line, so that all mistakes are reported."""
    if _LONG_KEY.search(text):
        return _failed(TOO_DEEP, "Choose another file")
    lines = split(text)
    problems: list[Problem] = []
    holes = False
    for _ in range(_MOST_SYNTAX_ERRORS):
        try:
            # A last line without its end would be reported as the end of the document.
            repaired = "\n".join(lines) + "\n"
            data = tomllib.loads(repaired)
            if is_too_deep(data):
                return Read(None, None, [*problems, Problem(None, None, TOO_DEEP, "Choose another file")], True)
            return Read(data, repaired, problems, holes)
        except tomllib.TOMLDecodeError as error:
            number, problem, instead = _syntax_problem(lines, str(error))
            problems.append(problem)
            if instead is None or lines[number - 1] == instead:
                return Read(None, None, problems, True)
            holes = holes or not instead
            lines[number - 1] = instead
        except (ValueError, RecursionError) as error:
            # What tomllib does not check for: numbers of thousands of digits, brackets thousands deep.
            problems.append(
                Problem(
                    None,
                    None,
                    f"this can't be read: {error}",
                    "Look for a number that is too long, or a bracket that is not closed",
                )
            )
            break
    return Read(None, None, problems, True)


def is_too_deep(data: Any) -> bool:
    """Whether tables lie in each other more often than those of any settings do."""
    level = [data]
    for _ in range(_DEEPEST):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _no_text(raw: bytes) -> Problem | None:
    """Why bytes are no UTF-8 text, in one problem; None when they are."""
    kind = binary_kind(raw)
    if kind:
        return Problem(None, None, f"this is {kind}, not a settings file", "Choose the .toml file")
    try:
        place, byte = raw.decode("utf-8-sig").encode().find(b"\0"), "byte 0x00"
    except UnicodeDecodeError as error:
        place, byte = error.start, f"byte 0x{raw[error.start]:02x}"
    if place < 0:
        return None
    line, encoding = raw.count(b"\n", 0, place) + 1, text_encoding(raw)
    if encoding or raw[place : place + 1] != b"\0":
        text = f"the file is not UTF-8 text: {byte}"
        if encoding:
            text = f"the file is not UTF-8 text: {byte} looks like {encoding}"
        return Problem(None, line, text, "Open it in an editor and save it again as UTF-8")
    remedy = "Delete it in an editor, or use another copy of the file: this one may be damaged"
    return Problem(None, line, "there is a zero byte (NUL) in this line, which is not allowed in a text", remedy)


def _failed(text: str, remedy: str) -> Read:
    return Read(None, None, [Problem(None, None, text, remedy)])


def _syntax_problem(lines: list[str], message: str) -> tuple[int, Problem, str | None]:
    """Line, problem, and what to put in the line's place to read on (None when the rest can't be read)."""
    where = _WHERE.search(message)
    message = message[: where.start()] if where else message
    message = message[:1].lower() + message[1:]
    if not where or not where.group(1):
        number = min(first_open_line("\n".join(lines)), len(lines))
        problem = Problem(
            None, number, f"a bracket or quote is not closed: {message}", "Close the bracket or quote that starts here"
        )
        return number, problem, None
    number = int(where.group(1))
    line = lines[number - 1]
    fixed = _TEXT_WITH_BACKSLASH.sub(_single_quotes, line)
    if fixed != line and ("\\" in message or "hex" in message or "unicode" in message.lower() or "\\n" in message):
        remedy = "In \"double quotes\" \\ begins a code; write the text in 'single quotes' or with /"
        if not _SECRET.search(line):
            remedy += f": {redact(fixed.strip())}"
        return (
            number,
            Problem(_path(lines, number), number, "\\ can't stand in a text in double quotes", remedy),
            fixed,
        )
    if message.startswith("cannot overwrite"):
        problem = Problem(
            _path(lines, number), number, "this name is set twice in its section", "Remove one of the lines"
        )
        return number, problem, "" if _KEY_LINE.match(line) else None
    if message.startswith("cannot declare"):
        remedy = "Move the lines of the second into the first; a list of tables is written [[section.name]] throughout"
        return number, Problem(None, number, f"the section {line.strip()} is there twice", remedy), None
    remedy = next(
        (fix for pattern, fix in _FIXES if pattern.search(line)), "Write name = value, or # in front of a comment"
    )
    problem = Problem(_path(lines, number), number, f"this is not TOML: {message}", remedy)
    return number, problem, "" if not re.match(r"\s*[\[\]{}]", line) else None


def _single_quotes(match: re.Match[str]) -> str:
    inner = match.group(1)
    if "'" in inner:
        return '"' + inner.replace("\\", "/") + '"'
    return f"'{inner}'"


def _path(lines: list[str], number: int) -> str | None:
    """Path of the key on a line that does not parse, from the header above it; None where the line has no key."""
    name = re.match(r"\s*([A-Za-z_][\w-]*)\s*=", lines[number - 1])
    if not name:
        return None
    above = [h for line in lines[: number - 1] if (h := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line))]
    if not above:
        return name.group(1)
    bracket, table = above[-1].groups()
    row = f"[{sum(h.group(2) == table for h in above) - 1}]" if bracket == "[[" else ""
    return f"{table}{row}.{name.group(1)}"
