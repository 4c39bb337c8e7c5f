"""Values for any setting, from its declaration: one that is not the default, and a strategy of all that it takes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from backend.config.schema import SECTIONS, Config, Setting, settings

# Settings whose values have a form beyond their type; for all other texts any text does.
_FORMS: dict[str, list[Any]] = {
    "dataset.max_token_length": [150, 225],
    "dataset.caption_extension": [".caption", ".tag.txt"],
    "captions.more_caption_extensions": [".caption", ".tags"],
    "optimizer.optimizer": ["sgd", "pkg.sub.Class"],
    "optimizer.lr_scheduler": ["rex", "my_package.Schedule"],
    "compile.compile_backend": ["eager", "my-backend"],
    "compile.compile_blocks.blocks": ["double:0-3", "single", "double:0,2,5-8"],
    "compile.compile_blocks.backend": ["aot_eager", "other"],
    "saving.output_name": ["my lora", "Größe-猫"],
    "validation.validation_folders.name": ["held out", "b"],
    "network.targets_include": ["attn.to_q", r"transformer_blocks\.\d+\.ff.*", 'with "quotes"'],
    "network.targets_exclude": ["proj_out", r".*\\norm"],
    "dataset.excluded_images": ["/images/a 1.png", "größe.png"],
    "network.base_weights": [r"C:\Users\x.safetensors", "loras/größe.safetensors", "~/a b.safetensors"],
    "network.layer_settings.layers": ["attn.to_k", r"single_.*"],
}

_PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_ONE_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
_PATHS = st.one_of(
    _ONE_LINE.filter(lambda t: t == t.strip() and not (len(t) > 2 and t[0] == t[-1] and t[0] in "\"'")),
    st.sampled_from([r"C:\Users\xampp\new", "/data/übung 100% [a]'s", "~/猫", "a//b/", r"\\server\share\x"]),
)


def other_value(setting: Setting) -> Any:
    """A valid value that is not the default, always the same."""
    if setting.path in _FORMS:
        form = _FORMS[setting.path]
        return form[:2] if setting.kind == "str_list" else form[0]
    if setting.kind == "bool":
        return not setting.default
    if setting.kind == "choice":
        return next((c for c in setting.choices or () if c != setting.default), setting.default)
    if setting.kind in ("int", "float"):
        return _number(setting)
    if setting.kind in ("int_list", "float_list"):
        return [64, 128] if setting.kind == "int_list" else [0.25, 0.5]
    if setting.kind == "table":
        return {"amsgrad": True, "scale": 0.5, "steps": 3, "name": "C:\\x", "list": [1, 2]}
    if setting.kind == "tables":
        row = {c.name: other_value(c) for c in setting.columns}
        short = {c.name: other_value(c) for c in setting.columns if c.required}
        short |= {"name": "another"} if "name" in short else {}
        return [row, short]
    return 'C:\\Users\\xampp\\"new" 猫'


def _number(setting: Setting) -> float | int:
    bounds = setting.bounds
    low = bounds.ge if bounds.ge is not None else bounds.gt if bounds.gt is not None else 0
    high = min(x for x in (bounds.le, bounds.lt, 1e6) if x is not None)
    for share in (0.5, 0.25, 0.125):
        value = low + (high - low) * share
        value = int(value) if setting.kind == "int" else float(value)
        if value != setting.default:
            return value
    raise AssertionError(f"no other number for {setting.path}")


def values_of(setting: Setting) -> SearchStrategy[Any]:
    """Every kind of value that the setting takes, unset where it may be."""
    strategy = _strategy(setting)
    return st.none() | strategy if setting.nullable else strategy


def _strategy(setting: Setting) -> SearchStrategy[Any]:
    kind = setting.kind
    if setting.path in _FORMS:
        form = st.sampled_from(_FORMS[setting.path])
        return st.lists(form, min_size=1, max_size=3) if kind == "str_list" else form
    if kind == "bool":
        return st.booleans()
    if kind == "choice":
        return st.sampled_from(setting.choices or ())
    if kind in ("int", "float"):
        return _numbers(setting)
    if kind == "int_list":
        return st.lists(_numbers(setting), min_size=1, max_size=5, unique=True).map(sorted)
    if kind == "float_list":
        size = {"min_size": 2, "max_size": 2} if setting.name == "betas" else {"min_size": 1, "max_size": 5}
        return st.lists(_numbers(setting), **size)
    if kind == "table":
        single = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
        single |= _PLAIN_TEXT
        return st.dictionaries(
            st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True),
            single | st.lists(single, max_size=3),
            max_size=4,
        )
    if kind == "tables":
        row = st.fixed_dictionaries({c.name: values_of(c) for c in setting.columns})
        return st.lists(row, min_size=1 if setting.nullable else 0, max_size=3)
    if kind == "path":
        return _PATHS
    if setting.required or setting.default == "":
        return _PLAIN_TEXT
    return _PLAIN_TEXT.filter(str.strip)


def _numbers(setting: Setting) -> SearchStrategy[Any]:
    bounds = setting.bounds
    low = bounds.ge if bounds.ge is not None else bounds.gt
    high = bounds.le if bounds.le is not None else bounds.lt
    if setting.kind.startswith("int"):
        return st.integers(int(low or 0), int(high if high is not None else 10**12))
    return st.floats(
        low, high, exclude_min=bounds.gt is not None, exclude_max=bounds.lt is not None, allow_nan=False
    ).map(lambda x: x + 0.0)


def configs() -> SearchStrategy[Config]:
    """Any config whose single values are valid; rules between them may be broken."""
    sections = {
        section: st.fixed_dictionaries({}, optional={s.name: values_of(s) for s in settings() if s.section == section})
        for section in SECTIONS
    }
    return st.fixed_dictionaries(sections).map(Config.model_validate)
