"""A setting does what it says: every setting and every choice of it changes a part that a run is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from backend.config.schema import by_path, get
from tests.conftest import draw_pictures
from tests.tiny.training import config
from tests.training.setting_effects import World, config_with, make_world
from tests.training.setting_table import ALIKE, PROVEN, SEEN, Seen

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tiny_flux: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    where = tmp_path_factory.mktemp("effects")
    cfg = config(
        tiny_flux,
        draw_pictures(where / "images"),
        where,
        compile={"compile": True, "compile_cache_dir": str(where / "c")},
    )
    with ExitStack() as stack:
        yield make_world(cfg, stack)


def test_the_effect_of_every_setting_is_seen_somewhere() -> None:
    """A new setting needs a row: how its effect is observed, or the test that shows it."""
    seen = {path for each in SEEN for path in each.values} | set(PROVEN)
    assert sorted(seen) == sorted(by_path())


def test_the_tests_that_show_an_effect_are_there_and_name_the_setting() -> None:
    wrong = []
    for path, proof in PROVEN.items():
        file, _, name = proof.partition("::")
        source = (ROOT / "tests" / file).read_text("utf-8")
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
        if not functions or path.split(".")[1] not in source:
            wrong.append((path, proof))
    assert wrong == []


def values_of(world: World, each: Seen, path: str) -> list[Any]:
    """The values to compare: what is set without it, and all choices of it or those of the table."""
    declared, listed = by_path()[path], each.values[path]
    if not listed:
        listed = (False, True) if declared.kind == "bool" else declared.choices or ()
    usual = get(config_with(world, each.beside, {}), path)
    return [usual, *(value for value in listed if value != usual)]


@pytest.mark.parametrize("each", SEEN, ids=lambda each: f"{each.by.__name__}-{next(iter(each.values))}")
def test_a_setting_and_each_choice_of_it_has_its_own_effect(world: World, each: Seen) -> None:
    """All differ from each other, but for what auto is known to come to here."""
    alike = []
    known: dict[str, Any] = {}

    def observe(path: str, value: Any) -> Any:
        cfg = config_with(world, each.beside, {path: value})
        key = cfg.model_dump_json()
        if key not in known:
            known[key] = each.by(world, cfg)
        return known[key]

    for path in each.values:
        effects = [(value, observe(path, value)) for value in values_of(world, each, path)]
        assert len(effects) > 1, path
        for (one, first), (other, second) in combinations(effects, 2):
            if first == second and (path, one, other) not in ALIKE:
                alike.append((path, one, other))
    assert alike == []
