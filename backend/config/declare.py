"""Declares a setting, and reads declarations back for the form, the checks, the command line and the docs."""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

Kind = Literal[
    "bool", "int", "float", "str", "text", "path", "choice", "float_list", "int_list", "str_list", "table", "tables"
]

_SCALARS: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
_LISTS: dict[Any, Kind] = {float: "float_list", int: "int_list", str: "str_list"}


class Section(BaseModel):
    """Base of every section and row: nothing unknown, nothing guessed, checked again at each assignment."""

    model_config = ConfigDict(strict=True, extra="forbid", validate_assignment=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Bounds:
    """Limits of a number; None where there is none. For a list they hold for each number in it."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def words(self) -> str:
        """The limits as a person reads them, e.g. ``1 to 64`` or ``above 0``; empty without limits."""
        if self.ge is not None and self.le is not None:
            return f"{_number(self.ge)} to {_number(self.le)}"
        low = f"at least {_number(self.ge)}" if self.ge is not None else ""
        low = f"above {_number(self.gt)}" if self.gt is not None else low
        high = f"at most {_number(self.le)}" if self.le is not None else ""
        high = f"below {_number(self.lt)}" if self.lt is not None else high
        return " and ".join(part for part in (low, high) if part)

    def limits(self) -> tuple[str, str]:
        """The lower and the upper limit as numbers to show; "" where there is none."""
        low = self.ge if self.ge is not None else self.gt
        high = self.le if self.le is not None else self.lt
        return "" if low is None else _number(low), "" if high is None else _number(high)


@dataclass(frozen=True)
class Setting:
    """One declared setting, as the form, the checks, the TOML, the CLI, the search and the docs see it."""

    path: str
    """``section.name``; for a column of a table ``section.table.name``."""
    section: str
    name: str
    kind: Kind
    default: Any
    """The value when the file says nothing; treat it as read-only."""
    bounds: Bounds
    choices: tuple[str, ...] | None
    """The only values that are allowed."""
    label: str
    help: str
    unit: str | None
    aliases: tuple[str, ...]
    """Names in other trainers: for hints, the search and imports."""
    advanced: bool
    """Shown below More on the page."""
    basic: bool
    """Shown at the page's basic level: what nearly every run sets."""
    nullable: bool
    required: bool = False
    """Of a column: every row must have it."""
    suggestions: tuple[str, ...] = ()
    """Values to offer where others (a class path, a backend) are allowed too."""
    columns: tuple[Setting, ...] = ()
    """The settings of one row, of a ``tables`` setting."""


def setting(
    default: Any = PydanticUndefined,
    *,
    label: str,
    help: str,
    unit: str | None = None,
    aliases: Iterable[str] = (),
    advanced: bool = False,
    basic: bool = False,
    kind: Kind | None = None,
    choices: Iterable[str] | None = None,
    suggestions: Iterable[str] = (),
    **limits: Any,
) -> Any:
    """Declare one setting; use it as the default of an annotated field of a ``Section``.

    default: value, or a callable that makes one (for lists and tables); without one, every row must have it.
    advanced, basic: where the page shows it; see `Setting`. ValueError for both at once.
    kind: only where the annotation does not show it (``path``, ``text``). limits: pydantic's own (ge, min_length, ...).
    """
    if advanced and basic:
        raise ValueError(f"{label}: a basic setting is not below More")
    declared = {
        "label": label,
        "help": help,
        "unit": unit,
        "aliases": tuple(aliases),
        "advanced": advanced,
        "basic": basic,
        "kind": kind,
        "choices": tuple(choices) if choices is not None else None,
        "suggestions": tuple(suggestions),
    }
    initial: dict[str, Any] = {"default_factory": default} if callable(default) else {"default": default}
    return Field(**initial, json_schema_extra={"setting": declared}, **limits)  # type: ignore[call-overload]


def optional_path(**declared: Any) -> Any:
    """Declare a file or folder that may be left empty; the arguments are those of `setting`."""
    return setting(None, kind="path", min_length=1, **declared)


def read_section(section: str, model: type[Section], prefix: str | None = None) -> tuple[Setting, ...]:
    """All settings of one section (or of one row model), in the order they are declared.

    prefix: path in front of the name, the section's own name when left out. TypeError for an undeclared field.
    """
    return tuple(_read(section, prefix or section, name, info) for name, info in model.model_fields.items())


def _read(section: str, prefix: str, name: str, info: FieldInfo) -> Setting:
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or "setting" not in extra:
        raise TypeError(f"{prefix}.{name} is not declared with setting(...)")
    declared: dict[str, Any] = dict(extra["setting"])  # type: ignore[arg-type]
    inner, nullable = _without_none(info.annotation)
    path = f"{prefix}.{name}"
    row = _row_model(inner)
    return Setting(
        path=path,
        section=section,
        name=name,
        kind=declared["kind"] or _kind(inner, declared["choices"]),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        bounds=_bounds(_item_limits(inner) or info.metadata),
        choices=declared["choices"] or (tuple(get_args(inner)) if get_origin(inner) is Literal else None),
        label=declared["label"],
        help=declared["help"],
        unit=declared["unit"],
        aliases=declared["aliases"],
        advanced=declared["advanced"],
        basic=declared["basic"],
        nullable=nullable,
        required=info.is_required(),
        suggestions=declared["suggestions"],
        columns=read_section(section, row, path) if row else (),
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """The annotation without ``| None`` and whether it had it."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        if len(inner) == 1:
            return _bare(inner[0]), len(inner) < len(get_args(annotation))
    return _bare(annotation), False


def _bare(annotation: Any) -> Any:
    """The type inside ``Annotated``."""
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _kind(inner: Any, choices: tuple[str, ...] | None) -> Kind:
    origin = get_origin(inner)
    if choices or origin is Literal:
        return "choice"
    if _row_model(inner):
        return "tables"
    if origin is list:
        return _LISTS[_bare(get_args(inner)[0])]
    if origin is dict:
        return "table"
    return _SCALARS[inner]


def _row_model(inner: Any) -> type[Section] | None:
    if get_origin(inner) is list:
        item = get_args(inner)[0]
        if isinstance(item, type) and issubclass(item, Section):
            return item
    return None


def _item_limits(inner: Any) -> list[Any]:
    """Limits of each item, where a list's item type carries them."""
    item = get_args(inner)[0] if get_origin(inner) is list else None
    return [m for f in getattr(item, "__metadata__", ()) if isinstance(f, FieldInfo) for m in f.metadata]


def _bounds(limits: Iterable[Any]) -> Bounds:
    bounds: dict[str, float] = {}
    for limit in limits:
        for kind, name in ((Ge, "ge"), (Gt, "gt"), (Le, "le"), (Lt, "lt")):
            if isinstance(limit, kind):
                bounds[name] = getattr(limit, name)
    return Bounds(**bounds)


def _number(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e6 else f"{value:.0f}"
