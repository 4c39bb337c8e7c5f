"""Finds what other programs will not read of a run's LoRA files, or will read otherwise, before the run starts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
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
    layers = list(layers)
    patterns = [re.compile(pattern) for pattern in facts.diffusers_layers]
    lost = [path for path in layers if not any(pattern.fullmatch(path) for pattern in patterns)]
    if lost:
        text = (
            f"diffusers can't read {count_of(len(lost), 'layer')} of a LoRA file in kohya's layout: it leaves them out "
            f"without a message, or refuses the file ({', '.join(lost[:3])})"
        )
        remedy = "For diffusers set save_layout to diffusers, or exclude these layers."
        yield Finding("diffusers_leaves_out", "warning", text, remedy, (), "saving.save_layout")
    elif lacking := lacking_for_diffusers(facts, layers):
        text = (
            f"diffusers refuses a LoRA file in kohya's layout that has not all layers of each block, and this run "
            f"leaves out {count_of(len(lacking), 'layer')} ({', '.join(lacking[:3])})"
        )
        remedy = "For diffusers set save_layout to diffusers, or train these layers too."
        yield Finding("diffusers_refuses", "warning", text, remedy, (), "saving.save_layout")


def lacking_for_diffusers(facts: FamilyFacts, layers: Collection[str]) -> list[str]:
    """Module paths without which diffusers refuses a kohya file with these layers, in all blocks up to the last one."""
    attributes = "|".join(block.attribute for block in facts.block_classes)
    places = [match for path in layers if (match := re.fullmatch(rf"({attributes})\.(\d+)\.(.+)", path))]
    own = {match[3] for match in places}
    groups = facts.diffusers_together
    needed = [path for at, group in enumerate(groups) if not at or own & {*group} for path in group]
    last: dict[str, int] = {}
    for match in places:
        last[match[1]] = max(last.get(match[1], 0), int(match[2]))
    every = (f"{name}.{n}.{path}" for name, end in last.items() for n in range(end + 1) for path in needed)
    known = set(layers)
    return [path for path in every if path not in known]
