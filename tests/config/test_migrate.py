"""Older files: schema versions and the compile keys of older trainers."""

from __future__ import annotations

from typing import Any

import pytest

from backend.config.load import loads
from backend.config.migrate import is_true, migrate
from backend.config.schema import SCHEMA_VERSION, CompileSection
from backend.config.toml_io import dumps


def compile_of(text: str) -> CompileSection:
    loaded = loads(text)
    assert loaded.config is not None, [p.sentence() for p in loaded.problems]
    return loaded.config.compile


@pytest.mark.parametrize(
    "written",
    ['["inductor", "default", "True", "True"]', '"inductor default true TRUE"', '["INDUCTOR", "default", true, true]'],
)
def test_compile_args_becomes_the_options(written: str) -> None:
    section = compile_of(f"[compile]\ncompile_args = {written}")
    assert (section.compile_backend, section.compile_mode) == ("inductor", "default")
    assert (section.compile_dynamic, section.compile_fullgraph) == ("true", True)
    assert section.compile_cache_size_limit == 32


@pytest.mark.parametrize("value", ["t", "tr", "", "1", "yes", "rue", "False", "e"])
def test_only_true_is_true(value: str) -> None:
    """The older trainer asked ``value.lower() in "true"``, so that "t" and the empty text were true."""
    assert is_true(value) is False
    section = compile_of(f'[compile]\ncompile_args = ["inductor", "default", "{value}", "{value}"]')
    assert section.compile_fullgraph is False
    assert section.compile_dynamic == ("false" if value == "False" else "auto")


@pytest.mark.parametrize("place", ["", "[compile]\n"])
def test_dynamo_keys_wherever_they_stand(place: str) -> None:
    text = place + (
        'dynamo_backend = "AOT_EAGER"\ndynamo_mode = "max-autotune-no-cudagraphs"\n'
        'dynamo_use_fullgraph = "true"\ndynamo_use_dynamic = true\n'
    )
    section = compile_of(text)
    assert section.compile and section.compile_backend == "aot_eager"
    assert section.compile_mode == "max-autotune-no-cudagraphs"
    assert section.compile_fullgraph and section.compile_dynamic == "true"


@pytest.mark.parametrize("word", ['"no"', '"NO"', '""', "false"])
def test_backend_no_means_no_compile(word: str) -> None:
    assert compile_of(f"dynamo_backend = {word}").compile is False


def test_todays_name_rules_over_the_older_one() -> None:
    loaded = loads('[compile]\ncompile_backend = "eager"\ndynamo_backend = "inductor"\ntorch_compile = false')
    assert loaded.config is not None
    assert loaded.config.compile.compile_backend == "eager"
    assert loaded.config.compile.compile is False


def test_what_was_moved_is_said_with_its_line() -> None:
    loaded = loads("[dataset]\nbatch_size = 2\n[compile]\ndynamo_use_fullgraph = true\n")
    (warning,) = loaded.problems
    assert (warning.severity, warning.line, warning.path) == ("warning", 4, "compile.dynamo_use_fullgraph")
    assert "compile_fullgraph" in warning.text


def test_a_wrong_value_is_told_at_the_older_keys_line() -> None:
    loaded = loads('[compile]\n\ndynamo_mode = "fastest"\n')
    (error,) = loaded.errors
    assert (error.path, error.line) == ("compile.compile_mode", 3)


@pytest.mark.parametrize("written", ['["inductor", "default"]', "3", '"inductor"'])
def test_compile_args_that_can_not_be_read(written: str) -> None:
    loaded = loads(f"[compile]\ncompile_args = {written}")
    assert [(p.path, p.line) for p in loaded.errors] == [("compile.compile_args", 2)]


def test_zero_as_limit_means_unset_in_files_of_others_only() -> None:
    assert compile_of("[compile]\ncompile_cache_size_limit = 0").compile_cache_size_limit is None
    assert compile_of("dynamo_cache_size_limit = 0").compile_cache_size_limit is None
    ours = loads("schema_version = 1\n[compile]\ncompile_cache_size_limit = 0")
    assert [p.path for p in ours.errors] == ["compile.compile_cache_size_limit"]


