"""Splits parameters for LoRA+: B learns at a multiple of A's rate (Hayou et al., arXiv 2402.12354)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from backend.config.sections.network import NetworkSection

if TYPE_CHECKING:
    from backend.lora.inject import Lora


def ratios(network: NetworkSection) -> tuple[float, float] | None:
    """B's rate in A's, of the denoiser and of the text encoders; None where LoRA+ is off."""
    own = network.loraplus_text_encoder_lr_ratio
    both = (network.loraplus_lr_ratio, network.loraplus_lr_ratio if own is None else own)
    return None if both == (1, 1) else both


def groups(
    lora: Lora, paths: Sequence[str], rate: float | None, usual: float, ratio: float | None
) -> list[dict[str, Any]]:
    """The layers `paths` as an optimizer takes them: one group, or that of all A, with lengths of a DoRA, and of all B.

    rate: of the group, of A where there are two; None for that of the optimizer, which is `usual`. ratio: B's rate in
    A's; None makes one group.
    """
    own = {} if rate is None else {"lr": rate}
    if ratio is None:
        return [{"params": [half for path in paths for half in lora.parts(path).values()], **own}]
    named = [(name, part) for path in paths for name, part in lora.parts(path).items()]
    slow, fast = ([part for name, part in named if (name == "lora_B.weight") == b] for b in (False, True))
    return [{"params": slow, **own}, {"params": fast, "lr": (usual if rate is None else rate) * ratio}]
