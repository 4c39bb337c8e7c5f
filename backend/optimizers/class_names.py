"""Finds the class behind a name of a table or a class path, and the arguments that it takes."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from backend.base.errors import Refused
from backend.config.packages import install_remedy, load_problem


def class_named(name: str, known: Mapping[str, str], base: type, setting: str) -> Callable[..., Any]:
    """The class behind a known name or a class path. Refused when there is none, with the nearest names."""
    path = known.get(name) or known.get(name.lower()) or (name if "." in name else "")
    if not path:
        near = difflib.get_close_matches(name.lower(), list(known), n=3)
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        remedy = f"Use one of {', '.join(known)}, or a class path such as package.Class."
        raise Refused(f"{name!r} is unknown.{hint}", remedy, setting)
    module, _, attribute = path.rpartition(".")
    try:
        named = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        root = module.partition(".")[0]
        problem = load_problem(root)
        first = "Check the name and the version" if problem is None else install_remedy(root, problem)
        text = f"{path} can't be imported: {error}" if problem is None else f"{path} needs {root}, which {problem}"
        raise Refused(text, f"{first}; or use one of {', '.join(known)}.", setting) from error
    if not (isinstance(named, type) and issubclass(named, base)):
        remedy = f"Name a class of this kind, or use one of {', '.join(known)}."
        raise Refused(f"{path} is no {base.__name__}", remedy, setting)
    return named


def accepted_arguments(cls: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    """Parameters that a class takes after its first (the tensors or the optimizer); True when it takes any name."""
    parameters = list(inspect.signature(cls).parameters.values())
    named = {
        p.name: p
        for p in parameters[1:]
        if p.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    return named, any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
