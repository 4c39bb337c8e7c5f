"""Reads which experts of Wan 2.2 14B a job of ai-toolkit trains: both, by turns of one step, where it does not say.

Names and defaults are those of ``extensions_built_in/diffusion_models/wan22`` and ``toolkit/config_modules.py`` there.
"""

from __future__ import annotations

from backend.config.experts import SIDES
from backend.families.spec import Side
from backend.families.table import FAMILIES
from backend.importers.program import Fields
from backend.importers.values import number

_SWITCH = "train.switch_boundary_every"
_CHOICE, _EVERY = "timesteps.train_experts", "timesteps.switch_boundary_every"


def read_experts(fields: Fields) -> None:
    """Take the experts and the length of their turns; of another family both are told to have no meaning."""
    names: dict[Side, str] = {side: f"model.model_kwargs.train_{side}_noise" for side in SIDES}
    facts = FAMILIES.get(fields.work.family_here)
    if facts is None or facts.experts is None:
        for name in (*names.values(), _SWITCH):
            fields.note(name, "off", "only Wan 2.2 14B has experts")
        return
    sides = [side for side, name in names.items() if not fields.has(name) or fields.on(name)]
    choice = sides[0] if len(sides) == 1 else "both"
    switch = next((name for name in names.values() if fields.has(name)), "")
    if switch:
        fields.take(switch, _CHOICE, choice)
        for name in names.values():
            fields.note(name, "taken", "", _CHOICE)
    else:
        fields.work.change(_CHOICE, choice, "experts", "ai-toolkit trains both")
    if choice != "both":
        fields.note(_SWITCH, "off", "it is used only if both experts are trained")
        return
    every = number(fields.get(_SWITCH))
    if isinstance(every, int) and every >= 1:
        fields.take(_SWITCH, _EVERY, every)
    else:
        fields.note(_SWITCH, "off")
        fields.work.change(_EVERY, 1, "turns", "ai-toolkit changes the expert at every step")
