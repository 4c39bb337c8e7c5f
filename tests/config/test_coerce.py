"""The named coercions, and that there are no others."""

from __future__ import annotations

import pytest

from backend.config.load import loads, parse
from backend.config.schema import get


@pytest.mark.parametrize(
    ("path", "written", "wanted"),
    [
        ("network.network_dim", "10", 10),
        ("network.network_dim", " 10 ", 10),
        ("network.network_dim", 10.0, 10),
        ("training.max_train_steps", "1e3", 1000),
        ("training.max_train_steps", "", None),
        ("training.max_train_steps", "None", None),
        ("optimizer.learning_rate", "1e-4", 1e-4),
        ("optimizer.learning_rate", 1, 1.0),
        ("compile.compile", "True", True),
        ("compile.compile", "false", False),
        ("compile.compile_dynamic", True, "true"),
        ("compile.compile_dynamic", False, "false"),
        ("compile.compile_dynamic", "True", "true"),
        ("compile.compile_dynamic", "AUTO", "auto"),
        ("compile.disable_linear", True, "on"),
        ("compile.disable_linear", False, "off"),
        ("model.weight_dtype", "BF16", "bf16"),
        ("optimizer.optimizer", "AdamW", "adamw"),
        ("compile.compile_backend", "Inductor", "inductor"),
        ("optimizer.betas", "0.9, 0.95", [0.9, 0.95]),
        ("optimizer.betas", ["0.9", 0], [0.9, 0.0]),
        ("validation.validation_sigmas", 0.5, [0.5]),
        ("compile.caption_buckets", "[64, 128]", [64, 128]),
        ("network.targets_include", "attn.to_q", ["attn.to_q"]),
        ("model.base_model", ' "C:\\my models" ', "C:\\my models"),
    ],
)
def test_unambiguous_ways_to_write_a_value(path: str, written: object, wanted: object) -> None:
    section, name = path.split(".")
    cfg = parse({section: {name: written}}).config
    assert cfg is not None
    value = get(cfg, path)
    assert value == wanted and type(value) is type(wanted)


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("network.network_dim", True),
        ("network.network_dim", "ten"),
        ("network.network_dim", "10 "[:0] + "1_0"),
        ("network.network_dim", 10.5),
        ("network.network_dim", "0x10"),
        ("optimizer.learning_rate", True),
        ("optimizer.learning_rate", "nan"),
        ("optimizer.learning_rate", "1,5"),
        ("compile.compile", 1),
        ("compile.compile", "yes"),
        ("compile.compile_dynamic", 1),
        ("network.targets_include", "a,b"),
        ("saving.output_name", 3),
        ("optimizer.betas", [True, 0.5]),
        ("validation.validation_folders", "one text for two needed cells"),
    ],
)
def test_everything_else_is_refused_by_name(path: str, written: object) -> None:
    section, name = path.split(".")
    loaded = parse({section: {name: written}})
    assert loaded.config is None
    assert {p.setting for p in loaded.problems} == {path}


def test_rows_in_every_way_they_are_written() -> None:
    for text in (
        "[[dataset.folders]]\npath = 'a'",
        "[dataset]\nfolders = [{ path = 'a' }]",
        "[dataset]\nfolders = ['a']",
        "[dataset]\nfolders = 'a'",
        "[dataset.folders]\npath = 'a'",
    ):
        cfg = loads(text).config
        assert cfg is not None and [f.path for f in cfg.dataset.folders] == ["a"]
