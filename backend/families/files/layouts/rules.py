"""Maps the names of one layout to diffusers' names: rules as data, and their application to a list of names.

Torch-free: a `Piece` describes what a rule does to a tensor (which rows of which tensor, turned how); it is carried out
where the tensor is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Shape = tuple[int, ...]
Turn = Literal["", "matrix", "transpose", "swap_halves"]
"""What is done to a tensor beside cutting it: nothing; a 1x1 convolution (O, I, 1, 1) read as a matrix (O, I); a matrix
transposed; the two halves of its rows exchanged (shift and scale of a modulation)."""

# Written beside a weight by tools that store it in 8 bits: the factor that brings it back.
SCALES = (".scale_weight", ".weight_scale")
# What else such files hold: not part of the model.
QUANT_EXTRAS = (r"(.*\.)?scaled_fp8", r".*\.(scale_input|input_scale|comfy_quant|scale_weight|weight_scale)")


class UnknownNames(ValueError):
    """A file holds names that its layout doesn't know; `names` are they."""

    def __init__(self, names: list[str], title: str) -> None:
        self.names = names
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
        super().__init__(f"holds names that {title} does not have: {', '.join(names[:3])}{rest}")


@dataclass(frozen=True)
class Rule:
    r"""One rename: `pattern` (a regular expression for the whole name) to one or more `targets`.

    Targets are filled with the pattern's named groups, ``{block}``; ``{~level}`` counts a group down from the highest
    number that it has anywhere in the file. With several targets the tensor's rows are cut in the proportions `ratio`.
    last: the group whose number must be that highest one for the rule to hold, as in a last block of another build; a
    rule for all others comes behind it.
    """

    pattern: str
    targets: tuple[str, ...]
    ratio: tuple[int, ...] = ()
    turn: Turn = ""
    last: str = ""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled."""
        return re.compile(self.pattern)

    def shares(self) -> tuple[int, ...]:
        """The proportions of the targets, equal ones where none are given."""
        return self.ratio or (1,) * len(self.targets)

    def holds(self, match: re.Match[str], most: Mapping[str, int]) -> bool:
        """Whether the rule is the one for a name that it fits. most: the highest number of each group."""
        return not self.last or int(match[self.last]) == most[self.last]


@dataclass(frozen=True)
class Piece:
    """Where one tensor of the model comes from: rows `start` to `end` of `source`, turned.

    shape: of the result. dtype: as the file writes it ("BF16"). scale: name of the factor for 8-bit weights, or None.
    """

    source: str
    shape: Shape
    dtype: str
    start: int | None = None
    end: int | None = None
    turn: Turn = ""
    scale: str | None = None


@dataclass(frozen=True)
class Layout:
    """The names of one part in one project's layout.

    markers: names that must be there, behind one of `prefixes` ("" where the part is alone in its file). absent: names
    that must not be. ignored: regular expressions for names that are no part of the model. marks: such names that say
    something of the model, each with the switch of its config that it stands for.
    """

    name: str
    title: str
    markers: tuple[str, ...]
    rules: tuple[Rule, ...]
    prefixes: tuple[str, ...] = ("",)
    absent: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    marks: tuple[tuple[str, str], ...] = ()
    _ignored: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        patterns = (*self.ignored, *dict(self.marks), *QUANT_EXTRAS)
        object.__setattr__(self, "_ignored", re.compile("|".join(f"(?:{p})" for p in patterns)))

    def prefix_in(self, names: Iterable[str]) -> str | None:
        """The prefix behind which the file `names` holds this part; None when it doesn't."""
        known = names if isinstance(names, (set, frozenset, dict)) else set(names)
        for prefix in self.prefixes:
            if all(prefix + m in known for m in self.markers) and not any(prefix + a in known for a in self.absent):
                return prefix
        return None

    def marked(self, names: Collection[str], prefix: str = "") -> dict[str, bool]:
        """The switches of its config that a file's names turn on."""
        return {switch: True for mark, switch in self.marks if prefix + mark in names}

    def pieces(self, tensors: Mapping[str, tuple[str, Shape]], prefix: str = "") -> dict[str, Piece]:
        """Every tensor of the part by diffusers' name, from the file's header (name -> dtype, shape).

        Names outside `prefix` belong to other parts. UnknownNames for names that no rule takes; ValueError where two
        names become one, or rows can't be cut as the rule says.
        """
        inner = {name[len(prefix) :]: held for name, held in tensors.items() if name.startswith(prefix)}
        fitting = {name: self._fitting(name) for name in inner if not self._ignored.fullmatch(name)}
        unknown = [name for name, rules in fitting.items() if not rules]
        if unknown:
            raise UnknownNames(unknown, self.title)
        most = highest_numbers(rules[0][1] for rules in fitting.values())
        result: dict[str, Piece] = {}
        for name, rules in fitting.items():
            rule, match = next((rule, match) for rule, match in rules if rule.holds(match, most))
            dtype, shape = inner[name]
            scale = _scale_of(name, inner)
            values = match.groupdict()
            values |= {f"~{key}": str(most[key] - int(n)) for key, n in values.items() if key in most and n}
            for target, piece in _cut(rule, prefix + name, dtype, shape, scale and prefix + scale):
                filled = _fill(target, values)
                if filled in result:
                    raise ValueError(f"both {result[filled].source} and {prefix + name} would be {filled}")
                result[filled] = piece
        return result

    def _fitting(self, name: str) -> list[tuple[Rule, re.Match[str]]]:
        """The rules that `name` may go by, the last of which always holds."""
        rules = []
        for rule in self.rules:
            match = rule.regex.fullmatch(name)
            if match is not None:
                rules.append((rule, match))
                if not rule.last:
                    break
        return rules


