"""Reads one name of another program by itself: which setting it is here, how its value is read, what is said of it."""

from __future__ import annotations

from typing import Any

from backend.config.schema import by_name, by_path, settings
from backend.importers import reasons, tables
from backend.importers.common_reasons import UNKNOWN
from backend.importers.program_values import PROGRAM_READERS
from backend.importers.values import READERS, Left, Taken, is_off
from backend.importers.work import Say, Work

_READERS = {**READERS, **PROGRAM_READERS}


def read_name(work: Work, key: str, value: Any, say: Say | None = None) -> None:
    """Take over what `key` says, where it counts there. say: what notes it, where not the file itself."""
    say = say or work.note
    if key in tables.COMBINED:
        return
    start, switch = next(((s, w) for s, w in tables.SWITCHES.items() if key.startswith(s)), ("", ""))
    if switch and is_off(work.values.get(switch)):
        say(key, "off", f"it is used only if {switch} is on")
        return
    gate, wanted = tables.GATES.get(key, ("", "")) if work.kind == "kohya_ss" else ("", "")
    has = work.values.get(gate)
    if gate in work.values and (is_off(has) if wanted == "on" else str(has) != wanted):
        say(key, "off", f"it is used only if {gate} is {wanted}")
        return
    if _of_no_compile(work, key.removeprefix(start), value):
        say(key, "off", "it is used only if compile is on")
        return
    bare = key if key in reasons.NOT_NEEDED else key.removeprefix(start)
    _named(work, key, bare, value, say)


def _of_no_compile(work: Work, name: str, value: Any) -> bool:
    """Whether a name belongs to a compile that is off there."""
    dynamo = not is_off(work.values.get("torch_compile")) or not is_off(work.values.get("anima_torch_compile"))
    if work.kind == "musubi-tuner":
        dynamo = not is_off(work.values.get("dynamo_backend"))
    compiled = not is_off(work.values.get("compile")) or not is_off(work.values.get("anima_compile"))
    if name == "dynamo_backend" and is_off(value):
        return False  # it says so itself
    return (name.startswith("dynamo_") and not dynamo) or (name.startswith("compile_") and not compiled)


def _named(work: Work, key: str, name: str, value: Any, say: Say) -> None:
    """What is written as `key`, by the name that all files of the other program have for it."""
    own = tables.FAMILY_KEYS.get(work.ours.get("model.family", ""), {})
    own = {**own, **tables.PROGRAM_KEYS.get(work.kind, {})}
    goal, reader = own.get(name) or setting_of(name) or ("", "")
    if name in reasons.NOT_NEEDED:
        say(key, "not needed", reasons.NOT_NEEDED[name])
    elif name in reasons.NOT_OFFERED:
        beside = reasons.ONLY_BESIDE.get(name, ())
        off = is_off(value) or str(value).strip() in reasons.NEUTRAL.get(name, ())
        off = off or (bool(beside) and all(is_off(work.all_values.get(each)) for each in beside))
        say(key, "off" if off else "not offered", reasons.NOT_OFFERED[name])
    elif not goal:
        say(key, "off" if is_off(value) else "unknown", UNKNOWN)
    elif value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
        say(key, "off", "empty")
    else:
        read_value(work, key, goal, reader, value, say)


def read_value(work: Work, key: str, goal: str, reader: str, value: Any, say: Say) -> None:
    """Have the setting `goal` hold what `key` says, read by `reader`; the first that is not off rules."""
    try:
        taken: Taken = _READERS[reader](key, value, work.values)
    except Left as left:
        say(key, "not offered" if left.needed else "not needed", str(left))
        return
    if taken.value is None and not by_path()[goal].nullable:
        say(key, "off", "0")
        return
    old = work.ours.get(goal)
    if old is not None and taken.value != old and is_off(taken.value):
        say(key, "off", f"{work.origin[goal]} has priority")
        return
    if old is not None and taken.value != old:
        work.drop(goal, "not needed", f"{key} has priority")
    work.take(goal, taken.value, key)
    say(key, "near" if taken.near else "taken", taken.near, goal)


def setting_of(name: str) -> tuple[str, str] | None:
    """The setting that another program's name stands for, and the reader of its value; None where there is none.

    The tables have the exceptions. Otherwise the declaration says both: it has the name, itself or among its aliases,
    and a reader follows from its kind. A 0 leaves a number empty that may be empty and can't be 0.
    """
    return tables.KEYS.get(name) or declared_setting(name)


def declared_setting(name: str) -> tuple[str, str] | None:
    """The setting that is called this, here or elsewhere, and the reader that its kind needs."""
    declared = by_name().get(name) or next((s for s in settings() if name in s.aliases), None)
    if declared is None or declared.kind in ("tables", "table") or declared.path == "model.family":
        return None
    if declared.kind not in ("int", "float"):
        return declared.path, {"bool": "flag", "path": "path"}.get(declared.kind, "text")
    low = declared.bounds.gt if declared.bounds.gt is not None else (declared.bounds.ge or 0) - 1
    return declared.path, "off_at_0" if declared.nullable and low >= 0 else "number"
