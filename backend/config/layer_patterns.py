"""Resolves what is trained by pattern: rank, alpha and learning rate of single layers, and parts trained in full."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from backend.base.errors import Refused

if TYPE_CHECKING:
    from backend.config.sections.network import LayerRow, NetworkSection
    from backend.families.spec import FamilyFacts

SETTING = "network.layer_settings"

MAGNITUDE = "dora_scale"
"""What LyCORIS calls the trained row lengths of a DoRA in files, and we in states."""

Kind = Literal["lora", "dora", "lokr", "loha"]


FACTORED: tuple[Kind, ...] = ("lokr", "loha")
"""Kinds whose change is a product of small factors, and not A and B."""


def factor_shapes(
    kind: Kind, inner: int, outer: int, rank: int, factor: int | None = None
) -> dict[str, tuple[int, int]]:
    """Trained tensors of a layer with `inner` in features and `outer` out features, by name.

    factor: of LoKr, the most rows and columns of the small factor; None makes both factors as square as they can be.
    """
    if kind in ("lora", "dora"):
        pair = {"lora_A.weight": (rank, inner), "lora_B.weight": (outer, rank)}
        return pair if kind == "lora" else {**pair, MAGNITUDE: (outer, 1)}
    if kind == "loha":
        return {f"hada_w{n}_{half}": (outer, rank) if half == "a" else (rank, inner) for n in (1, 2) for half in "ab"}
    rows, columns = _small(outer, factor), _small(inner, factor)
    large = outer // rows, inner // columns
    if rank >= max(large) / 2:
        return {"lokr_w1": (rows, columns), "lokr_w2": large}
    return {"lokr_w1": (rows, columns), "lokr_w2_a": (large[0], rank), "lokr_w2_b": (rank, large[1])}


def _small(size: int, factor: int | None) -> int:
    """The largest divisor of `size` up to its root and up to `factor`."""
    most = min(math.isqrt(size), factor or size)
    return next(divisor for divisor in range(most, 0, -1) if size % divisor == 0)


@dataclass(frozen=True)
class Size:
    """What one layer gets. learning_rate: None for that of the run."""

    rank: int
    alpha: float
    learning_rate: float | None = None


def fits(pattern: str, path: str) -> bool:
    """Whether `pattern` (a whole path, its end, or a regular expression over the whole of it) names the layer."""
    return path == pattern or path.endswith(f".{pattern}") or re.fullmatch(pattern, path) is not None


def included(network: NetworkSection, facts: FamilyFacts) -> list[str]:
    """Patterns of the layers to train: the person's or the family's own, and what `conv_dim` adds to them."""
    patterns = network.targets_include or list(facts.default_targets)
    return [*patterns, *(facts.conv_targets if network.conv_dim is not None else ())]


def trained_names(names: Iterable[str], include: Sequence[str] | None, exclude: Sequence[str] | None) -> list[str]:
    """Of the names of a model's parameters, those that are trained in full, in their order.

    A pattern names a parameter, a layer or any module that holds it (``transformer_blocks.0``), as in `fits`. include:
    None for all of them. Refused for a pattern that names nothing (nearest names given), and when nothing is left.
    """
    names = list(names)
    trained = set(names)
    for patterns, setting in ((include, "targets_include"), (exclude, "targets_exclude")):
        if patterns is None:
            continue
        matching = [{name for name in names if _within(pattern, name)} for pattern in patterns]
        for pattern, each in zip(patterns, matching, strict=True):
            if not each:
                ends = list({re.sub(r"^.*?\.\d+\.", "", name).rpartition(".")[0]: None for name in names})
                near = difflib.get_close_matches(pattern, [*filter(None, ends), *names], n=3, cutoff=0.4) or ends[:6]
                text = f"{setting}: {pattern!r} names no part of the model"
                raise Refused(text, f"Similar names: {', '.join(near)}.", f"network.{setting}")
        union = set().union(*matching)
        trained = union if setting == "targets_include" else trained - union
    if not trained:
        text = "The settings leave nothing to train: everything included is excluded"
        raise Refused(text, "Remove a pattern from targets_exclude.", "network.targets_exclude")
    return [name for name in names if name in trained]


def rates_of(names: Sequence[str], rows: Sequence[LayerRow] | None) -> dict[float | None, list[str]]:
    """Learning rate -> the parameters, trained in full, that have it; that of the run (None) first.

    rows: those of ``network.layer_settings``, of which the later count. Refused for a row that names no such parameter.
    """
    by_name: dict[str, float | None] = dict.fromkeys(names)
    for row in rows or ():
        matching = [name for name in names if _within(row.layers, name)]
        if not matching:
            raise _nothing(row.layers, [name.rpartition(".")[0] for name in names])
        by_name |= dict.fromkeys(matching, row.learning_rate)
    rates: dict[float | None, list[str]] = {}
    for name, rate in by_name.items():
        rates.setdefault(rate, []).append(name)
    return dict(sorted(rates.items(), key=lambda one: one[0] is not None))


def _within(pattern: str, name: str) -> bool:
    """Whether `pattern` names a parameter or a module that holds it."""
    steps = name.split(".")
    return any(fits(pattern, ".".join(steps[:count])) for count in range(1, len(steps) + 1))


def of_convolutions(network: NetworkSection) -> Size:
    """What a convolution larger than one pixel gets."""
    rank = network.conv_dim or network.network_dim
    return Size(rank, network.conv_alpha or network.network_alpha * rank / network.network_dim)


def sizes(targets: Sequence[str], network: NetworkSection, large: Collection[str] = ()) -> dict[str, Size]:
    """Every target layer -> its rank, alpha and rate: those of the run, changed by each row that names it, in order.

    large: those of them that are convolutions larger than one pixel, which have a rank and alpha of their own where
    these are set. A rank without alpha keeps alpha / rank as it was. Refused for a row that names no target layer, with
    the nearest names.
    """
    usual, convolution = Size(network.network_dim, network.network_alpha), of_convolutions(network)
    by_path = {path: convolution if path in large else usual for path in targets}
    for row in network.layer_settings or ():
        named = [path for path in targets if fits(row.layers, path)]
        if not named:
            raise _nothing(row.layers, targets)
        for path in named:
            by_path[path] = _changed(by_path[path], row)
    return by_path


def _changed(size: Size, row: LayerRow) -> Size:
    rank = row.dim if row.dim is not None else size.rank
    alpha = row.alpha if row.alpha is not None else size.alpha * rank / size.rank
    return Size(rank, alpha, row.learning_rate if row.learning_rate is not None else size.learning_rate)


def by_rate(sizes: Mapping[str, Size]) -> dict[float | None, list[str]]:
    """Learning rate -> the layers that have it; that of the run (None) first, if any layer has it."""
    rates: dict[float | None, list[str]] = {}
    for path, size in sizes.items():
        rates.setdefault(size.learning_rate, []).append(path)
    return dict(sorted(rates.items(), key=lambda one: one[0] is not None))


def layers_digest(sizes: Mapping[str, Size], network: NetworkSection) -> str:
    """Digest of the kind, sizes and rates of all layers; "" where nothing is of its own, as in states of before."""
    if not network.layer_settings and network.network_type == "lora" and network.conv_dim is None:
        return ""
    text = f"{network.network_type} {network.lokr_factor}\n" if network.network_type != "lora" else ""
    text += "\n".join(f"{path} {size.rank} {size.alpha} {size.learning_rate}" for path, size in sizes.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _nothing(pattern: str, targets: Sequence[str]) -> Refused:
    ends = list({re.sub(r"^.*?\.\d+\.", "", path): None for path in targets})
    near = difflib.get_close_matches(pattern, [*ends, *targets], n=3, cutoff=0.4) or ends[:6]
    text = f"layer_settings: {pattern!r} matches no layer that is trained"
    return Refused(text, f"Similar names: {', '.join(near)}.", SETTING)
