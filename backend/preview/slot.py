"""Holds LoRAs in a model by copying their numbers: what is compiled sees the same tensors at the same places.

Plain LoRAs go into a slot, an adapter of the largest rank over all layers that one of them changes. Smaller ones are
padded with zeros, several stand one below the other, and the strength is part of B. Other kinds (DoRA, LoKr, LoHa) are
no product of two small matrices: they are merged into their layers, of which a copy is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from backend.base.errors import Refused
from backend.lora.file_contents import TITLES
from backend.lora.inject import Lora, inject
from backend.lora.load import LoraFile
from backend.memory.quantized_linear import QuantizedLinear
from backend.models.common.base_weights import changed
from backend.preview.loras import Room

Used = Sequence[tuple[LoraFile, float]]
"""LoRAs with their strengths."""


class LoraSlot:
    """The LoRAs of one model: a denoiser, or text encoders.

    room: what plain LoRAs need at most. cast: as in `inject`. is_mine: whether a layer's path is one of this model.
    is_fixed: whether a layer's weights can't be changed, since they are streamed from the host.
    """

    def __init__(
        self,
        model: nn.Module,
        room: Room,
        *,
        cast: bool,
        device: torch.device,
        is_mine: Callable[[str], bool],
        is_fixed: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self.room = room
        self._model, self._is_mine, self._is_fixed = model, is_mine, is_fixed
        self._kept: dict[str, Tensor] = {}
        self.lora: Lora | None = None
        if not room.layers:
            model.requires_grad_(False)
            return
        paths = [name for name, _ in model.named_modules() if name in room.layers]
        # alpha = rank: nothing but A and B says how strongly a LoRA acts, and neither is part of a compiled graph
        self.lora = inject(model, paths, rank=room.rank, alpha=room.rank, dropout=0.0, seed=0, cast=cast, device=device)

    @torch.no_grad()
    def hold(self, used: Used) -> None:
        """Let the model draw with exactly these. Refused where one can't be held; then it holds none."""
        self._clear()
        try:
            self._fill([(file, strength) for file, strength in used if file.kind == "lora"])
            for file, strength in used:
                if file.kind != "lora":
                    self._merge(file, strength)
        except Refused:
            self._clear()
            raise

    def _clear(self) -> None:
        for path in self.lora.layers if self.lora is not None else ():
            for part in self.lora.live(path):
                part.zero_()
        for path, before in self._kept.items():
            self._layer(path).weight.copy_(before)
        self._kept.clear()

    def _fill(self, used: Used) -> None:
        """Put each LoRA's ranks behind those of the one before it."""
        begin: dict[str, int] = {}
        for file, strength in used:
            for path, (a, b) in file.pairs.items():
                if not self._is_mine(path):
                    continue
                assert self.lora is not None and path in self.lora.layers, f"{path} is not in the slot"
                first = begin.get(path, 0)
                begin[path] = last = first + a.shape[0]
                slot_a, slot_b = self.lora.live(path)
                slot_a[first:last].copy_(a.reshape(slot_a[first:last].shape))
                scaled = b * (file.scales[path] * strength)
                slot_b[:, first:last].copy_(scaled.reshape(slot_b[:, first:last].shape))

    def _merge(self, file: LoraFile, strength: float) -> None:
        for path in filter(self._is_mine, file.scales):
            layer = self._layer(path)
            if self._is_fixed(path) or isinstance(layer, QuantizedLinear):
                what = "streamed from RAM (blocks_to_swap)" if self._is_fixed(path) else "quantized"
                text = f"{TITLES[file.kind]} is merged into the base model's weights, and those of {path} are {what}"
                remedy = "Turn blocks_to_swap and base_quantization off for the preview, or use a plain LoRA."
                raise Refused(text, remedy)
            weight = layer.weight
            if path not in self._kept:
                self._kept[path] = weight.detach().to("cpu", copy=True)
            whole = changed(weight.float().flatten(1), file, path, strength)
            weight.copy_(whole.reshape(weight.shape))

    def _layer(self, path: str) -> nn.Module:
        """The layer of the base model at `path`, that in a LoRA's layer where there is one."""
        layer = self._model.get_submodule(path)
        return getattr(layer, "base_layer", layer)
