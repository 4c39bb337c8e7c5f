"""Keeps the draft on the server: the form as it was last seen, with undo of loads.

A browser tab may be refreshed, closed or opened twice, and the server may be restarted; the draft is a file, so none of
that loses a keystroke. It also holds what undo and redo go to.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from backend.base.files import write_atomic
from backend.base.paths import is_on_network
from backend.config.rules.full import FULL_ONLY, LORA_ONLY
from backend.config.schema import settings
from backend.config.sections.sampling import CONTROL_IMAGES
from backend.families.table import FAMILIES, lacking
from gui import fields, form

log = logging.getLogger(__name__)

_DRAFT_VERSION = 1
_STEPS_BACK = 20
_TABS_KEPT = 100
Level = Literal["basic", "all"]
"""Which settings the page shows: the basic ones, or all."""


@dataclass
class Snapshot:
    """A form and where it came from."""

    values: form.Values
    preset: str | None = None
    base: form.Values = field(default_factory=form.defaults)
    """The form as the preset had it, to know what has changed since."""


class Draft:
    """The draft, with undo and redo of loads. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.now = Snapshot(form.defaults())
        self.past: list[Snapshot] = []
        self.future: list[Snapshot] = []
        self._seen: dict[str | None, form.Values] = {}  # the form that each browser tab shows, as far as known
        self._typed: set[str] = set()  # folders of other machines that a person typed
        self.is_new = not self.path.exists()  # nobody has used this page yet
        # who worked with all settings before there were levels is shown all of them
        self.level: Level = "basic" if self.is_new else "all"
        self._restore()

    @property
    def path(self) -> Path:
        return self.folder / "draft.json"

    def keep(self, values: Mapping[str, Any], tab: str | None = None) -> bool:
        """Take the form as a browser tab shows it, or what was edited in it alone, and save it.

        Where another tab has changed the form since, only what was changed in this one is taken, and the answer is
        True: it shows an old form, and has to be given the new one. A tab that this server has not seen, as after its
        restart, is taken to show the draft, until it sends all that it shows.
        """
        with self.lock:
            known, is_whole = self._seen.get(tab), values.keys() >= form.defaults().keys()
            values = form.complete({**(known or self.now.values), **values})
            seen = known or (values if is_whole else self.now.values)
            changed = {path: value for path, value in values.items() if value != seen[path]}
            self._typed.update(_on_network(changed))
            merged = values if known is None and is_whole else self.now.values | changed
            if known is not None or tab is not None:
                self._seen[tab] = values
            if merged != self.now.values:
                self.now.values = merged
                self._write()
            return merged != values

    def shown(self, tab: str | None) -> form.Values:
        """The form, which is now given to this tab."""
        with self.lock:
            self._seen.pop(tab, None)
            self._seen[tab] = dict(self.now.values)
            while len(self._seen) > _TABS_KEPT:
                self._seen.pop(next(iter(self._seen)))
            return self.now.values

    def show_level(self, level: Level) -> None:
        """Show the basic settings, or all. Changes no value."""
        with self.lock:
            self.level = level
            self._write()

    def untyped(self) -> list[str]:
        """Folders of other machines that a file put into the form and nobody typed: they are not to be opened."""
        with self.lock:
            return [name for name in _on_network(self.now.values) if name not in self._typed]

    def load(self, values: form.Values, preset: str | None, kept: Mapping[str, Any] | None = None) -> None:
        """Replace the form; ``undo`` brings the one before back. kept: values that stay."""
        with self.lock:
            self.past = [*self.past, self.now][-_STEPS_BACK:]
            self.future = []
            self.now = Snapshot(values | dict(kept or {}), preset, dict(values))
            self._write()

    def change(self, values: Mapping[str, Any]) -> None:
        """Change some values of the form, which stays that of the same preset; ``undo`` takes them back."""
        with self.lock:
            self.past = [*self.past, self.now][-_STEPS_BACK:]
            self.future = []
            self.now = Snapshot(self.now.values | dict(values), self.now.preset, dict(self.now.base))
            self._write()

    def saved_as(self, preset: str) -> None:
        """The form is now what this preset holds."""
        with self.lock:
            self.now.preset, self.now.base = preset, dict(self.now.values)
            self._write()

    def renamed(self, old: str, new: str | None) -> None:
        """A preset was renamed, or deleted (None)."""
        with self.lock:
            for shot in (self.now, *self.past, *self.future):
                if shot.preset == old:
                    shot.preset = new
            self._write()

    def undo(self) -> bool:
        """Go back before the last load; False when there is none."""
        return self._move(self.past, self.future)

    def redo(self) -> bool:
        """Take back an undo; False when there is none."""
        return self._move(self.future, self.past)

    def facts(self) -> dict[str, Any]:
        """What the bar shows: the preset's name, how many settings differ from it, which way undo can go."""
        with self.lock:
            return {
                "preset": self.now.preset,
                "changed": form.changed(self.now.values, self.now.base),
                "changedFromDefault": form.changed(self.now.values, form.defaults()),
                "family": str(self.now.values.get("model.family")),
                "families": {name: row.title for name, row in FAMILIES.items()},
                **_of_family(str(self.now.values.get("model.family")), str(self.now.values.get("training.kind"))),
                "level": self.level,
                "canUndo": bool(self.past),
                "canRedo": bool(self.future),
            }

    def _move(self, source: list[Snapshot], target: list[Snapshot]) -> bool:
        with self.lock:
            if not source:
                return False
            target.append(self.now)
            self.now = source.pop()
            self._write()
            return True

    def _write(self) -> None:
        content: dict[str, Any] = {
            "version": _DRAFT_VERSION,
            "now": vars(self.now),
            "past": [vars(shot) for shot in self.past],
            "level": self.level,
        }
        content["typed"] = sorted(self._typed)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps(content, ensure_ascii=False))
        except OSError as wrong:
            # The page works without a saved draft; a full disk must not take the form away.
            log.warning("The draft could not be saved in %s: %s", self.path, wrong)

    def _restore(self) -> None:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content.get("version") == _DRAFT_VERSION:
                self.now = _snapshot(content["now"])
                self.past = [_snapshot(shot) for shot in content.get("past", [])]
                # A draft of an older version, without this list: its folders were opened then.
                self._typed.update(map(str, content.get("typed", _on_network(self.now.values))))
                self.level = content["level"] if content.get("level") in get_args(Level) else self.level
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
            log.warning("The draft in %s can't be read and is not used: %s", self.path, wrong)


