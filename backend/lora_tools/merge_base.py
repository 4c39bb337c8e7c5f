"""Merges LoRA files into a base model and writes the result in the layout that the model has, tensor by tensor."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.files import atomic_folder, flush_folder
from backend.families.clip_words import clip_words
from backend.families.files.base_model import header_of
from backend.families.files.layouts.rules import Piece
from backend.lora.file_contents import inspect_lora
from backend.lora_tools.base_models import OpenModel, Stored
from backend.lora_tools.lora_layers import read_raw
from backend.lora_tools.output import HASHES, check_room
from backend.lora_tools.resize import Watch, no_watch
from backend.models.common import tensor_file
from backend.models.common.base_weights import BaseWeights
from backend.models.common.tensor_sources import FileTensor, LazyTensor, file_tensors

_WEIGHTS = (".safetensors", ".bin", ".pt", ".ckpt", ".index.json", ".msgpack")


@dataclass(frozen=True, kw_only=True, slots=True)
class MergedModel:
    """What was written. changed: tensors with a change. left_out: what of the files is not in it, in words."""

    changed: int
    left_out: list[str]


def merge_into_base(
    model: OpenModel,
    files: Sequence[tuple[Path, float]],
    out: Path,
    device: torch.device,
    watch: Watch = no_watch,
) -> MergedModel:
    """Write the model with these LoRAs, each times its strength, to `out`: a folder for a folder, a file for a file.

    Every tensor keeps its name and format. Sums are made in float32 on `device`. Refused, before anything is written,
    for a file of another model, and for weights that are stored with a scale.
    """
    changes = BaseWeights(files, model.names, clip_words(model.facts))
    left_out = _checked(files, model)
    merged: dict[str, dict[str, LazyTensor]] = {}
    for part in model.parts():
        stored = model.stored(part)
        plain = {name: one.tensor for name, one in stored.items()}
        new = changes.merged(part.name, plain, device)
        merged[part.name] = {name: new[name] for name in plain if new[name] is not plain[name]}
    count = sum(len(each) for each in merged.values())
    progress = _Progress(count, watch)
    path = model.files.path
    assert path is not None
    if path.is_dir():
        _write_folder(model, merged, out, files, progress)
    else:
        _write_file(model, merged, out, files, progress)
    watch(count, count, "")
    return MergedModel(changed=count, left_out=left_out)


class _Progress:
    """Counts the changed tensors that are written."""

    def __init__(self, total: int, watch: Watch) -> None:
        self.total, self.done, self._watch = total, 0, watch

    def reading(self, name: str, read: Callable[[], Tensor]) -> Tensor:
        self._watch(self.done, self.total, name)
        value = read()
        self.done += 1
        return value


def _checked(files: Sequence[tuple[Path, float]], model: OpenModel) -> list[str]:
    """What is left out of each file, in words. Refused for what is no LoRA of the model, and for NaN and infinity."""
    held = {clip_words(model.facts).get(part.name) for part in model.parts()}
    left_out = []
    if model.other_expert is not None:
        folder, noise = model.other_expert
        left_out.append(f"the expert for {noise} noise ({folder}) stays as it is; --expert {noise} merges into it")
    for path, _ in files:
        try:
            contents = inspect_lora(path, model.names)
            raw = read_raw(path)
            for layer in raw.layers.values():
                raw.parts(layer)
        except Refused as error:
            raise Refused(error.text, error.remedy) from error
        lost = [each for each in contents.layers if each.startswith("te") and each.partition(".")[0] not in held]
        left_out += [f"{path.name}: {what}" for what in contents.left_out]
        if lost:
            left_out.append(f"{path.name}: the LoRA of a text encoder that the model lacks ({len(lost)} layers)")
    return left_out


def _write_folder(
    model: OpenModel,
    merged: Mapping[str, Mapping[str, LazyTensor]],
    out: Path,
    files: Sequence[tuple[Path, float]],
    progress: _Progress,
) -> None:
    """A copy of the folder, with the weights of the changed parts written again into files of the same names."""
    source = model.files.path
    assert source is not None
    parts = {part.name: part for part in model.parts() if merged[part.name]}
    renewed = {(source / part.folder).resolve() for part in parts.values()}
    check_room(out, sum(path.stat().st_size for path in source.rglob("*") if path.is_file()))

    def ignored(folder: str, names: list[str]) -> list[str]:
        if Path(folder).resolve() not in renewed:
            return []
        return [name for name in names if name.endswith(_WEIGHTS)]

    with atomic_folder(out) as temporary:
        shutil.copytree(source, temporary, ignore=ignored, copy_function=_copied, dirs_exist_ok=True)
        for name, part in parts.items():
            folder = temporary / part.folder
            for path in model.files.weight_files(part):
                _rewrite(path, folder / path.name, _by_own_name(model.stored(part), merged[name]), files, progress)
            _copy_index(source / part.folder, folder)
            flush_folder(folder)


def _copied(source: str, out: str) -> None:
    """Copy a file and flush it, so that it is there when the folder is. A read-only one gives a plain copy."""
    shutil.copyfile(source, out)
    with open(out, "rb+") as stream:
        os.fsync(stream.fileno())


def _copy_index(source: Path, folder: Path) -> None:
    """The index of the shards that were written."""
    for path in source.glob("*.index*.json"):
        named = set(json.loads(path.read_text(encoding="utf-8")).get("weight_map", {}).values())
        if named and all((folder / name).is_file() for name in named):
            _copied(str(path), str(folder / path.name))


def _by_own_name(stored: Mapping[str, Stored], merged: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    return {stored[name].name: tensor for name, tensor in merged.items()}


def _rewrite(
    path: Path, out: Path, merged: Mapping[str, LazyTensor], files: Sequence[tuple[Path, float]], progress: _Progress
) -> None:
    """The file at `path` with other values for the tensors of `merged`."""
    entries = {
        name: _entry(name, tensor, merged[name].read, progress) if name in merged else _as_it_is(tensor)
        for name, tensor in file_tensors(path).items()
    }
    _write(out, entries, path, files)


def _write_file(
    model: OpenModel,
    merged: Mapping[str, Mapping[str, LazyTensor]],
    out: Path,
    files: Sequence[tuple[Path, float]],
    progress: _Progress,
) -> None:
    """The single file with other values for the rows that are merged."""
    path = model.files.path
    assert path is not None
    check_room(out, path.stat().st_size)
    stored = file_tensors(path)
    rows: dict[str, list[tuple[Piece, LazyTensor]]] = {}
    for part in (each for each in model.parts() if merged[each.name]):
        pieces, own = model.files.pieces(part), model.stored(part)
        for name, tensor in merged[part.name].items():
            piece = pieces[own[name].name]
            if piece.scale is not None:
                text = f"{path.name} keeps {piece.source} in 8 bits with a scale, into which nothing can be merged"
                raise Refused(text, "Merge into the model in bf16 or fp16.")
            rows.setdefault(piece.source, []).append((piece, tensor))
    entries = {
        name: _entry(name, tensor, partial(_replaced, tensor, rows[name]), progress)
        if name in rows
        else _as_it_is(tensor)
        for name, tensor in stored.items()
    }
    progress.total = len(rows)
    _write(out, entries, path, files)


def _entry(name: str, tensor: FileTensor, read: Callable[[], Tensor], progress: _Progress) -> tensor_file.Stored:
    def changed() -> Tensor:
        return tensor_file.cast(name, progress.reading(name, read), tensor.dtype)

    return tensor_file.Stored(tuple(tensor.shape), tensor.dtype, changed)


def _as_it_is(tensor: FileTensor) -> tensor_file.Stored:
    return tensor_file.Stored(tuple(tensor.shape), tensor.dtype, tensor.read)


def _replaced(tensor: FileTensor, rows: Sequence[tuple[Piece, LazyTensor]]) -> Tensor:
    """The stored tensor, float32, with its rows replaced by the merged ones, turned back to how it has them."""
    value = tensor.read().to(torch.float32, copy=True)
    for piece, merged in rows:
        own = merged.read().cpu()
        start, end = piece.start or 0, value.shape[0] if piece.end is None else piece.end
        if piece.turn == "swap_halves":
            own = torch.cat(own.chunk(2)[::-1])
        elif piece.turn == "transpose":
            own = own.T
        value[start:end] = own.reshape(value[start:end].shape)
    return value


def _write(
    out: Path, entries: Mapping[str, tensor_file.Stored], source: Path, files: Sequence[tuple[Path, float]]
) -> None:
    metadata = {key: value for key, value in header_of(source).metadata.items() if key not in HASHES}
    metadata["monotile.merged"] = json.dumps([{"file": path.name, "strength": times} for path, times in files])
    try:
        tensor_file.write_tensors(out, entries, metadata)
    except ValueError as error:
        raise Refused(
            f"{out.name} can't be written: {error}", "Use smaller strengths, or a base model in bf16."
        ) from error
