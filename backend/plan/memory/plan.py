"""Makes the estimate for `launcher.py plan` and for the page: for this machine, or for a GPU that is only named."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.families.table import family
from backend.plan.memory.estimate_result import Estimate
from backend.plan.memory.machine import installed_gpus, named_gpu, ram
from backend.plan.memory.nearest import Nearest, Search
from backend.plan.memory.work import RunWork, work_of_settings
from backend.plan.texts import text_length_of

if TYPE_CHECKING:
    from backend.config.schema import Config


def memory_plan(
    cfg: Config, work: RunWork | None = None, vram_gb: float | None = None
) -> tuple[Estimate, Nearest | None] | None:
    """Estimate and nearest change of a run of `cfg`; None where the base model can't be read.

    work: what the plan of its pictures lists; without it all are taken to be as large as the resolution says. vram_gb:
    of a GPU elsewhere, in place of this machine's first one.
    """
    row = family(cfg.model.family)
    if work is None:
        try:
            geometry = row.geometry(BaseModelFiles.of(cfg.model))
        except ValueError:
            geometry = row.default_geometry
        work = work_of_settings(cfg, geometry, _text_tokens(cfg, row))
    gpus = [named_gpu(vram_gb)] if vram_gb else installed_gpus()
    gpu = gpus[0] if gpus else None
    # On another machine the RAM is not known.
    room = None if vram_gb else ram().total
    search = Search(cfg, work, gpu, on_gpu=gpu is not None, ram_room=room)
    estimate = search.after({})
    return None if estimate is None else (estimate, search.nearest())


def _text_tokens(cfg: Config, row: FamilyFacts) -> int:
    """Text tokens of a row, those of one square control picture included where it is read with it."""
    counter, rule = row.picture_tokens(BaseModelFiles.of(cfg.model)), row.controls
    side = (rule and rule.read_area) or cfg.dataset.resolution
    return row.text_before + text_length_of(cfg, row) + (0 if counter is None else counter(side, side))
