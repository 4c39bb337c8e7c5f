"""Finds the sentences of the server that the page shows: strings and f-strings in the modules that make them.

An f-string becomes a text with numbers in place of its values, by which the page recognizes it: ``Stopped at {1}.``
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

# Two words, or one that begins as a sentence does.
_WORDS = re.compile(r"[A-Za-z'’]{2,}[,:;]? [\w({“]|\bC(?:\+\+)? [a-z]|^[A-Z][a-z]+[ .]?$|^an? [a-z]+$")
_CODE = re.compile(
    r"^[/.#<]|^--|\\|^\w+=|[{}]$|^[a-z_]+\.[a-z_]+$|%s|%d|[a-z]\([a-z]*\)|^SELECT|^\W*$|_{2}"
    r"|^(?!sub-)[a-z]+-[a-z]+ |max-age|filename|^(?:point|bold) [a-z]+$"
    r"|^(?:apt|dnf|zypper|pip|python3) [a-z]+|^not (?:needed|offered)$"
)
# {name}, {name:g}, and {{name}} of an f-string that makes a text to format.
_VALUE = re.compile(r"\{?\{[a-z_]\w*(?::[^{}]*)?\}\}?")
# What only programmers and logs see.
_UNSEEN = frozenset(
    (
        "getLogger",
        "debug",
        "info",
        "warning",
        "exception",
        "compile",
        "TypeVar",
        "Path",
        "match",
        "sub",
        "fullmatch",
        "KeyError",
        "AssertionError",
        "search",
        "split",
        "join",
        "isinstance",
        "getattr",
        "slot",
        "system",
        "startswith",
        "endswith",
        "survived",
        "names",
        "removeprefix",
    )
)
# What is given to these is compared with other texts.
_MATCHING = frozenset(
    ("compile", "match", "search", "fullmatch", "split", "sub", "startswith", "endswith", "removeprefix")
)
# Their words, help included, are for a terminal.
_TERMINAL = frozenset(("ArgumentParser", "add_argument", "add_parser", "add_subparsers"))
# Tables of a reason with the names of other programs behind it: only the reason is shown.
_BY_REASON = frozenset(("by_name", "_by_name"))


def template(node: ast.expr) -> str | None:
    """The text of a string or an f-string; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _numbered(node.value)
    if isinstance(node, ast.JoinedStr):
        return _numbered("".join(str(p.value) if isinstance(p, ast.Constant) else "{value}" for p in node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        if left is not None and right is not None and not re.search(r"\{\d", left + right):
            return left + right
    return None


def _numbered(text: str) -> str:
    """Numbers in place of the names in braces: those of an f-string, and of a text that is formatted later."""
    numbers = itertools.count(1)
    return _VALUE.sub(lambda _: f"{{{next(numbers)}}}", text)


def sentences_of(path: Path) -> Iterator[tuple[str, int]]:
    """(text, line) of each sentence in a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = _handed_on(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            hidden.add(node.value)  # a docstring
        elif isinstance(node, ast.Call) and _name(node.func) in _UNSEEN:
            hidden.update(each for argument in node.args for each in ast.walk(argument))
        elif isinstance(node, ast.Call) and _name(node.func) in _TERMINAL:
            hidden.update(ast.walk(node))
        elif isinstance(node, ast.Call) and _name(node.func) in _BY_REASON:
            tables = [each for each in node.args if isinstance(each, ast.Dict)]
            hidden.update(each for table in tables for names in table.values for each in ast.walk(names))
        elif isinstance(node, ast.Compare):
            hidden.update(each for side in (node.left, *node.comparators) for each in _constants(side))
        elif isinstance(node, ast.Call) and _name(node.func) in ("Note", "_note") and node.args:
            hidden.update(ast.walk(node.args[0]))  # a name of the other program
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and "NEUTRAL" in _targets(node):
            hidden.update(ast.walk(node))  # values of other programs
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            hidden.update((node.left, node.right))  # parts of a path
        elif isinstance(node, (ast.JoinedStr, ast.BinOp)) and template(node) is not None:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
            hidden.update(each for each in parts if not isinstance(each, ast.FormattedValue))
        elif isinstance(node, ast.Assert):
            hidden.update(ast.walk(node))
        elif isinstance(node, (ast.Subscript,)):
            hidden.update(ast.walk(node.slice))
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or node in hidden:
            continue
        text = (template(node) or "").strip()
        letters = re.sub(r"\{\d+\}", "", text)
        if text and _WORDS.search(text) and len(re.sub(r"[^A-Za-z]", "", letters)) >= 5 and not _CODE.search(letters):
            yield text, node.lineno


def _handed_on(tree: ast.Module) -> set[ast.AST]:
    """What is matched by way of a name: the argument of a function that only compiles it, a constant only compared."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    hidden: set[ast.AST] = set()
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef):
            continue
        matched = _only_matched(function)
        places = [at for at, argument in enumerate(function.args.args) if argument.arg in matched]
        for call in calls:
            if _name(call.func) == function.name:
                arguments = [call.args[at] for at in places if at < len(call.args)]
                arguments += [each.value for each in call.keywords if each.arg in matched]
                hidden.update(each for node in arguments for each in ast.walk(node))
    matched = _only_matched(tree)
    for node in tree.body:
        if isinstance(node, ast.Assign) and all(
            isinstance(each, ast.Name) and each.id in matched for each in node.targets
        ):
            hidden.update(ast.walk(node.value))
    return hidden


def _only_matched(scope: ast.AST) -> set[str]:
    """Names that are read in `scope`, and only to match other texts."""
    read = [node for node in ast.walk(scope) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call) and _name(node.func) in _MATCHING]
    matched = {each for call in calls for argument in call.args for each in ast.walk(argument)}
    return {node.id for node in read} - {node.id for node in read if node not in matched}


def _constants(node: ast.expr) -> list[ast.expr]:
    """A constant, or those in a list of them: what is compared is no text of ours."""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else [node]
    return [each for each in parts if isinstance(each, ast.Constant)]


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
