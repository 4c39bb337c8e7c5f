"""Reads which experts of Wan 2.2 14B a job of ai-toolkit or of musubi-tuner trains.

ai-toolkit trains both, by turns of one step, where it does not say. Names are those of
``extensions_built_in/diffusion_models/wan22`` and ``toolkit/config_modules.py`` there. musubi-tuner trains both where
``--dit_high_noise`` is given beside ``--dit``, the one for low noise (``docs/wan.md`` there).
"""

from __future__ import annotations

from dataclasses import replace

from backend.config.experts import SIDES
from backend.families.spec import Side
from backend.families.table import FAMILIES
from backend.importers.program import Fields
from backend.importers.values import is_off, number
from backend.importers.work import Work

_SWITCH = "train.switch_boundary_every"
_HIGH, _BOUNDARY = "dit_high_noise", "timestep_boundary"
_BASE, _SECOND, _EDGE = "model.base_model", "model.transformer_2", "timesteps.timestep_boundary"
_CHOICE, _EVERY = "timesteps.train_experts", "timesteps.switch_boundary_every"


def read_experts(fields: Fields) -> None:
    """Take the experts and the length of their turns; of another family both have no meaning."""
    names: dict[Side, str] = {side: f"model.model_kwargs.train_{side}_noise" for side in SIDES}
    facts = FAMILIES.get(fields.work.family_here)
    if facts is None or facts.experts is None:
        for name in (*names.values(), _SWITCH):
            fields.note(name, "off", "only Wan 2.2 14B has experts")
        return
    sides = [side for side, name in names.items() if not fields.has(name) or fields.on(name)]
    choice = sides[0] if len(sides) == 1 else "both"
    first = next((name for name in names.values() if fields.has(name)), "")
    if first:
        fields.take(first, _CHOICE, choice)
        for name in names.values():
            fields.note(name, "taken", "", _CHOICE)
    else:
        fields.work.change(_CHOICE, choice, "experts", "not in the file: ai-toolkit trains both")
    if choice != "both":
        fields.note(_SWITCH, "off", "it is used only if both experts are trained")
        return
    every = number(fields.get(_SWITCH))
    if isinstance(every, int) and every >= 1:
        fields.take(_SWITCH, _EVERY, every)
    else:
        fields.note(_SWITCH, "off")
        fields.work.change(_EVERY, 1, "turns", "not in the file: ai-toolkit changes the expert at every step")


def read_pair(work: Work) -> None:
    """Take both experts of musubi-tuner, after its names were read one by one."""
    facts, low = FAMILIES.get(work.family_here), work.ours.get(_BASE)
    high, boundary = work.values.get(_HIGH), number(work.values.get(_BOUNDARY))
    if facts is None or facts.experts is None or is_off(high):
        for key in (_HIGH, _BOUNDARY):
            if key in work.values:
                work.note(key, "off", "it is for both experts of Wan 2.2 14B")
        return
    if low is not None:
        work.take(_SECOND, low, work.origin[_BASE])
        work.notes = [replace(note, path=_SECOND) if note.path == _BASE else note for note in work.notes]
    work.take(_BASE, str(high).strip(), _HIGH)
    work.note(_HIGH, "taken", "", _BASE)
    if isinstance(boundary, int | float) and boundary > 0:
        # a timestep of 1000 there, too
        work.take(_EDGE, boundary / 1000 if boundary > 1 else boundary, _BOUNDARY)
        work.note(_BOUNDARY, "taken", "", _EDGE)
    elif _BOUNDARY in work.values:
        work.note(_BOUNDARY, "off")
    work.change(_CHOICE, "both", "experts", "both are trained, into a file each and not into one")
    work.change(_EVERY, 1, "turns", "not in the file: musubi-tuner changes the expert as noise levels are drawn")
