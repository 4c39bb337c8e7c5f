"""Writes a trained denoiser as the base model's own kind of file, or as a folder in diffusers layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.files import write_atomic
from backend.base.tensor_names import is_clean
from backend.families.files.base_model import BaseModelFiles, header_of
from backend.families.files.layouts.inverse import NativeTensor, from_pieces, inverted
from backend.families.files.layouts.rules import QUANT_EXTRAS, SCALES
from backend.families.files.parts import Part
from backend.families.spec import FamilyFacts
from backend.models.common.tensor_file import Stored, write_tensors
from backend.models.common.tensor_sources import LazyTensor, file_tensors, open_part

SETTING = "saving.model_layout"
CONFIG = "config.json"
WEIGHTS = "diffusion_pytorch_model.safetensors"
"""What diffusers calls the two files of a denoiser."""


@dataclass(frozen=True)
class WholeModel:
    """What a file of a trained model holds. natives: its tensors of the denoiser, by the file's names. beside: tensors
    of the base's own file that are no part of the denoiser (VAE, text encoders), as they are."""

    natives: Mapping[str, NativeTensor]
    beside: Mapping[str, Stored]

    @classmethod
    def like(
        cls, base: BaseModelFiles, facts: FamilyFacts, shapes: Mapping[str, tuple[int, ...]], part: Part | None = None
    ) -> WholeModel:
        """A file like the base model's own; of a folder, one by the names of its project's files.

        shapes: of the denoiser's tensors, by diffusers' names. part: of the base model, the denoiser where it is None.
        Refused where the project's names are not known.
        """
        assert is_clean(shapes)
        part = part or facts.denoiser
        place = base.place(part)
        if place is not None and place.layout is not None:
            header = header_of(place.path)
            pieces = base.pieces(part)
            natives = from_pieces(pieces, {name: shape for name, (_, shape) in header.tensors.items()})
            used = {*natives, *(piece.scale for piece in pieces.values())}
            beside = {
                name: Stored(tensor.shape, tensor.dtype, tensor.read)
                for name, tensor in file_tensors(place.path).items()
                if name not in used and not _of_quantization(name, place.prefix)
            }
            if {each for native in natives.values() for each in native.parts} == shapes.keys():
                return cls(natives, beside)
        failure = "its names are those of diffusers alone"
        for layout in part.layouts:
            try:
                natives = inverted(layout, shapes)
            except ValueError as error:
                failure = str(error)
            else:
                return cls(natives, _rest_of_checkpoint(base, facts))
        text = f"{part.title} of {base.path} can't be written as a single file: {failure}"
        raise Refused(text, "Set saving.model_layout to diffusers.", SETTING)

    def stored(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Stored]:
        """All tensors of the file. tensors: the denoiser's, by diffusers' names. dtype: they are kept in."""

        def reading(native: NativeTensor) -> Callable[[], Tensor]:
            return lambda: _turned_back([tensors[name] for name in native.parts], native).to(dtype)

        own = {name: Stored(native.shape, dtype, reading(native)) for name, native in self.natives.items()}
        return {**own, **self.beside}


def _rest_of_checkpoint(base: BaseModelFiles, facts: FamilyFacts) -> dict[str, Stored]:
    """The other parts of the base model under the names that whole checkpoints of the family have for them, unchanged.

    Refused when a part is missing or broken.
    """
    rest: dict[str, Stored] = {}
    for name, (layout, prefix) in facts.checkpoint.items():
        tensors = {_published(each): lazy for each, lazy in open_part(base, facts.part(name)).tensors().items()}
        known = {each: lazy for each, lazy in tensors.items() if not _is_table(each)}
        try:
            natives = inverted(layout, {each: lazy.shape for each, lazy in known.items()}, prefix)
        except ValueError as error:
            text = f"{facts.part(name).title} of {base.path} can't be written into a checkpoint: {error}"
            raise Refused(text, "Set saving.model_layout to diffusers.", SETTING) from error
        for native_name, native in natives.items():
            rest[native_name] = _kept(native, [known[each] for each in native.parts])
    return rest


def _kept(native: NativeTensor, parts: Sequence[LazyTensor]) -> Stored:
    """A tensor of a part that is not trained, in the format in which the base has it."""
    return Stored(native.shape, parts[0].dtype, lambda: _turned_back([part.read() for part in parts], native))


def _published(name: str) -> str:
    """The name that CLIP's tensors have in published files; transformers left the first word out at times."""
    return f"text_model.{name}" if name.startswith(("embeddings.", "encoder.layers.", "final_layer_norm.")) else name


def _is_table(name: str) -> bool:
    """Whether it is a table that every program computes for itself."""
    return name.endswith(("position_ids", "logit_scale"))


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Stored], metadata: Mapping[str, str]
) -> None:
    """Fill `folder` as ``save_pretrained`` of diffusers does: config.json and one file of weights."""
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt", **metadata})
    write_atomic(folder / CONFIG, json.dumps(dict(config), indent=2, sort_keys=True) + "\n")


def _turned_back(parts: list[Tensor], native: NativeTensor) -> Tensor:
    """The tensor of the file, from the rows that reading makes of it."""
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    if native.turn == "swap_halves":
        whole = torch.cat(whole.chunk(2)[::-1])
    if native.turn == "transpose":
        whole = whole.T
    return whole.reshape(native.shape)


def _of_quantization(name: str, prefix: str) -> bool:
    """Whether a tensor of a file belongs to weights in 8 bits, which the trained file does not have."""
    inner = name.removeprefix(prefix)
    return name.startswith(prefix) and (
        inner.endswith(SCALES) or any(re.fullmatch(pattern, inner) for pattern in QUANT_EXTRAS)
    )
