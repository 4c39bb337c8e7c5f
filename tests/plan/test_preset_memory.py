"""Every preset that names a card is planned at full size: it must fit, and the table must say how much it takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backend.base.paths import BUILTIN_PRESETS
from backend.config import presets
from backend.config.schema import with_values
from backend.families.table import FAMILIES
from backend.plan.memory.plan import memory_plan
from tests.tiny.full_size import full_size

GB = 2**30
CLASSED = sorted(path.stem for path in BUILTIN_PRESETS.glob("*gb.toml"))


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bases")


@pytest.fixture(scope="session")
def builtin() -> dict[str, presets.Preset]:
    """Built-in presets by name: to list them is to read each file."""
    return {preset.name: preset for preset in presets.list_presets() if preset.builtin}


@pytest.mark.parametrize("name", CLASSED)
def test_a_preset_fits_the_card_in_its_name(name: str, bases: Path, builtin: dict[str, presets.Preset]) -> None:
    loaded = presets.load(builtin[name])
    assert loaded.config is not None and not loaded.problems
    card = int(re.search(r"-(\d+)gb$", name)[1])
    # a family's smaller model has presets of its own, and so have two experts
    own = next((each for each in ("wan-1.3b", "wan22-both") if name.startswith(each)), None)
    family = own or loaded.config.model.family
    config = with_values(loaded.config, {f"model.{key}": path for key, path in full_size(family, bases).items()})
    planned = memory_plan(config, vram_gb=card)
    assert planned is not None
    planned_run = planned[0]
    assert planned_run.verdict == "fits", f"{planned_run.peak.total / GB:.1f} GB"
    row = next(
        line for line in (BUILTIN_PRESETS / "README.md").read_text(encoding="utf-8").splitlines() if f"`{name}`" in line
    )
    match = re.search(r"([\d.]+) GB estimated", row)
    assert match and float(match[1]) == pytest.approx(planned_run.peak.total / GB, rel=0.05), (
        f"{planned_run.peak.total / GB:.1f} GB"
    )


def test_each_family_has_a_preset_for_each_class_of_card() -> None:
    assert {f"{family}-{card}gb" for family in FAMILIES for card in (8, 12, 16, 24, 48)} <= set(CLASSED)
