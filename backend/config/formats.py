"""Decodes a file of settings, whoever wrote it, into plain tables: TOML, JSON, YAML, a command line, a LoRA's metadata.

No torch. One limit of size holds for all of them, and every time grows with the size and no faster.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from backend.base.problems import Problem
from backend.config.lines import key_lines
from backend.config.reading import LARGEST_BYTES, TOO_DEEP, is_too_deep, read_bytes

Form = Literal["toml", "json", "yaml", "command", "safetensors"]

_HEADER_BYTES = 100_000_000
"""The longest header of a safetensors file, as in the safetensors package."""
_BLANKS = b"\xef\xbb\xbf \t\r\n"
_COMMAND = re.compile(
    r"^(?:\w+=\S+\s+)*[^#\n\"'=]*\b(accelerate(\.exe)?\s+launch|python[\w.]*(\.exe)?|deepspeed|torchrun)\b[^\n]*\.pyw?\b"
    r"|^\s*--[A-Za-z_]\w*[\s=]",
    re.MULTILINE | re.IGNORECASE,
)
_YAML = re.compile(r"^(---\s*$|(- )?[\w.-]+:(\s|$))", re.MULTILINE)
_ASSIGNMENT = re.compile(r"^\s*[\w.\"'-]+\s*=|^\s*\[", re.MULTILINE)
_JSON_KEY = re.compile(r'"((?:[^"\\\n]|\\.)*)"[ \t]*(:)?|\n|[\[\]{},]')


@dataclass(frozen=True)
class Document:
    """A file that was decoded. data: its tables, a list, or for a command its text. lines: from 1, by path.

    problems: why data is None, or what could not be read of it.
    """

    form: Form
    data: Any
    text: str = ""
    lines: dict[str, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def read_document(path: Path) -> Document:
    """Read and decode a file; whatever is wrong with it is in `problems`, never an exception."""
    try:
        if path.is_dir():
            return _failed(f"{path} is a folder", "Choose a file in it")
        if not path.is_file():
            return _failed(f"there is no file {path}", "Check the name and the folder")
        with path.open("rb") as file:
            start = file.read(9)
            if _is_safetensors(start):
                return _metadata(start[8:] + file.read(struct.unpack("<Q", start[:8])[0] - 1))
            if path.stat().st_size > LARGEST_BYTES:
                return _failed(too_large(str(path)), "Choose a file of settings, not a model, a picture or a log")
            return decode(start + file.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return _failed(f"{path} can't be read: {reason}", "Check that you have permission to read it")


def too_large(name: str) -> str:
    """What is wrong with a file that is over the limit of size."""
    return f"{name} is too large for settings, over {LARGEST_BYTES // 1_000_000} MB"


def decode(raw: bytes) -> Document:
    """The same for the bytes of a file."""
    if _is_safetensors(raw):
        return _metadata(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    if len(raw) > LARGEST_BYTES:
        return _failed(too_large("the file"), "Choose a file of settings, not a model, a picture or a log")
    start = raw.lstrip(_BLANKS)[:1]
    if start == b"{" or (start == b"[" and _is_json(raw)):
        return _json(raw)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _toml(raw)
    if _COMMAND.search(text):
        written = _toml(raw)
        return Document("command", text, text) if written.problems else written
    if _YAML.search(text) and not _ASSIGNMENT.search(text):
        return _yaml(text)
    return _toml(raw)


def _is_safetensors(raw: bytes) -> bool:
    return len(raw) > 8 and raw[8:9] == b"{" and 2 <= struct.unpack("<Q", raw[:8])[0] <= _HEADER_BYTES


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _metadata(header: bytes) -> Document:
    try:
        table = json.loads(header)
    except (ValueError, RecursionError):
        remedy = "Download or copy it again"
        return Document("safetensors", None, problems=(Problem(None, None, "the model file is damaged", remedy),))
    metadata = table.get("__metadata__")
    return Document("safetensors", metadata if isinstance(metadata, dict) else {})


def _json(raw: bytes) -> Document:
    try:
        text = raw.decode("utf-8-sig")
        data = json.loads(_without_last_commas(text))
        if is_too_deep(data):
            raise RecursionError
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return _failed("the file is not UTF-8 text", "Open it in an editor and save it again as UTF-8", line, "json")
    except RecursionError:
        return _failed(TOO_DEEP, "Choose another file", form="json")
    except json.JSONDecodeError as error:
        remedy = "Correct this line, or save the file again in the program that wrote it"
        return _failed(f"this is not valid JSON: {error.msg}, at column {error.colno}", remedy, error.lineno, "json")
    except ValueError as error:
        return _failed(f"this can't be read: {error}", "Look for a number that is too long", form="json")
    return Document("json", data, text, dict(_json_lines(text)))


def _without_last_commas(text: str) -> str:
    """The text without a comma behind the last item of a table, which some editors leave; each a blank instead."""
    out, comma = list(text), -1
    for match in re.finditer(r'"(?:[^"\\\n]|\\.)*"|[^\s"]', text):
        word = match.group()
        if comma >= 0 and word in "}]":
            out[comma] = " "
        comma = match.start() if word == "," and comma < 0 else -1
    return "".join(out)


def _json_lines(text: str) -> Iterator[tuple[str, int]]:
    """Path and line of each key of a JSON text, paths as `backend.config.lines` writes them."""
    stack: list[list[Any]] = []  # of each open bracket: path of what it holds, place in a list (-1 in a table)
    number, path = 1, ""
    for match in _JSON_KEY.finditer(text):
        word = match.group()
        if word == "\n":
            number += 1
        elif word in "[{":
            if stack and stack[-1][1] >= 0:
                path = f"{stack[-1][0]}[{stack[-1][1]}]"
            stack.append([path, 0 if word == "[" else -1])
        elif word in "]}":
            path = stack.pop()[0] if stack else ""
        elif word == ",":
            if stack and stack[-1][1] >= 0:
                stack[-1][1] += 1
        elif match.group(2) and stack:
            around = stack[-1][0]
            path = f"{around}.{match.group(1)}" if around else match.group(1)
            yield path, number


def _yaml(text: str) -> Document:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return _failed("the file holds no settings", "Choose another file", form="yaml")
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text, Loader=type(loader))):
            remedy = "Write each value where it is used"
            return _failed(
                "the file repeats parts of itself with * names, which are not supported", remedy, form="yaml"
            )
        data = loader.construct_document(node)
        if is_too_deep(data):
            return _failed(TOO_DEEP, "Choose another file", form="yaml")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        message = error.problem or error.context or "it can't be parsed"
        return _failed(
            f"this is not valid YAML: {message}", "Correct this line; spaces at its start are important", line, "yaml"
        )
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        return _failed("the file is YAML that can't be read", "Choose another file", form="yaml")
    finally:
        loader.dispose()
    return Document("yaml", data, text, dict(_yaml_lines(node, "")))


def _yaml_lines(node: yaml.Node, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            yield inner, key.start_mark.line + 1
            yield from _yaml_lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield f"{path}[{index}]", value.start_mark.line + 1
            yield from _yaml_lines(value, f"{path}[{index}]")


def _toml(raw: bytes) -> Document:
    read = read_bytes(raw)
    if read.data is None or read.holes or any(p.severity == "error" for p in read.problems):
        problems = read.problems or [Problem(None, None, "the file is empty", "Choose another file")]
        return Document("toml", read.data, read.text or "", problems=tuple(problems))
    return Document("toml", read.data, read.text or "", key_lines(read.text or ""))


def _failed(text: str, remedy: str, line: int | None = None, form: Form = "toml") -> Document:
    return Document(form, None, problems=(Problem(None, line, text, remedy),))