def test_migrated_settings_are_written_in_todays_names() -> None:
    cfg = loads('compile_args = ["inductor", "default", "true", "false"]').config
    assert cfg is not None
    text = dumps(cfg)
    assert "compile_args" not in text and 'compile_dynamic = "true"' in text
    assert loads(text).config == cfg and loads(text).problems == []


@pytest.mark.parametrize("version", ["true", '"1"', "0", "-1", "1.0"])
def test_a_version_that_is_none(version: str) -> None:
    assert [p.path for p in loads(f"schema_version = {version}").errors] == ["schema_version"]


def test_a_file_from_the_future_says_so() -> None:
    (problem,) = loads(f"\nschema_version = {SCHEMA_VERSION + 1}").errors
    assert "newer" in problem.text and problem.line == 2


def test_migrations_run_in_turn_and_only_those_needed() -> None:
    def to_2(data: dict[str, Any]) -> None:
        # As it is done when a default changes: the file trained with the old one, so it keeps it.
        data.setdefault("network", {}).setdefault("network_dim", 8)

    def to_3(data: dict[str, Any]) -> None:
        data["network"]["network_alpha"] = float(data["network"]["network_dim"])

    steps = {1: to_2, 2: to_3}
    original = {"schema_version": 1, "dataset": {"batch_size": 2}}
    migrated = migrate(original, version=3, steps=steps)
    assert migrated.data == {"dataset": {"batch_size": 2}, "network": {"network_dim": 8, "network_alpha": 8.0}}
    assert original == {"schema_version": 1, "dataset": {"batch_size": 2}}
    assert migrate({"schema_version": 3}, version=3, steps=steps).data == {}
    migration = migrate({"schema_version": 1, "network": {"network_dim": 4}}, version=2, steps=steps)
    assert migration.data["network"]["network_dim"] == 4
    assert migrate({"dataset": {}}, version=3, steps=steps).data == {"dataset": {}}, "no version: written for today"


def test_what_is_told_to_be_written_is_toml() -> None:
    loaded = loads('[compile]\ncompile_args = ["inductor", "default", "true", "no"]\ndynamo_cache_size_limit = 0')
    args, limit = (problem.text for problem in loaded.problems)
    as_told = args.partition("was read as ")[2].replace(", ", "\n")
    again = loads(f"[compile]\n{as_told}")
    assert again.problems == [] and again.config is not None
    assert (
        again.config.compile == loads('[compile]\ncompile_args = ["inductor", "default", "true", "no"]').config.compile
    )
    assert "None" not in limit and loaded.problems[1].remedy == "Remove the line"


def test_older_flags_on_the_command_line() -> None:
    loaded = loads("", {"compile_args": "inductor default auto true", "dynamo_use_dynamic": "true"})
    assert loaded.config is not None
    assert loaded.config.compile.compile_fullgraph is True and loaded.config.compile.compile_dynamic == "true"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("schema_version = 1", "static"),
        ('schema_version = 1\n[model]\nfamily = "sdxl"', "auto"),
        ('schema_version = 1\n[compile]\nshape_mode = "dynamic"', "dynamic"),
        ('schema_version = 1\n[model]\nfamily = "sdxl"\n[compile]\nshape_mode = "exact_buckets"', "exact_buckets"),
        ("schema_version = 2", "auto"),
        ("[training]\nseed = 1", "auto"),
    ],
)
def test_a_file_from_before_auto_keeps_its_shape_mode(text: str, mode: str) -> None:
    """Version 1 meant static where it said nothing; SDXL could not be trained without another."""
    assert compile_of(text).shape_mode == mode


@pytest.mark.parametrize("version", ["", "schema_version = 1\n", "schema_version = 2\n"])
def test_the_retired_profile_is_read_as_what_it_set(version: str) -> None:
    loaded = loads(
        f'{version}[compile]\ncompile_profile = "fast_compile"\ncompile_dynamic = "true"\nshape_mode = "static"\n'
    )
    (warning,) = loaded.problems
    assert warning.severity == "warning" and "fast_compile" in warning.text and warning.remedy
    assert loaded.config is not None and loaded.config.compile == CompileSection(shape_mode="static")
