"""Averages LoRA files of one run into a file of the same keys, shapes and formats, as a run does at its end.

The mean is that of what the files change. Of a product of A and B it is factored again at the layer's own rank
(`backend.lora.average`); a layer that joins several, such as query, key and value in FLUX's own names, has a block of B
for each, and each block keeps its rank. All other numbers (lengths of a DoRA, factors of LoKr and LoHa, embeddings) are
averaged themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.tensor_names import clean_key
from backend.lora.average import STEPS, mean_product
from backend.lora_tools.lora_layers import RawLayer, RawLora
from backend.lora_tools.output import HASHES
from backend.lora_tools.resize import Watch, no_watch
from backend.models.common.tensor_sources import DTYPES

_REMEDY = "Give files of one run, or merge them: lora merge --lora A:0.5 --lora B:0.5."


@dataclass(frozen=True, kw_only=True, slots=True)
class Averaged:
    """The file. error: length of what the ranks can't hold, as a share of the mean change; None without a product."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    error: float | None


@torch.no_grad()
def averaged(files: Sequence[RawLora], device: torch.device, watch: Watch = no_watch) -> Averaged:
    """The mean of these files, worked out on `device`. Refused for files that differ in keys, shapes or alphas."""
    if len(files) < 2:
        raise Refused("an average is of at least two files", "Give several, such as the last three of a run.")
    first = files[0]
    for file in files[1:]:
        _refuse_unlike(first, file)
    factored = {layer.keys[part] for layer in first.layers.values() if _is_product(layer) for part in ("A", "B")}
    plain = [key for key in first.shapes if key not in factored]
    tensors = {key: _mean([file.tensor(key) for file in files], key, first) for key in plain}
    products = [layer for layer in first.layers.values() if _is_product(layer)]
    lost = whole = 0.0
    for number, layer in enumerate(products):
        watch(number, len(products), layer.stem)
        parts = [file.parts(file.layers[layer.stem]) for file in files]
        mean, own_lost, own_whole = _mean_of_blocks(
            [each["A"] for each in parts], [each["B"] for each in parts], device
        )
        for part, value in zip(("A", "B"), mean, strict=True):
            key = layer.keys[part]
            tensors[key] = value.to(DTYPES[first.formats[key]])
        scale = first.scale(layer) ** 2
        lost, whole = lost + own_lost * scale, whole + own_whole * scale
    watch(len(products), len(products), "")
    return Averaged(
        tensors={clean_key(key): tensors[key].contiguous() for key in first.shapes},
        metadata=_metadata(files),
        error=(lost / whole) ** 0.5 if whole else None,
    )


def _is_product(layer: RawLayer) -> bool:
    return layer.kind in ("lora", "dora")


def _refuse_unlike(first: RawLora, file: RawLora) -> None:
    """Refused where two files are not of one run: other keys, shapes, alphas or broken layers."""
    names = f"{first.path.name} and {file.path.name}"
    for layer in (*first.layers.values(), *file.layers.values()):
        if layer.lacking:
            raise Refused(f"{layer.stem} lacks {', '.join(layer.lacking)} in one of {names}", "Copy the files again.")
    for key, kind in (*first.others.items(), *file.others.items()):
        if kind in ("locon", "tucker"):
            text = f"one of {names} holds a convolution in three parts ({key}), which have no average of their own"
            raise Refused(text, "Merge them into a base model instead: lora merge --base.")
    if different := first.shapes.keys() ^ file.shapes.keys():
        raise Refused(f"{names} have different layers: {min(different)} is in one alone", _REMEDY)
    for key, shape in first.shapes.items():
        if file.shapes[key] != shape:
            raise Refused(f"{names} have other ranks or sizes in {key}: {shape} and {file.shapes[key]}", _REMEDY)
    for stem, layer in first.layers.items():
        if misfit := layer.misfit(first.shapes):
            raise Refused(f"the factors of {misfit} in {names} do not fit", "Give other files.")
        if first.scale(layer) != file.scale(file.layers[stem]):
            raise Refused(f"{names} have different alphas in {stem}", _REMEDY)


def _mean(values: Sequence[Tensor], key: str, first: RawLora) -> Tensor:
    """The mean in the format of the first file. Refused for NaN and infinity."""
    mean = torch.stack([value.float() for value in values]).mean(dim=0)
    if not torch.isfinite(mean).all():
        raise Refused(f"one of the files holds NaN or infinity in {key}", "Leave that file out.")
    return mean.to(DTYPES[first.formats[key]])


def _mean_of_blocks(
    a_s: Sequence[Tensor], b_s: Sequence[Tensor], device: torch.device
) -> tuple[tuple[Tensor, Tensor], float, float]:
    """A and B of the mean, with the squared lengths of what is lost and of the whole mean."""
    a, b = torch.zeros_like(a_s[0]), torch.zeros_like(b_s[0])
    lost = whole = 0.0
    for rows, ranks in _blocks(b_s):
        pair = mean_product([each[ranks].to(device) for each in a_s], [each[rows][:, ranks].to(device) for each in b_s])
        a[ranks] = pair.a.cpu()
        b[rows.unsqueeze(1), ranks] = pair.b.cpu()
        lost, whole = lost + pair.lost, whole + pair.whole
    return (a, b), lost, whole


def _blocks(b_s: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Rows and ranks of the blocks of B (out, rank, ...) that have no row in common, all others being 0.

    A rank whose column is 0 in all files belongs to the block before it, or to the first one.
    """
    used = (
        torch.stack([each.flatten(2).abs().amax(dim=2) if each.dim() > 2 else each.abs() for each in b_s]).amax(0) > 0
    )
    blocks: list[tuple[Tensor, list[int]]] = []
    for rank in range(used.shape[1]):
        rows, ranks = used[:, rank], [rank]
        if not rows.any() and blocks:
            blocks[-1][1].append(rank)
            continue
        touching = [block for block in blocks if not block[0].any() or bool((block[0] & rows).any())]
        for block in touching:
            rows, ranks = rows | block[0], [*block[1], *ranks]
        blocks = [*(block for block in blocks if all(block is not each for each in touching)), (rows, ranks)]
    if len(blocks) == 1:
        return [(torch.arange(used.shape[0]), torch.arange(used.shape[1]))]
    return [(rows.nonzero().flatten(), torch.tensor(sorted(ranks))) for rows, ranks in blocks]


def _metadata(files: Sequence[RawLora]) -> dict[str, str]:
    """That of the last file, with the steps or names of all."""
    kept = {key: value for key, value in files[-1].metadata.items() if key not in HASHES}
    steps = [file.metadata.get("ss_steps", "") for file in files]
    averaged_steps = {STEPS: json.dumps([int(step) for step in steps])} if all(map(str.isdigit, steps)) else {}
    return {**kept, **averaged_steps, "monotile.averaged": json.dumps([file.path.name for file in files])}
