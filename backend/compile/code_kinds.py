"""Knows which code belongs to which block class, and which is no part of the model, by file and first line."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

_Place = tuple[str, int]

_registered: dict[_Place, tuple[str, CodeType]] = {}
_apart: set[_Place] = set()


def register(forward: Callable[..., Any], kind: str) -> None:
    """Tell that the code of `forward` (function or bound method) is that of block class `kind`."""
    code: CodeType = getattr(forward, "__func__", forward).__code__
    _registered[code.co_filename, code.co_firstlineno] = (kind, code)


def register_apart(function: Callable[..., Any]) -> None:
    """Tell that `function` is no part of the model: its graphs take time, and no plan counts them."""
    _apart.add((function.__code__.co_filename, function.__code__.co_firstlineno))


def kind_of(row: Any) -> str | None:
    """Block class of the code that a row of torch's compile records is about; None where nobody registered it."""
    entry = _registered.get((row.co_filename, row.co_firstlineno))
    return None if entry is None else entry[0]


def is_apart(row: Any) -> bool:
    """Whether such a row is about code that is no part of the model."""
    return (row.co_filename, row.co_firstlineno) in _apart


def codes_of(kind: str) -> list[CodeType]:
    """All code of a block class."""
    return [code for name, code in _registered.values() if name == kind]
