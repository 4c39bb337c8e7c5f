"""The form and the Config: nothing is lost on the way, and what can't be read says so beside its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from backend.config.profiles import apply_profile
from backend.config.schema import Config, Setting, by_path, get, settings, with_values
from gui import form, messages
from tests.tiny.values import configs, other_value


def values(**changed: Any) -> form.Values:
    return form.defaults() | {path.replace("__", "."): value for path, value in changed.items()}


def test_the_defaults_come_back_as_the_defaults() -> None:
    loaded = form.read(form.defaults())
    assert (loaded.config, loaded.problems) == (Config(), [])
    assert form.to_values(Config()) == form.defaults()


@pytest.mark.parametrize("setting", settings(), ids=lambda s: s.path)
def test_every_setting_survives_the_form(setting: Setting) -> None:
    """No field that the form shows is lost on the way back."""
    config = with_values(Config(), {setting.path: other_value(setting)})
    apply_profile(config)
    assert form.read(form.to_values(config)).partial == config


def as_typed(config: Config) -> Config:
    """Paths and patterns without the blanks around them, and no text of blanks alone: what a form can hold."""
    trimmed = {}
    for setting in settings():
        value = get(config, setting.path)
        if setting.kind == "path" and value is not None:
            trimmed[setting.path] = value.strip() or setting.default
        elif setting.kind == "str_list" and value is not None:
            trimmed[setting.path] = [
                line.strip() for item in value for line in item.splitlines() if line.strip()
            ] or setting.default
        elif setting.kind in ("str", "text") and setting.nullable and value is not None and not value.strip():
            trimmed[setting.path] = None
        elif setting.kind == "tables" and value:
            trimmed[setting.path] = [row.model_copy(update=_empty_cells(setting, row)) for row in value]
    return with_values(config, trimmed)


def _empty_cells(setting: Setting, row: Any) -> dict[str, Any]:
    """Cells of blanks alone, as the form reads them: their column's default."""
    texts = {c: getattr(row, c.name) for c in setting.columns if c.kind in ("str", "text")}
    return {
        c.name: "" if c.required else c.default for c, text in texts.items() if text is not None and not text.strip()
    }


@pytest.mark.parametrize("blank", [" ", "\n", "\u2003"])
def test_a_cell_of_blanks_alone_is_empty(blank: str) -> None:
    """A negative prompt of one blank would be encoded as another prompt than none."""
    (row,) = form.to_values(with_values(Config(), {"sampling.prompts": [{"prompt": "a", "negative_prompt": blank}]}))[
        "sampling.prompts"
    ]
    loaded = form.read(values(sampling__prompts=[row]))
    assert loaded.partial.sampling.prompts[0].negative_prompt == ""


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs())
def test_any_config_survives_the_form(config: Config) -> None:
    config = as_typed(config)
    apply_profile(config)
    assert form.read(form.to_values(config)).partial == config


@pytest.mark.parametrize(
    ("path", "typed", "words"),
    [
        ("network.network_dim", "abc", "abc"),
        ("network.network_dim", "", "empty"),
        ("network.network_dim", "-4", "-4"),
        ("optimizer.learning_rate", "1e", "1e"),
        ("optimizer.betas", "0.9, many", "many"),
        ("optimizer.optimizer_args", "momentum: 0.9", "can't be read"),
        ("compile.shape_mode", "statc", "statc"),
        ("dataset.folders", [{"path": "a", "num_repeats": "some"}], "some"),
        ("dataset.folders", [{"num_repeats": "2"}], ""),
        ("sampling.prompts", [{"prompt": "a", "width": "wide"}], "wide"),
    ],
)
def test_a_mistyped_field_is_named(path: str, typed: Any, words: str) -> None:
    loaded = form.read(form.defaults() | {path: typed})
    assert loaded.config is None
    (problem,) = loaded.errors
    assert problem.setting == path
    facts = messages.problem_facts(problem)
    assert facts["id"] == "f-" + path.replace(".", "-")
    assert words in facts["text"]
    assert facts["text"][-1] in ".!?" and facts["remedy"]


def test_all_mistakes_are_told_at_once() -> None:
    loaded = form.read(
        values(network__network_dim="x", optimizer__eps="y", training__seed="z", optimizer__optimizer_args="=")
    )
    assert {problem.path for problem in loaded.errors} == {
        "network.network_dim",
        "optimizer.eps",
        "training.seed",
        "optimizer.optimizer_args",
    }


def test_numbers_are_read_as_people_write_them() -> None:
    """Blanks around numbers, exponents and semicolons in a list."""
    config = form.read(
        values(network__network_dim=" 32 ", optimizer__learning_rate="1e-4", optimizer__betas="0.9;0.99")
    ).config
    assert config is not None
    assert config.network.network_dim == 32
    assert (config.optimizer.learning_rate, config.optimizer.betas) == (1e-4, [0.9, 0.99])


def test_zero_is_a_value_and_empty_is_unset() -> None:
    """Zero stays zero; an empty field leaves its setting unset."""
    config = form.read(values(optimizer__max_grad_norm="0", compile__compile_cache_size_limit="")).config
    assert config is not None
    assert config.optimizer.max_grad_norm == 0
    assert config.compile.compile_cache_size_limit is None


def test_a_loaded_form_leaves_nothing_of_the_old_one() -> None:
    """Every field has a value, so that none keeps what it showed before."""
    before = form.to_values(with_values(Config(), {s.path: other_value(s) for s in settings() if s.kind != "choice"}))
    assert set(form.to_values(Config())) == set(before) == set(by_path())


def test_a_difference_is_told_in_words() -> None:
    rows = form.differences(form.defaults(), values(network__network_dim="8", compile__compile=False))
    assert [(r["label"], r["before"], r["after"]) for r in rows] == [
        ("Network rank (dim)", "16", "8"),
        ("Compile the model", "on", "off"),
    ]


def test_an_old_draft_with_other_settings_is_filled_up() -> None:
    assert form.complete({"network.network_dim": "8", "gone.setting": 1}) == values(network__network_dim="8")


@pytest.mark.parametrize(("switch", "choice"), [(True, "on"), (False, "auto")])
def test_a_switch_of_an_old_draft_that_is_a_choice_now(switch: bool, choice: str) -> None:
    """Off was its default: it says nothing of what a person chose."""
    assert form.complete({"compile.cuda_graphs": switch}) == values(compile__cuda_graphs=choice)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("no base model is chosen", "No base model is chosen."),
        ("learning_rate has no effect", "learning_rate has no effect."),
        ("/a/b is a file", "/a/b is a file."),
        ("", ""),
        ("Done!", "Done!"),
    ],
)
def test_sentences(text: str, sentence: str) -> None:
    assert messages.sentence(text) == sentence
