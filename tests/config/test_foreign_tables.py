"""The tables of other programs' names: complete, nothing in them that is not there, and no value breaks a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import toml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from backend.config import file_kinds
from backend.config.schema import by_path
from backend.importers import reasons, source, tables
from backend.importers.convert import convert
from backend.importers.names import declared_setting, setting_of
from backend.importers.source import read_raw
from backend.importers.values import READERS

FILES = Path(__file__).parent / "foreign"
NAMES: dict[str, str] = json.loads((FILES / "names.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("program", [name for name in NAMES if "in them" not in name])
def test_every_option_of_the_programs_is_mapped_or_has_its_reason(program: str) -> None:
    """All names of their argument parsers, data set files and presets, at the commits that tables.py names."""
    names = NAMES[program].split()
    if program.endswith("datasets"):
        source = read_raw(toml.dumps({"datasets": [dict.fromkeys(names, "1")]}).encode())
    else:
        values = {name: True if name.endswith("_checkbox") else "1" for name in names}
        # a family that is not offered is refused as a whole
        values |= {name: False for name in ("v2", "task") if name in values}
        values |= {"LoRA_type": "Standard"} if program == "kohya_ss, other tabs" else {}
        as_json = program.startswith("kohya_ss")
        source = read_raw((json.dumps(values) if as_json else toml.dumps(values)).encode())
    notes = convert(source).notes
    assert not [note.key for note in notes if note.fate == "unknown"]
    if not program.endswith("datasets"):
        assert set(names) <= {note.key.removeprefix("network_args ") for note in notes}


def test_tables_have_no_name_that_the_programs_lack() -> None:
    theirs = set(" ".join(names for program, names in NAMES.items() if ", names" not in program).split())
    theirs |= {name.removeprefix(start) for name in theirs for start in tables.SWITCHES if name.startswith(start)}
    assert {*tables.KEYS, *tables.COMBINED, *tables.GATES, *reasons.NOT_NEEDED, *reasons.NOT_OFFERED} <= theirs
    scripts, musubi = (set(NAMES[program].split()) for program in ("sd-scripts", "musubi-tuner"))
    assert not file_kinds.ONLY_SCRIPTS - (scripts - musubi) and not file_kinds.ONLY_MUSUBI - (musubi - scripts)


def test_tables_repeat_nothing_that_a_declaration_says() -> None:
    assert [name for name, row in tables.KEYS.items() if declared_setting(name) == row] == []
    assert setting_of("max_train_steps") == ("training.max_train_steps", "off_at_0"), "0 leaves it empty"
    assert setting_of("noise_offset") == ("loss.noise_offset", "number"), "0 is a value of it"
    assert setting_of("train_batch_size") == ("dataset.batch_size", "number"), "by an alias"


def test_tables_name_settings_and_readers_that_exist() -> None:
    for keys in (tables.KEYS, *tables.FAMILY_KEYS.values()):
        assert {path for path, _ in keys.values()} <= set(by_path())
        assert {reader for _, reader in keys.values()} <= set(READERS)
    for table in (reasons.NOT_NEEDED, reasons.NOT_OFFERED):
        assert all(table.values()), "each has its reason"
        assert not set(table) & (set(tables.KEYS) | tables.COMBINED)


_WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12)
_ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 10**7), st.floats(allow_nan=False), _WORDS, st.lists(_WORDS, max_size=3)
)


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(sorted({*tables.KEYS, *tables.COMBINED, *reasons.NOT_OFFERED, "zzz"})), _ANY, max_size=8
    )
)
def test_no_value_breaks_it_and_no_name_is_lost(values: dict[str, Any]) -> None:
    values = {**values, "LoRA_type": "Flux1"}
    beside = source.Source("dataset", {"datasets": [{"image_dir": "/d", **values}]})
    assert convert(beside).loaded.config is not None
    assert convert(read_raw(b'network_module = "networks.lora_sd3"'), beside).loaded.config is not None
    converted = convert(read_raw(json.dumps(values).encode()))
    assert converted.loaded.config is not None
    names = {note.key.removeprefix("network_args ") for note in converted.notes}
    assert set(values) <= names
