"""Finds what other programs will not read of a run's LoRA files, or will read otherwise, before the run starts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from backend.config.layer_patterns import included
from backend.dataset.items import Finding, count_of
from backend.families.spec import FamilyFacts
from backend.plan.memory.parts import Parts, trained_layers

if TYPE_CHECKING:
    from backend.config.schema import Config

_DORA = (
    "ComfyUI and Forge show a DoRA stronger or weaker than it was trained: they divide by the lengths of the base's "
    "own weights instead of the changed ones. Small changes differ little, large ones by a quarter or more"
)


def findings_of_base(cfg: Config, facts: FamilyFacts, parts: Parts | None) -> tuple[Finding, ...]:
    """`lora_findings` of the layers of a base model; without its parts, those that are not about layers."""
    layers: Iterable[str] = ()
    if cfg.training.kind == "full":
        return ()
    if parts is not None:
        layers = trained_layers(parts.denoiser, included(cfg.network, facts), cfg.network.targets_exclude or ())
    return tuple(lora_findings(cfg, facts, layers))


def lora_findings(cfg: Config, facts: FamilyFacts, layers: Iterable[str]) -> Iterable[Finding]:
    """What to know about the LoRA files of a run that trains `layers` (module paths) of the denoiser."""
    kind, layout = cfg.network.network_type, cfg.saving.save_layout
    if kind == "dora" and layout == "kohya":
        remedy = (
            "Judge it by the samples of this run, or by diffusers or LyCORIS; set network_type to lora for ComfyUI."
        )
        yield Finding("dora_elsewhere", "note", _DORA, remedy, (), "network.network_type")
    if layout != "kohya" or kind not in ("lora", "dora") or not facts.diffusers_layers:
        return
    patterns = [re.compile(pattern) for pattern in facts.diffusers_layers]
    lost = [path for path in layers if not any(pattern.fullmatch(path) for pattern in patterns)]
    if lost:
        text = (
            f"diffusers can't read {count_of(len(lost), 'layer')} of a LoRA file in kohya's layout: it leaves them out "
            f"without a message, or refuses the file ({', '.join(lost[:3])})"
        )
        remedy = "For diffusers set save_layout to diffusers, or exclude these layers."
        yield Finding("diffusers_leaves_out", "warning", text, remedy, (), "saving.save_layout")
