"""Finds a layer's name in its project's own layout: the rules of a single file layout in reverse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from backend.families.files.layouts.rules import Layout, Rule, Turn, highest_numbers


@dataclass(frozen=True)
class Native:
    """A layer in another layout: `stem` is its name there, of whose output rows it is part `number` of `shares`.

    turn: what is done to the rows beside cutting (``swap_halves``), as in `Rule`. also: its other names, where a
    layout has one for each build of a model.
    """

    stem: str
    number: int = 0
    shares: tuple[int, ...] = (1,)
    turn: Turn = ""
    also: tuple[str, ...] = ()

    def rows(self, out_features: int) -> tuple[int, int, int]:
        """First row, row behind the last, and number of all rows in the layer `stem`, for a part of `out_features`."""
        unit = out_features // self.shares[self.number]
        start = unit * sum(self.shares[: self.number])
        return start, start + out_features, unit * sum(self.shares)


def native_names(layout: Layout | None, paths: Iterable[str]) -> dict[str, Native]:
    """Module path in diffusers -> its layer in `layout`, for those of `paths` that the layout has."""
    if layout is None:
        return {}
    rules = list(_backwards(layout))
    fitting = {
        path: [(rule, match, *rest) for rule, regex, *rest in rules if (match := regex.fullmatch(f"{path}.weight"))]
        for path in paths
    }
    most = highest_numbers(fits[0][1] for fits in fitting.values() if fits)
    named: dict[str, Native] = {}
    for path, fits in fitting.items():
        for rule, match, theirs, native in fits:
            if not rule.holds(match, most):
                continue
            stem, first = theirs.format(**match.groupdict()).removesuffix(".weight"), named.get(path)
            if first is None:
                named[path] = Native(stem, native.number, native.shares, native.turn)
            elif len(first.shares) == len(native.shares) == 1:
                named[path] = replace(first, also=(*first.also, stem))
            if rule.last:
                break
    return named


def _backwards(layout: Layout) -> Iterator[tuple[Rule, re.Pattern[str], str, Native]]:
    """Each target of each rule: the rule, expression for diffusers' name, template of theirs, part and turn."""
    for rule in layout.rules:
        theirs, groups = _template(rule)
        if theirs is None:
            continue
        for number, target in enumerate(rule.targets):
            parts = re.split(r"\{(\w+)\}", target)
            if "{~" in target or not set(parts[1::2]) <= groups.keys():
                continue
            pieces, seen = [], set()
            for at, part in enumerate(parts):
                if at % 2 == 0:
                    pieces.append(re.escape(part))
                else:
                    pieces.append(f"(?P={part})" if part in seen else f"(?P<{part}>{groups[part]})")
                    seen.add(part)
            if seen >= groups.keys():
                yield rule, re.compile("".join(pieces)), theirs, Native("", number, rule.shares(), rule.turn)


def _template(rule: Rule) -> tuple[str | None, dict[str, str]]:
    """A rule's pattern with its groups as ``{name}``, and their expressions; None where more than groups varies."""
    groups: dict[str, str] = {}
    text, at = "", 0
    pattern = rule.pattern
    while at < len(pattern):
        opened = re.compile(r"\(\?P<(\w+)>").match(pattern, at)
        if opened is None:
            step = 2 if pattern[at] == "\\" else 1
            text += pattern[at : at + step]
            at += step
            continue
        end = _closing(pattern, at)
        groups[opened[1]] = pattern[opened.end() : end]
        text += f"{{{opened[1]}}}"
        at = end + 1
    plain = text.replace(r"\.", "\0")
    if re.search(r"[\\\[\]()*+?|.]", plain):
        return None, {}
    return plain.replace("\0", "."), groups


def _closing(pattern: str, start: int) -> int:
    """Where the parenthesis that opens at `start` closes."""
    depth, at = 0, start
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] in "()":
            depth += 1 if pattern[at] == "(" else -1
            if depth == 0:
                return at
        at += 1
    raise ValueError(f"{pattern} closes nowhere")
