"""Merges several LoRA files into one: exactly, by putting their ranks side by side, or factored to a smaller rank."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.tensor_names import clean_key
from backend.lora.comfyui_keys import Format, LayerNames, bundled_embedding, family_of_names
from backend.lora.load import read_lora
from backend.lora.save import LayerWeights, in_format
from backend.lora_tools.base_models import feature_size, guessed_family
from backend.lora_tools.factors import RankChoice, factors_of_product
from backend.lora_tools.lora_layers import RawLora, plain_layers
from backend.lora_tools.output import HASHES
from backend.lora_tools.resize import Watch, no_watch

Change = tuple[Tensor, Tensor]
"""A (rank, in, ...) and B (out, rank, ...) whose product is a change at strength 1; float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Combined:
    """The merged file. error: of all changes together, as a share of their norm; 0 where it is exact."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    ranks: dict[str, int]
    error: float


def combined(
    files: Sequence[tuple[RawLora, float]],
    choice: RankChoice | None,
    device: torch.device,
    watch: Watch = no_watch,
    form: Format | None = None,
) -> Combined:
    """One LoRA whose change is the sum of these, each times its strength; its numbers are float32.

    choice: of the ranks, None for the sum of them. form: how keys are named, None for as in the first file. Files that
    have no key in common, and those that get another form, are named by the model that they are for, as it was
    published. Refused for other kinds than LoRA, for LoRAs of two families, and for layers of another size in one file
    than in another.
    """
    _refuse_two_families([file for file, _ in files])
    first = files[0][0]
    keeps = form is None and _share_names([file for file, _ in files])
    names = None if keeps else _names_of([file for file, _ in files])
    changes = [(_by_stem(file) if names is None else _by_path(file, names), strength) for file, strength in files]
    layers: dict[str, LayerWeights] = {}
    whole, lost = 0.0, 0.0
    stems = list(dict.fromkeys(stem for each, _ in changes for stem in each))
    for number, stem in enumerate(stems):
        watch(number, len(stems), stem)
        a, b = _side_by_side([(each[stem], strength) for each, strength in changes if stem in each], stem)
        if choice is not None:
            factors = factors_of_product(a.flatten(1).to(device), b.flatten(1).to(device), choice)
            whole += factors.norm**2
            lost += factors.norm**2 * max(0.0, 1 - factors.kept**2)
            a = factors.a.cpu().reshape(-1, *a.shape[1:])
            b = factors.b.cpu().reshape(b.shape[0], -1, *b.shape[2:])
        layers[stem] = LayerWeights(a, b, 1.0)
    watch(len(stems), len(stems), "")
    form = form or _form(first)
    tensors = _with_endings(layers, form) if names is None else in_format(layers, names, form)
    tensors |= _embeddings([file for file, _ in files])
    ranks = {stem: one.rank for stem, one in layers.items()}
    error = math.sqrt(lost / whole) if whole else 0.0
    return Combined(tensors=tensors, metadata=_metadata(files, ranks, error), ranks=ranks, error=error)


def _by_stem(file: RawLora) -> dict[str, Change]:
    """What a key has before its ending -> the change."""
    changes = {}
    for layer in plain_layers(file, "only LoRAs can be merged into one"):
        if layer.kind == "dora":
            text = f"{file.path.name} is a DoRA ({layer.stem}), whose change depends on the base model"
            raise Refused(text, "Merge it into a base model instead: lora merge --base.")
        parts = file.parts(layer)
        changes[layer.stem] = parts["A"], parts["B"] * file.scale(layer)
    if file.others:
        key = next(iter(file.others))
        raise Refused(f"{file.path.name} holds more than a LoRA ({key})", "Merge it into a base model instead.")
    return changes


def _by_path(file: RawLora, names: LayerNames) -> dict[str, Change]:
    """Module path in diffusers -> the change; matrices, of convolutions too."""
    _by_stem(file)  # refuses other kinds, by name
    try:
        read = read_lora(file.path, names)
    except Refused as error:
        raise Refused(error.text, error.remedy) from error
    sizes = {stem: layer for stem, layer in file.layers.items() if len(file.size(layer)["A"]) == 4}
    if sizes:
        text = f"{file.path.name} has convolutions ({next(iter(sizes))}), and its keys are named in another way"
        raise Refused(text, "Give files of one program, or merge them into a base model.")
    return {path: (a, b * read.scales[path]) for path, (a, b) in read.pairs.items()}


def _side_by_side(changes: Sequence[tuple[Change, float]], stem: str) -> Change:
    """The factors of the sum: all rows of A, and all columns of B times their strength."""
    (a, b), _ = changes[0]
    for (other_a, other_b), _ in changes[1:]:
        if other_a.shape[1:] != a.shape[1:] or other_b.shape[0] != b.shape[0]:
            one, two = (f"{list(y.shape)} x {list(x.shape)}" for x, y in ((a, b), (other_a, other_b)))
            raise Refused(f"{stem} is {one} in one file and {two} in another", "Give LoRAs of the same base model.")
    return torch.cat([each[0] for each, _ in changes]), torch.cat([each[1] * times for each, times in changes], dim=1)


def _with_endings(layers: Mapping[str, LayerWeights], form: Format) -> dict[str, Tensor]:
    """The tensors under the stems that they have, with the endings of `form`."""
    down, up = (".lora_A", ".lora_B") if form == "diffusers" else (".lora_down", ".lora_up")
    tensors: dict[str, Tensor] = {}
    for stem, one in layers.items():
        tensors[f"{stem}{down}.weight"], tensors[f"{stem}{up}.weight"] = one.a, one.b
        if form == "kohya":
            tensors[f"{stem}.alpha"] = torch.tensor(float(one.rank))
    return tensors


def _embeddings(files: Sequence[RawLora]) -> dict[str, Tensor]:
    """The embeddings that the files bring along. Refused for one word with two meanings."""
    owners: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    for file in files:
        for word in file.embeddings:
            if word in owners:
                text = f"{owners[word]} and {file.path.name} both hold an embedding of {word}"
                raise Refused(text, "Merge them into a base model instead, or give one of them.")
            owners[word] = file.path.name
        keys = {clean_key(key): key for key in file.shapes}
        tensors |= {clean: file.tensor(key).clone() for clean, key in keys.items() if bundled_embedding(clean)}
    return tensors


def _form(file: RawLora) -> Format:
    """With which endings a file's keys are written."""
    layer = next(iter(file.layers.values()))
    return "diffusers" if ".lora_A" in layer.keys.get("A", "") else "kohya"