def _of_family(name: str, kind: str) -> dict[str, Any]:
    """What the chosen model family and training kind lack, by path of settings and by name of columns, and what the
    family's parts are called.

    parts: what a person gives for a part that the base model lacks, by path of its setting.
    """
    lacks = lacking(name)
    facts = FAMILIES.get(name)
    parts = {f"model.{part.setting}": part.where for part in facts.parts if part.setting} if facts else {}
    others = fields.part_settings() - parts.keys() if facts else frozenset()
    columns = [column.name for setting in settings() for column in setting.columns if column.name in lacks]
    if facts:
        columns += [] if facts.controls else ["control_path"]
        columns += [] if facts.video else ["frames"]
        columns += CONTROL_IMAGES[facts.sample_controls :]
    if facts:
        others |= LORA_ONLY if kind == "full" else FULL_ONLY
        columns += ["lora_scale", "dim", "alpha"] if kind == "full" else []
    return {
        "lacking": [s.path for s in settings() if s.name in lacks or s.path in others],
        "lackingColumns": columns,
        "parts": parts,
    }


def _snapshot(content: Mapping[str, Any]) -> Snapshot:
    return Snapshot(form.complete(content["values"]), content.get("preset"), form.complete(content["base"]))


def _on_network(value: Any) -> list[str]:
    """All texts in a form's values that name a folder of another machine."""
    if isinstance(value, str):
        return [value] if is_on_network(value) else []
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [name for part in inner for name in _on_network(part)]
