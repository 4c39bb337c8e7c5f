"""Scans made up from sizes, for plans that need no files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.dataset.items import DatasetScan, Item, Scan
from backend.families.flux.facts import FACTS
from backend.families.spec import Geometry
from backend.plan.make_plan import make_plan
from backend.plan.plan import Plan

FLUX = Geometry(downscale=8, patch=2, latent_channels=16)
# Ten aspect ratios that land in ten different buckets at 1024 px.
TEN_SIZES = [(1024, 1024), (1152, 896), (896, 1152), (1344, 768), (768, 1344)]
TEN_SIZES += [(1536, 640), (640, 1536), (1216, 832), (832, 1216), (1792, 576)]


def items_of(sizes: Iterable[tuple[int, int]], caption: str = "a picture", repeats: int = 1) -> tuple[Item, ...]:
    """One item a size, numbered."""
    return tuple(
        Item(
            hashlib.sha256(f"{number} {size} {caption}".encode()).hexdigest(),
            Path(f"/pictures/{number:05}.png"),
            *size,
            f"{caption} {number}",
            None,
            repeats,
        )
        for number, size in enumerate(sizes)
    )


def scan_of(
    sizes: Iterable[tuple[int, int]],
    validation: Mapping[str, Iterable[tuple[int, int]]] | None = None,
    repeats: int = 1,
) -> DatasetScan:
    sets = {name: Scan(items_of(sizes_of_set, name)) for name, sizes_of_set in (validation or {}).items()}
    return DatasetScan(Scan(items_of(sizes, repeats=repeats)), sets)


def config(**sections: Mapping[str, Any]) -> Config:
    return Config.model_validate(sections)


def plan_of(scan: DatasetScan, count_tokens: Any = None, **sections: Mapping[str, Any]) -> Plan:
    return make_plan(config(**sections), scan, FLUX, FACTS, count_tokens)


def kinds(plan: Plan) -> set[str]:
    return {finding.kind for finding in plan.findings}


def finding(plan: Plan, kind: str) -> Any:
    (only,) = [each for each in plan.findings if each.kind == kind]
    return only
