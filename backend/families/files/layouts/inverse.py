"""Turns a layout round: from diffusers' names to those of the project's own files, by the same rules.

`Layout.pieces` reads a file; what is made here is only used where that reads it back as it was (`inverted`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from backend.families.files.layouts.rules import Layout, Piece, Rule, Shape, Turn, highest_numbers

_GROUP = re.compile(r"\(\?P<(\w+)>")
_DOWN = "down_from_most_"
"""Before the name of a group whose number is counted down."""
_SPECIAL = re.compile(r"[\[\](){}*+?|^$\\]")


@dataclass(frozen=True)
class NativeTensor:
    """One tensor of a file: the rows of `parts` (diffusers' names) one after the other, turned back.

    shape: in the file. turn: what reading does to it, as in `Piece`.
    """

    parts: tuple[str, ...]
    shape: Shape
    turn: Turn = ""


def from_pieces(pieces: Mapping[str, Piece], shapes: Mapping[str, Shape]) -> dict[str, NativeTensor]:
    """The tensors of the file that `pieces` were read from, by its names. shapes: of all its tensors."""
    sources: dict[str, list[tuple[int, str, Piece]]] = defaultdict(list)
    for name, piece in pieces.items():
        sources[piece.source].append((piece.start or 0, name, piece))
    return {
        source: NativeTensor(tuple(name for _, name, _ in sorted(rows)), shapes[source], rows[0][2].turn)
        for source, rows in sources.items()
    }


def inverted(layout: Layout, shapes: Mapping[str, Shape], prefix: str | None = None) -> dict[str, NativeTensor]:
    """The tensors of a file in `layout` that hold a part with tensors of `shapes` (diffusers' names), by its names.

    prefix: that the part has there, one of the layout's; None for its first. ValueError where the rules can't be turned
    round, or the file would not be read as what was written.
    """
    prefix = layout.prefixes[0] if prefix is None else prefix
    header = {prefix + name: shape for name, shape in _natives(layout, shapes).items()}
    pieces = layout.pieces({name: ("F32", shape) for name, shape in header.items()}, prefix)
    read = {name: piece.shape for name, piece in pieces.items()}
    wrong = sorted(name for name in read.keys() | shapes.keys() if read.get(name) != shapes.get(name))
    if wrong:
        raise ValueError(f"{layout.title} would not hold {', '.join(wrong[:3])}")
    if layout.prefix_in(header) != prefix:
        raise ValueError(f"it would not be known as {layout.title}")
    # how rows are turned is known from reading, whose rules may ask for the last block
    return from_pieces(pieces, header)


def _natives(layout: Layout, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """The file's tensors and their shapes by name, behind no prefix."""
    targets = [target for rule in layout.rules for target in _targets(rule)]
    fitting = {
        name: [(target, match) for target in targets if (match := target.regex.fullmatch(name)) is not None]
        for name in shapes
    }
    lacking = [name for name, each in fitting.items() if not each]
    if lacking:
        raise ValueError(f"no rule of {layout.title} writes {lacking[0]}")
    # what is counted down from the highest number is counted up to it again
    most = highest_numbers(match for each in fitting.values() for _, match in each)
    candidates = {
        name: [(target.native.format(**_numbered(match, most)), target.rule) for target, match in each]
        for name, each in fitting.items()
    }
    sure = {each[0][0] for each in candidates.values() if len(each) == 1}
    rows: dict[str, dict[str, Rule]] = defaultdict(dict)
    for name, each in candidates.items():
        native, rule = each[0] if len(each) == 1 else _only(each, sure)
        rows[native][name] = rule
    return {native: _shape(native, parts, shapes) for native, parts in rows.items()}


def _numbered(match: re.Match[str], most: Mapping[str, int]) -> dict[str, str]:
    groups = match.groupdict()
    turned = {
        name.removeprefix(_DOWN): str(most[name] - int(groups[name])) for name in groups if name.startswith(_DOWN)
    }
    return {**groups, **turned}


@dataclass(frozen=True)
class _Target:
    regex: re.Pattern[str]
    native: str
    rule: Rule


def _targets(rule: Rule) -> Iterator[_Target]:
    """The targets of a rule as expressions for names, each with the template of the name in the file."""
    template, groups = _template(rule.pattern)
    if template is None or rule.last:
        return
    for target in rule.targets:
        text = re.escape(target)
        for name, inner in groups.items():
            text = text.replace(re.escape(f"{{{name}}}"), f"(?P<{name}>{inner})", 1)
            text = text.replace(re.escape(f"{{{name}}}"), f"(?P={name})")
            text = text.replace(re.escape(f"{{~{name}}}"), f"(?P<{_DOWN}{name}>{inner})", 1)
        # a group that the target does not name can't be told from it
        if all(f"{{{name}}}" in target or f"{{~{name}}}" in target for name in groups):
            yield _Target(re.compile(text), template, rule)


def _template(pattern: str) -> tuple[str | None, dict[str, str]]:
    """A pattern as a template with its named groups in braces, and the expression of each group; None where it has more
    than those."""
    plain, groups, at = "", {}, 0
    while at < len(pattern):
        group = _GROUP.match(pattern, at)
        if group is None:
            step = 2 if pattern[at] == "\\" else 1
            plain += pattern[at : at + step]
            at += step
            continue
        end = _closing(pattern, at)
        groups[group[1]] = pattern[group.end() : end]
        plain += f"\0{group[1]}\0"
        at = end + 1
    plain = plain.replace(r"\.", ".")
    if _SPECIAL.search(plain):
        return None, {}
    return re.sub("\0(\\w+)\0", r"{\1}", plain), groups


def _closing(pattern: str, opened: int) -> int:
    """Where the bracket that opens at `opened` closes."""
    depth, at = 0, opened
    while True:
        if pattern[at] == "\\":
            at += 1
        else:
            depth += {"(": 1, ")": -1}.get(pattern[at], 0)
        if not depth:
            return at
        at += 1


def _only(candidates: Sequence[tuple[str, Rule]], sure: set[str]) -> tuple[str, Rule]:
    """Of several names for one tensor, the first, by number, whose place nothing else takes: an upsampler stands behind
    the attention of its level, or in its place."""
    ordered = sorted(candidates, key=lambda each: each[0])
    steps = [native.split(".") for native, _ in ordered]
    same = next(at for at in range(len(steps[0])) if len({each[at] for each in steps}) > 1)
    for each, candidate in zip(steps, ordered, strict=True):
        place = ".".join(each[: same + 1]) + "."
        if not any(name.startswith(place) for name in sure):
            return candidate
    raise ValueError(f"{' and '.join(native for native, _ in ordered)} are both taken")


def _shape(native: str, parts: Mapping[str, Rule], shapes: Mapping[str, Shape]) -> Shape:
    """The shape of the tensor `native` of the file, of the rows of `parts`."""
    rule = next(iter(parts.values()))
    if len(rule.targets) != len(parts):
        raise ValueError(f"{native} needs {len(rule.targets)} tensors, and there are {', '.join(parts)}")
    first = shapes[next(iter(parts))]
    if len(parts) > 1:
        return (sum(shapes[name][0] for name in parts), *first[1:])
    if len(first) != 2:
        # a bias by the rule of its weight
        return first
    return {"matrix": (*first, 1, 1), "transpose": first[::-1]}.get(rule.turn, first)
