"""The schema itself: what the contract fixes, and what every declaration must have."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from backend.config.declare import Section, read_section, setting
from backend.config.names import ELSEWHERE
from backend.config.schema import (
    SECTIONS,
    Config,
    SamplePrompt,
    Setting,
    by_name,
    by_path,
    get,
    settings,
    with_values,
)
from backend.families.table import FAMILIES
from tests.tiny.values import other_value

ALL = settings()
COLUMNS = [column for s in ALL for column in s.columns]


def test_defaults_are_the_fields() -> None:
    cfg = Config()
    field = {
        "network.network_dim": 16,
        "network.network_alpha": 16.0,
        "optimizer.optimizer": "adamw",
        "optimizer.learning_rate": 1e-4,
        "optimizer.lr_scheduler": "cosine",
        "compile.compile": True,
        "compile.compile_backend": "inductor",
        "compile.compile_mode": "default",
        "compile.compile_dynamic": "auto",
        "compile.compile_fullgraph": False,
        "compile.compile_cache_size_limit": None,
        "compile.shape_mode": "auto",
        "validation.validation_sigmas": [0.05, 0.1, 0.2, 0.35],
        "saving.save_precision": "bf16",
        "sampling.prompts": [],
    }
    assert {path: get(cfg, path) for path in field} == field
    prompt = SamplePrompt(prompt="a cat")
    assert (prompt.steps, prompt.guidance_scale, prompt.text_length) == (28, 3.5, None)


def test_length_of_a_run_without_any() -> None:
    cfg = Config()
    assert cfg.training.step_limit == 1600
    cfg.training.max_train_epochs = 3
    assert cfg.training.step_limit is None
    cfg.training.max_train_steps = 7
    assert cfg.training.step_limit == 7


@pytest.mark.parametrize("declared", [*ALL, *COLUMNS], ids=lambda s: s.path)
def test_every_setting_is_fully_declared(declared: Setting) -> None:
    assert declared.label and len(declared.label) < 40
    assert len(declared.help) > 15 and declared.help.endswith("."), "a help text is a sentence"
    assert declared.help.count("`") == 0, "help is shown as plain text"
    if declared.nullable:
        assert declared.default is None, "TOML has no null, so what may be unset is unset by default"
    if declared.kind == "choice":
        assert declared.default in (declared.choices or ())


def test_names_are_unique() -> None:
    names = [s.name for s in ALL]
    assert len(set(names)) == len(names)
    assert len(by_name()) == len(by_path()) == len(ALL)


def test_aliases_name_one_setting_and_no_other_one() -> None:
    claimed: dict[str, str] = {}
    for s in ALL:
        for alias in s.aliases:
            assert alias == alias.lower() and "-" not in alias
            assert alias not in by_name(), f"{alias} is a setting itself"
            assert alias not in claimed or {claimed[alias], s.path} == set(), (
                f"{alias}: {claimed.get(alias)} and {s.path}"
            )
            claimed[alias] = s.path


def test_labels_are_unique_and_nothing_declared_counts_as_missing() -> None:
    labels = [s.label for s in ALL]
    assert sorted(set(labels)) == sorted(labels), "a label alone says which setting it is"
    declared = set(by_name()) | {alias for s in ALL for alias in s.aliases}
    assert set(ELSEWHERE) & declared == set(), "a name that is here needs no reason why it is not"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_is_part_of_the_config(section: str) -> None:
    assert isinstance(getattr(Config(), section), SECTIONS[section])
    assert len(SECTIONS[section].model_fields) == sum(s.section == section for s in ALL)


@pytest.mark.parametrize("declared", ALL, ids=lambda s: s.path)
def test_other_values_are_valid_and_kept(declared: Setting) -> None:
    cfg = with_values(Config(), {declared.path: other_value(declared)})
    value = get(cfg, declared.path)
    if declared.path != "model.family":
        assert value != declared.default
    assert with_values(cfg, {declared.path: declared.default}) == Config()


def test_families_come_from_the_table() -> None:
    assert by_path()["model.family"].choices == tuple(FAMILIES)


def test_true_is_no_number_and_nothing_unknown_is_taken() -> None:
    for values in ({"network_dim": True}, {"network_dim": "10"}, {"network_dim": 1.5}, {"rank": 3}):
        with pytest.raises(ValidationError):
            SECTIONS["network"].model_validate(values)


def test_an_assignment_is_checked_too() -> None:
    cfg = Config()
    with pytest.raises(ValidationError):
        cfg.dataset.batch_size = 0
    assert cfg.dataset.batch_size == 1


def test_a_field_without_declaration_is_a_fault() -> None:
    class Bare(Section):
        width: int = 3

    with pytest.raises(TypeError, match=r"bare\.width"):
        read_section("bare", Bare)


def test_introspection_reads_type_bounds_and_columns() -> None:
    class Row(Section):
        path: str = setting(kind="path", label="Path", help="Where it is.")

    class Example(Section):
        size: int | None = setting(None, ge=1, lt=9, label="Size", help="How large.", unit="px", aliases=("s",))
        rows: list[Row] = setting(list, label="Rows", help="What there is.")

    size, rows = read_section("example", Example)
    assert (size.kind, size.nullable, size.unit, size.aliases) == ("int", True, "px", ("s",))
    assert size.bounds.words() == "at least 1 and below 9"
    assert (rows.kind, rows.default, rows.nullable) == ("tables", [], False)
    assert [(c.path, c.kind, c.required) for c in rows.columns] == [("example.rows.path", "path", True)]