def _share_names(files: Sequence[RawLora]) -> bool:
    """Whether each file has a layer under a name that the first one has too."""
    return all(set(files[0].layers) & set(file.layers) for file in files[1:])


def _names_of(files: Sequence[RawLora]) -> LayerNames:
    """The names of the layers of the model that the files are for. Refused where it can't be told."""
    file = files[0]
    stems = {stem: feature_size(file.size(layer).items()) for stem, layer in file.layers.items()}
    guess = guessed_family(stems, file.metadata)
    if guess is None:
        text = (
            f"the family of {' and '.join(each.path.name for each in files)} is not known, so neither are their names"
        )
        raise Refused(text, "Give LoRAs of one family, with the names of one program, and leave out --layout.")
    return guess[2]


def _refuse_two_families(files: Sequence[RawLora]) -> None:
    known = [(file, family_of_names(file.layers)) for file in files]
    for file, title in known[1:]:
        if title and known[0][1] and title != known[0][1]:
            text = f"{known[0][0].path.name} is a LoRA of {known[0][1]} and {file.path.name} one of {title}"
            raise Refused(text, "Give LoRAs of the same base model.")


def _metadata(files: Sequence[tuple[RawLora, float]], ranks: Mapping[str, int], error: float) -> dict[str, str]:
    first = files[0][0].metadata
    of_model = ("ss_base_model_version", "ss_v2", "modelspec.architecture", "modelspec.implementation")
    sources = [{"file": file.path.name, "strength": strength} for file, strength in files]
    rank = max(ranks.values(), default=0)
    return {
        **{key: first[key] for key in of_model if key in first and key not in HASHES},
        "ss_network_module": "monotile.lora",
        "ss_network_dim": str(rank),
        "ss_network_alpha": str(float(rank)),
        "modelspec.sai_model_spec": "1.0.1",
        "monotile.merged": json.dumps({"sources": sources, "error": round(error, 6)}),
    }
