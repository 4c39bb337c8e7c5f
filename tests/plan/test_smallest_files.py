"""The smallest settings file of each family, base model and pictures alone, loads and plans without a problem."""

from __future__ import annotations

import pytest

from backend.config.family_defaults import shape_mode_of
from backend.config.load import loads, ready
from backend.config.reference import reference
from backend.families.table import FAMILIES
from backend.plan.make_plan import make_plan
from tests.tiny.plan_items import TEN_SIZES, scan_of

PICTURES = "[[dataset.folders]]\npath = 'pictures/my-cat'\n"


@pytest.mark.parametrize("name", FAMILIES)
def test_base_model_and_pictures_are_enough(name: str) -> None:
    facts = FAMILIES[name]
    control = "control_path = 'pictures/before'\n" if facts.controls is not None and facts.controls.needed else ""
    loaded = loads(f"[model]\nfamily = '{name}'\nbase_model = 'models/base'\n\n{PICTURES}{control}")
    assert loaded.problems == [] and loaded.config is not None and ready(loaded.config) == []
    plan = make_plan(loaded.config, scan_of(TEN_SIZES * 4), facts.default_geometry, facts)
    assert plan.chosen.impossible is None and plan.planned_graphs > 0 and plan.problems == []
    assert plan.mode == shape_mode_of(loaded.config) == ("static" if not facts.lacks_modes else "exact_buckets")
    lines = [line for line in plan.lines() if line.startswith("shape mode")]
    assert lines[0].startswith(f"shape mode {plan.mode} (auto)")
    assert plan.to_dict()["mode"] == plan.mode and plan.to_dict()["mode_by_family"]


def test_the_documented_smallest_file_is_this_one() -> None:
    assert f"base_model = 'models/FLUX.1-dev'\n\n{PICTURES}" in reference()