def highest_numbers(matches: Iterable[re.Match[str]]) -> dict[str, int]:
    """The highest number that each named group has anywhere in the file."""
    most: dict[str, int] = {}
    for match in matches:
        for key, value in match.groupdict().items():
            if value is not None and value.isdigit():
                most[key] = max(most.get(key, 0), int(value))
    return most


def _fill(target: str, values: Mapping[str, str | None]) -> str:
    return re.sub(r"\{(~?\w+)\}", lambda m: values[m[1]] or "", target)


def _scale_of(name: str, inner: Mapping[str, object]) -> str | None:
    """The factor that lies beside a weight, if any."""
    if not name.endswith(".weight"):
        return None
    stem = name.removesuffix(".weight")
    return next((stem + ending for ending in SCALES if stem + ending in inner), None)


def _cut(rule: Rule, source: str, dtype: str, shape: Shape, scale: str | None) -> Iterable[tuple[str, Piece]]:
    shares = rule.shares()
    if len(shares) == 1:
        yield rule.targets[0], Piece(source, _turned(shape, rule.turn, source), dtype, turn=rule.turn, scale=scale)
        return
    if not shape or shape[0] % sum(shares):
        raise ValueError(f"{source} {list(shape)} can't be cut in {len(shares)} parts")
    unit, start = shape[0] // sum(shares), 0
    for target, share in zip(rule.targets, shares, strict=True):
        end = start + unit * share
        yield target, Piece(source, (end - start, *shape[1:]), dtype, start, end, rule.turn, scale)
        start = end


def _turned(shape: Shape, turn: Turn, source: str) -> Shape:
    if turn == "matrix" and len(shape) > 2:
        if math.prod(shape[2:]) != 1:
            raise ValueError(f"{source} {list(shape)} is no 1x1 convolution")
        return shape[:2]
    if turn == "transpose":
        if len(shape) != 2:
            raise ValueError(f"{source} {list(shape)} is no matrix")
        return shape[::-1]
    if turn == "swap_halves" and (not shape or shape[0] % 2):
        raise ValueError(f"{source} {list(shape)} has no two halves")
    return shape
