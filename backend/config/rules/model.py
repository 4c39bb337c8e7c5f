"""Lists rules about the base model and about settings that only some families have."""

from __future__ import annotations

from backend.config.rules.rule import Rule
from backend.config.schema import by_path
from backend.families.spec import VIDEO_OPTIONS
from backend.families.table import FAMILIES

_OPTIONS = [row.own_options for row in FAMILIES.values()]
# Settings that some families have and others lack.
_FAMILY_OPTIONS = VIDEO_OPTIONS.union(*_OPTIONS) - frozenset.intersection(*_OPTIONS)


def family_option(path: str) -> Rule:
    """A warning when a setting that only some families have was changed for one that lacks it."""
    name, default = path.rsplit(".", 1)[1], by_path()[path].default
    having = [row for row in FAMILIES.values() if name in row.own_options]
    whom = ", ".join(facts.title for facts in having) or "models that make clips"
    return Rule(
        (path, "model.family"),
        lambda value, family: value != default and name not in FAMILIES[family].own_options,
        f"{name} has no effect: the family {{family}} does not have it",
        f"Remove {name}; it is for {whom}",
        "warning",
    )


MODEL_RULES: tuple[Rule, ...] = (
    Rule(
        ("model.base_model",),
        lambda base: base is None,
        "no base model is chosen",
        "Choose the folder of a model in diffusers layout, or its single file, as model.base_model",
        when="start",
    ),
    *(family_option(path) for path in by_path() if path.rsplit(".", 1)[1] in _FAMILY_OPTIONS),
)
