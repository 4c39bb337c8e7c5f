"""Writes a trained denoiser as the base model's own kind of file, or as a folder in diffusers layout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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
ENCODER_WEIGHTS = "model.safetensors"
"""What transformers calls the file of a text encoder."""


@dataclass(frozen=True)
class WholeModel:
    """What a file of a trained model holds. natives: its tensors of what is trained, by the file's names. beside:
    tensors of the base's own file that are not trained (VAE, text encoders), as they are."""

    natives: Mapping[str, NativeTensor]
    beside: Mapping[str, Stored]

    @classmethod
    def like(
        cls,
        base: BaseModelFiles,
        facts: FamilyFacts,
        shapes: Mapping[str, tuple[int, ...]],
        texts: Sequence[str] = (),
        part: Part | None = None,
    ) -> WholeModel:
        """A file like the base model's own; of a folder, one by the names of its project's files.

        shapes: of the denoiser's tensors, by diffusers' names. texts: text encoders (parts) that are trained too, whose
        tensors go by ``part.name``. part: of the base model that is trained, the denoiser where it is None. Refused
        where the project's names are not known.
        """
        assert is_clean(shapes)
        part = part or facts.denoiser
        place = base.place(part)
        if place is not None and place.layout is not None:
            header = header_of(place.path)
            pieces = base.pieces(part)
            natives = from_pieces(pieces, {name: shape for name, (_, shape) in header.tensors.items()})
            encoders = _text_natives(base, facts, texts, place.path)
            used = {*natives, *(piece.scale for piece in pieces.values())}
            beside = {
                name: Stored(tensor.shape, tensor.dtype, tensor.read)
                for name, tensor in file_tensors(place.path).items()
                if name not in used and name not in encoders and not _of_quantization(name, place.prefix)
            }
            if {each for native in natives.values() for each in native.parts} == shapes.keys():
                return cls(natives | encoders, beside)
        failure = "its names are those of diffusers alone"
        for layout in part.layouts:
            try:
                natives = inverted(layout, shapes)
            except ValueError as error:
                failure = str(error)
            else:
                encoders = _text_natives(base, facts, texts)
                rest = _rest_of_checkpoint(base, facts)
                return cls(natives | encoders, {name: each for name, each in rest.items() if name not in encoders})
        text = f"{part.title} of {base.path} can't be written as a single file: {failure}"
        raise Refused(text, "Set saving.model_layout to diffusers.", SETTING)

    def stored(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Stored]:
        """All tensors of the file. tensors: the denoiser's, by diffusers' names. dtype: they are kept in."""

        def reading(native: NativeTensor) -> Callable[[], Tensor]:
            return lambda: _turned_back([tensors[name] for name in native.parts], native).to(dtype)

        own = {name: Stored(native.shape, dtype, reading(native)) for name, native in self.natives.items()}
        return {**own, **self.beside}


def text_shapes(base: BaseModelFiles, facts: FamilyFacts, texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of text encoders (parts) of the base model, by ``part.name`` with published names."""
    return {
        f"{part}.{published(name)}": tuple(lazy.shape)
        for part in texts
        for name, lazy in open_part(base, facts.part(part)).tensors().items()
        if not _is_table(name)
    }


def text_tensors(encoders: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """The live tensors of loaded text encoders (part -> model), by the same names."""
    return {
        f"{part}.{published(name)}": value.detach()
        for part, module in encoders.items()
        for name, value in module.state_dict().items()
        if not _is_table(name)
    }


def _text_natives(
    base: BaseModelFiles, facts: FamilyFacts, texts: Sequence[str], file: Path | None = None
) -> dict[str, NativeTensor]:
    """The tensors of a file that hold text encoders, by its names: those of `file` where it has them, else those of
    whole checkpoints of the family. Refused where neither is known."""
    natives: dict[str, NativeTensor] = {}
    for name in texts:
        part = facts.part(name)
        place = base.place(part)
        shapes = {each.removeprefix(f"{name}."): shape for each, shape in text_shapes(base, facts, [name]).items()}
        if place is not None and place.layout is not None and place.path == file:
            own = from_pieces(base.pieces(part), {each: s for each, (_, s) in header_of(place.path).tensors.items()})
        elif name in facts.checkpoint:
            layout, prefix = facts.checkpoint[name]
            try:
                own = inverted(layout, shapes, prefix)
            except ValueError as error:
                raise _no_checkpoint(base, facts, name, error) from error
        else:
            raise _no_checkpoint(base, facts, name, ValueError("its names in whole checkpoints are not known"))
        for native_name, native in own.items():
            parts = tuple(published(each) for each in native.parts)
            if all(each in shapes for each in parts):
                natives[native_name] = replace(native, parts=tuple(f"{name}.{each}" for each in parts))
    return natives


def _no_checkpoint(base: BaseModelFiles, facts: FamilyFacts, name: str, error: ValueError) -> Refused:
    text = f"{facts.part(name).title} of {base.path} can't be written into a checkpoint: {error}"
    return Refused(text, "Set saving.model_layout to diffusers.", SETTING)


def _rest_of_checkpoint(base: BaseModelFiles, facts: FamilyFacts) -> dict[str, Stored]:
    """The other parts of the base model under the names that whole checkpoints of the family have for them, unchanged.

    Refused when a part is missing or broken.
    """
    rest: dict[str, Stored] = {}
    for name, (layout, prefix) in facts.checkpoint.items():
        tensors = {published(each): lazy for each, lazy in open_part(base, facts.part(name)).tensors().items()}
        known = {each: lazy for each, lazy in tensors.items() if not _is_table(each)}
        try:
            natives = inverted(layout, {each: lazy.shape for each, lazy in known.items()}, prefix)
        except ValueError as error:
            raise _no_checkpoint(base, facts, name, error) from error
        for native_name, native in natives.items():
            rest[native_name] = _kept(native, [known[each] for each in native.parts])
    return rest


def _kept(native: NativeTensor, parts: Sequence[LazyTensor]) -> Stored:
    """A tensor of a part that is not trained, in the format in which the base has it."""
    return Stored(native.shape, parts[0].dtype, lambda: _turned_back([part.read() for part in parts], native))


def published(name: str) -> str:
    """The name that CLIP's tensors have in published files; transformers left the first word out at times."""
    return f"text_model.{name}" if name.startswith(("embeddings.", "encoder.layers.", "final_layer_norm.")) else name


def _is_table(name: str) -> bool:
    """Whether it is a table that every program computes for itself."""
    return name.endswith(("position_ids", "logit_scale"))


def write_encoder(folder: Path, encoder: Any, tensors: Mapping[str, Stored], metadata: Mapping[str, str]) -> None:
    """Fill `folder` as ``save_pretrained`` of transformers does for a text encoder."""
    write_tensors(folder / ENCODER_WEIGHTS, tensors, {"format": "pt", **metadata})
    write_atomic(folder / CONFIG, encoder.config.to_json_string())


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
