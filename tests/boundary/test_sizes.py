"""No function over 60 lines and no file over 400: what grows beyond that usually holds two ideas."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.boundary.floors import ROOT, project_sources

LONGEST_FUNCTION = 60
LONGEST_FILE = 400

# `function name(...) {`, methods, `(...) => {`, `(...) => ({` and `(...) =>`; a block of a statement is no function.
JS_FUNCTION = re.compile(
    r"^(\s*)(?!.*\b(?:if|for|while|switch|catch)\b.*\)\s*\{$)(?:.*(?:\bfunction\b.*|=>\s*\(?|\)\s*)\{|.*=>)$"
)


def scripts() -> dict[str, str]:
    """The page's own scripts."""
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted(_script_files())}


def _script_files() -> Iterator[Path]:
    for ending in ("*.js", "*.ts"):
        yield from (ROOT / "assets" / "js").rglob(ending)


def python_functions(source: str) -> Iterator[tuple[int, int, str]]:
    """(line, length, name) of every function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def script_functions(source: str) -> Iterator[tuple[int, int, str]]:
    """(line, length, first line) of every function, without the functions inside it, each of which counts for itself.

    A function ends before the next line that is indented no deeper than its first one; with the brace that closes it.
    """
    lines = source.splitlines()
    spans = []
    for start, line in enumerate(lines):
        head = JS_FUNCTION.match(line)
        if head:
            after = (at for at in range(start + 1, len(lines)) if re.match(rf"\s{{0,{len(head[1])}}}\S", lines[at]))
            end = next(after, len(lines))
            spans.append((start, end if not line.endswith("=>") else end - 1))
    for start, end in spans:
        inner = {at for a, b in spans if start < a and b <= end for at in range(a, b + 1)}
        yield start + 1, end - start + 1 - len(inner), lines[start].strip()


def sources_of_tests() -> dict[str, str]:
    """The tests with what they share."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in sorted((ROOT / "tests").rglob("*.py"))
    }


def test_no_file_is_too_long() -> None:
    everything = {**project_sources(), **sources_of_tests(), **scripts()}
    assert any(path.startswith("tests/") for path in everything)
    lengths = {path: len(text.splitlines()) for path, text in everything.items()}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_no_python_function_is_too_long() -> None:
    long = [
        f"{path}:{line} {name} has {length} lines"
        for path, text in {**project_sources(), **sources_of_tests()}.items()
        for line, length, name in python_functions(text)
        if length > LONGEST_FUNCTION
    ]
    assert long == []


def test_no_script_function_is_too_long() -> None:
    functions = [(path, *each) for path, text in scripts().items() for each in script_functions(text)]
    assert len(functions) > 200
    assert [each for each in functions if each[2] > LONGEST_FUNCTION] == []


def test_the_lengths_are_seen() -> None:
    body = "\n".join(f"    a{n} = {n}" for n in range(60))
    assert [length for _, length, _ in python_functions(f"def long():\n{body}\n")] == [61]
    inner = "  const b = (x) => {\n    return x;\n  };\n"
    assert [length for _, length, _ in script_functions(f"const a = () => {{\n{inner}  b(1);\n}};\n")] == [3, 3]
    assert [length for _, length, _ in script_functions("const a = (x) =>\n  b(\n    x,\n  );\n")] == [4]
