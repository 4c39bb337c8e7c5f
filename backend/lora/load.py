"""Reading LoRA files, and going on from one."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from backend.compile.state_dict import clean_keys
from backend.lora.inject import Lora
from backend.lora.keys import kohya_keys, parse_key
from backend.refused import Refused

log = logging.getLogger(__name__)

_SETTING = "network.network_weights"


@dataclass(frozen=True)
class LoraFile:
    """A LoRA as it lies in a file. pairs: module path -> A (r, in), B (out, r); scales: path -> alpha / r."""

    pairs: dict[str, tuple[Tensor, Tensor]]
    scales: dict[str, float]
    metadata: dict[str, str]


def read_lora(path: Path, layers: Iterable[str] = ()) -> LoraFile:
    """The LoRA at `path` in one of our layouts, with or without alpha keys (absent: alpha = rank), on the CPU.

    layers: module paths that a file in sd-scripts' layout may name, where the family has it.

    Keys are cleaned of ``_orig_mod``. Refused, with the reason, for another layout or a broken file.
    """
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            metadata = dict(file.metadata() or {})
            tensors = clean_keys({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        raise Refused(f"{path} can't be read: {error}", "Give a LoRA file that was saved here.", _SETTING) from error
    halves: dict[str, dict[str, Tensor]] = {}
    foreign, kohya = [], kohya_keys(layers)
    for key, tensor in tensors.items():
        parsed = kohya.get(key) or parse_key(key)
        if parsed is None:
            foreign.append(key)
        else:
            halves.setdefault(parsed[0], {})[parsed[1]] = tensor
    broken = [where for where, found in halves.items() if not {"A", "B"} <= found.keys()]
    if foreign or broken or not halves:
        named = ", ".join((foreign + broken)[:3]) or "no LoRA keys"
        text = f"{path} is not a LoRA in diffusers layout ({named})"
        raise Refused(text, "Give a LoRA file that was saved here.", _SETTING)
    pairs = {where: (found["A"].float(), found["B"].float()) for where, found in halves.items()}
    scales = {
        where: float(found["alpha"]) / found["A"].shape[0] if "alpha" in found else 1.0
        for where, found in halves.items()
    }
    return LoraFile(pairs, scales, metadata)


def continue_from(lora: Lora, file: LoraFile) -> list[str]:
    """Set `lora` to the LoRA of `file`, at the same strength whatever its rank and alpha; return what to say about it.

    A smaller rank is padded: the added rows of A keep their random start and the added columns of B are 0, so that the
    function is the same. Refused for a larger rank, other shapes, and layers that are no targets: they would be lost.
    """
    lost = [path for path in file.pairs if path not in lora.layers]
    if lost:
        text = (
            f"The LoRA to continue from also changes {len(lost)} layers that are no targets now ({', '.join(lost[:3])})"
        )
        raise Refused(text, "Add them to targets_include, or start from another LoRA.", _SETTING)
    ranks = set()
    with torch.no_grad():
        for path, (a, b) in file.pairs.items():
            live_a, live_b = lora.pair(path)
            rank = a.shape[0]
            if a.shape[1] != live_a.shape[1] or b.shape[0] != live_b.shape[0] or b.shape[1] != rank:
                size = f"{tuple(b.shape)} x {tuple(a.shape)}"
                text = f"{path} is {size} in the LoRA to continue from, another size than here"
                raise Refused(text, "Use a LoRA of the same base model.", _SETTING)
            if rank > lora.rank:
                text = f"The LoRA to continue from has rank {rank}, larger than network_dim {lora.rank}"
                raise Refused(text, f"Set network_dim to {rank} or more.", _SETTING)
            # a convolution's have two dimensions more, which some programs leave out
            live_a[:rank].copy_(a.reshape(live_a[:rank].shape))
            live_b.zero_()
            live_b[:, :rank].copy_((b * (file.scales[path] / lora.scale)).reshape(live_b[:, :rank].shape))
            ranks.add(rank)
    lora.publish()
    said = []
    if ranks != {lora.rank}:
        old = ", ".join(str(rank) for rank in sorted(ranks))
        said.append(
            f"The LoRA to continue from has rank {old}; it was padded to {lora.rank} and draws the same until trained."
        )
    fresh = [path for path in lora.layers if path not in file.pairs]
    if fresh:
        said.append(
            f"{len(fresh)} target layers are not in the LoRA to continue from and start fresh ({fresh[0]} first)."
        )
    for sentence in said:
        log.warning(sentence)
    return said
