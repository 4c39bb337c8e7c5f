"""docs/families.md from proofs.toml: `python -m tests.tiny.families_page`."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

from backend.base.files import write_atomic
from backend.families.table import FAMILIES

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "families.md"
_REFUSED = "no: "

_HEAD = """# Families

Made by `python -m tests.tiny.families_page` from `tests/families/proofs.toml`; do not edit by hand.

A number is a test that fails if the family does not do it; the list is below. "no" means that the page refuses it, with
the reason. An empty cell is not proven by a test of that family. All run on small random models of the real classes in
the real layout; runs on a GPU are in [benchmarks.md](benchmarks.md).
"""


def proofs() -> dict[str, dict[str, str]]:
    """proofs.toml as it stands: the table `features`, and a table a family."""
    return tomllib.loads((TESTS / "families" / "proofs.toml").read_text(encoding="utf-8"))


def is_test(name: str, family: str) -> bool:
    """Whether `name` (file::function) is a test without a GPU, in a file that knows the family."""
    path, _, function = name.partition("::")
    file = TESTS / path
    if not file.is_file():
        return False
    text = file.read_text(encoding="utf-8")
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == function]
    marks = [ast.unparse(mark) for node in functions for mark in node.decorator_list]
    known = family == "flux" or family.removeprefix("flux_") in f"{path}\n{text.lower()}"
    return bool(functions) and known and not any("mark.gpu" in mark for mark in marks)


def render() -> str:
    """The page: a table of features by family, and the tests behind its numbers."""
    proven = proofs()
    features = proven["features"]
    numbers: dict[str, int] = {}
    lines = []
    for feature, title in features.items():
        cells = []
        for family in FAMILIES:
            cell = proven.get(family, {}).get(feature, "")
            if cell and not cell.startswith(_REFUSED):
                cell = str(numbers.setdefault(cell, len(numbers) + 1))
            cells.append(cell.replace(_REFUSED, "no: "))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    titles = [family.title for family in FAMILIES.values()]
    table = [f"| | {' | '.join(titles)} |", "|---|" + "---|" * len(titles), *lines]
    listed = [f"{number}. `tests/{name}`" for name, number in numbers.items()]
    return "\n".join([_HEAD, *table, "", "## The tests", "", *listed, ""])


if __name__ == "__main__":
    write_atomic(PAGE, render())
    sys.stdout.write(f"wrote {PAGE}\n")
