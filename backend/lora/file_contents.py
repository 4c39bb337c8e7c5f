"""Reads what a LoRA, DoRA, LoKr or LoHa file holds from its header: a wrong file is refused before anything loads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors

from backend.base.errors import Refused
from backend.base.tensor_names import clean_key
from backend.config.layer_patterns import MAGNITUDE, Kind
from backend.dataset.items import count_of
from backend.families.files.headers import Unreadable, read_header
from backend.families.files.kinds import kind_of
from backend.lora.comfyui_keys import (
    LayerNames,
    bundled_embedding,
    family_of_names,
    is_of_conditioner,
    is_of_text,
    kind_of_key,
    split_factor,
    split_key,
)
from backend.lora.native_names import Native

SETTING = "network.network_weights"
_OTHERS = {
    "locon": "a LoRA of convolutions in three parts",
    "tucker": "factors of convolutions in three parts",
    "diff": "differences of whole weights",
    "oft": "an OFT",
    "bias": "a LoRA with biases",
}
TITLES: dict[Kind, str] = {"lora": "a LoRA", "dora": "a DoRA", "lokr": "a LoKr", "loha": "a LoHa"}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class FileLayer:
    """A layer's change in the file. keys: name of a part -> key there. rank: there; None where nothing tells it.

    Parts are ``A``, ``B`` of a LoRA and ``dora_scale`` of a DoRA, the factors by LyCORIS' names else, and perhaps
    ``alpha``. large: it is a
    convolution larger than one pixel.
    """

    keys: Mapping[str, str]
    native: Native | None
    rank: int | None
    large: bool = False


@dataclass(frozen=True)
class Contents:
    """What a file holds. left_out: what of it can't be trained here, in words. shapes: of all its tensors, by key."""

    layers: dict[str, FileLayer]
    left_out: list[str]
    metadata: dict[str, str]
    kind: Kind = "lora"
    shapes: Shapes = field(default_factory=dict)


def inspect_lora(path: Path, names: LayerNames) -> Contents:
    """Which layers the file at `path` changes.

    Refused, with the reason, for what is none of these kinds and for one of another model.
    """
    shapes, metadata = shapes_in(path)
    embeddings = {key: name for key in shapes if (name := bundled_embedding(key)) is not None}
    kind, parts_of = _by_layer(path, {key: shape for key, shape in shapes.items() if key not in embeddings})
    elsewhere = [stem for stem in parts_of if stem not in names.stems]
    text = [stem for stem in elsewhere if is_of_text(stem)]
    conditioner = [stem for stem in elsewhere if is_of_conditioner(stem)]
    unknown = []
    layers: dict[str, FileLayer] = {}
    for stem, keys in parts_of.items():
        if stem in text or stem in conditioner:
            continue
        _refuse_broken(path, kind, stem, keys)
        for layer, native in names.stems.get(stem, ()):
            layers[layer] = _layer_of(path, kind, layer, native, keys, names, shapes)
        if stem not in names.stems:
            unknown.append(stem)
    _refuse_foreign(path, unknown, parts_of, layers)
    left_out = []
    if text:
        left_out.append(f"the LoRA of text encoders ({len(text)} layers), which are not trained here")
    if conditioner:
        text_layers = count_of(len(conditioner), "layer")
        left_out.append(f"the LoRA of the text conditioner llm_adapter ({text_layers}), which is not trained here")
    if embeddings:
        words = sorted(set(embeddings.values()))
        left_out.append(
            f"{count_of(len(words), 'embedding')} kept in the file ({', '.join(words[:3])}): without it a caption's "
            "trigger word means nothing more than its letters"
        )
    return Contents(layers, left_out, metadata, kind, shapes)


def _by_layer(path: Path, shapes: Shapes) -> tuple[Kind, dict[str, dict[str, str]]]:
    """The kind of the file, and what comes before a key's ending -> name of a part -> key."""
    keys: dict[str, dict[str, str]] = {}
    kinds: dict[Kind, str] = {}
    other: dict[str, str] = {}
    for key in shapes:
        clean = clean_key(key)
        half, factor = split_key(clean), split_factor(clean)
        if half is None and factor is None:
            other.setdefault(kind_of_key(clean) or "", key)
            continue
        stem, part = half or factor
        if half is None or part != "alpha":
            kinds.setdefault(_kind_of_part(part), key)
        if part in keys.setdefault(stem, {}):
            raise Refused(f"{path.name} holds the change of {stem} twice", "Give another file.", SETTING)
        keys[stem][part] = key
    if kinds.keys() == {"lora", "dora"}:
        # its rows without lengths are as long as they were
        del kinds["lora"]
    _refuse_others(path, other, kinds, shapes)
    return next(iter(kinds), "lora"), keys


def _kind_of_part(part: str) -> Kind:
    """The kind that has a part of this name."""
    if part in ("A", "B"):
        return "lora"
    return "dora" if part == MAGNITUDE else "lokr" if part.startswith("lokr") else "loha"


def _layer_of(
    path: Path,
    kind: Kind,
    layer: str,
    native: Native | None,
    keys: Mapping[str, str],
    names: LayerNames,
    shapes: Shapes,
) -> FileLayer:
    """One layer's part of the file, whose size is that of the layer. Refused when it is another."""
    inner, outer = names.layers[layer]
    outer = native.rows(outer)[2] if native else outer
    sizes = {name: shapes[key] for name, key in keys.items()}
    if kind in ("lora", "dora"):
        a, b = sizes["A"], sizes["B"]
        dimensions = f"{list(b)} x {list(a)}"
        fits = math.prod(a[1:]) == inner and b[0] == outer and math.prod(b[1:]) == a[0]
        rank, large = a[0], len(a) == 4 and math.prod(a[2:]) > 1
    else:
        rows, columns, rank = size_of_factors(sizes)
        dimensions, large = f"{rows} x {columns}", any(math.prod(size[2:]) > 1 for size in sizes.values())
        fits = (rows, columns) == (outer, inner)
    if not fits:
        text = f"{layer} is {dimensions} in {path.name}, but {outer} x {inner} in this model"
        raise Refused(text, "Use a file of the same base model.", SETTING)
    if MAGNITUDE in sizes and not of_rows(keys[MAGNITUDE], sizes[MAGNITUDE], outer):
        count = math.prod(sizes[MAGNITUDE])
        held = f"one length for each input of {layer}, {list(sizes[MAGNITUDE])}"
        held = held if count == inner else f"{count} lengths of {layer}"
        text = f"{path.name} holds {held}, and not one for each of its {outer} outputs"
        remedy = "Use a DoRA of outputs: of peft, LyCORIS (wd_on_out) or OneTrainer (DoRA on the output axis)."
        raise Refused(text, remedy, SETTING)
    return FileLayer(keys, native, rank, large)


def of_rows(key: str, shape: tuple[int, ...], rows: int) -> bool:
    """Whether a DoRA's lengths of this shape are those of a layer's `rows` outputs.

    LyCORIS and OneTrainer keep all dimensions: (out, 1, ...) of outputs, (1, in, ...) of inputs, which on a square
    layer differ in this alone. peft has those of outputs only: (out,), of a convolution (1, out, 1, 1).
    """
    if math.prod(shape) != rows:
        return False
    return "lora_magnitude_vector" in key or len(shape) < 2 or shape[0] == rows


def size_of_factors(sizes: Shapes) -> tuple[int, int, int | None]:
    """Out features, in features and rank of a LoKr or LoHa with factors of these sizes, by name.

    The rank is None where all factors are whole.
    """
    if "hada_w1_a" in sizes:
        return sizes["hada_w1_a"][0], math.prod(sizes["hada_w1_b"][1:]), sizes["hada_w1_b"][0]
    rows, columns, rank = 1, 1, None
    for name in ("lokr_w1", "lokr_w2"):
        whole = name in sizes
        rows *= sizes[name][0] if whole else sizes[f"{name}_a"][0]
        columns *= math.prod(sizes[name][1:] if whole else sizes[f"{name}_b"][1:])
        rank = rank if whole else sizes[f"{name}_b"][0]
    return rows, columns, rank


def shapes_in(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Key -> shape, and metadata, of a LoRA file. Refused for what can't be read or is cut short."""
    if path.is_dir():
        text = f"{path} is a folder"
        raise Refused(text, "Give the LoRA file in it, a .safetensors file.", SETTING)
    try:
        missing = read_header(path).missing_bytes
    except Unreadable as error:
        raise Refused(f"{path.name} {error}", error.remedy, SETTING) from error
    except OSError as error:
        text = f"{path} can't be read: {error.strerror or error}"
        raise Refused(text, "Give a LoRA as a .safetensors file that is there.", SETTING) from error
    if missing:
        text = f"{path.name} is cut short: {missing} bytes are missing"
        raise Refused(text, "Copy the file again; the download broke off.", SETTING)
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            return shapes, dict(file.metadata() or {})
    except (OSError, safetensors.SafetensorError) as error:
        remedy = "Give a LoRA as a .safetensors file that is whole."
        raise Refused(f"{path} can't be read: {error}", remedy, SETTING) from error


def _refuse_others(path: Path, other: Mapping[str, str], kinds: Mapping[Kind, str], keys: Iterable[str]) -> None:
    """Refused for tensors that belong to none of the kinds, and for several kinds in one file."""
    for kind, key in other.items():
        if kind:
            text = f"{path.name} holds {_OTHERS[kind]} ({key}), from which training can't continue"
            raise Refused(text, "Give a file with a plain LoRA, DoRA, LoKr or LoHa.", SETTING)
    if other:
        what = kind_of(keys)
        named = f"{path.name} is {what}, not a LoRA" if what and what != "a LoRA" else f"{path.name} is not a LoRA"
        raise Refused(f"{named} (it holds {other['']})", "Give a LoRA file.", SETTING)
    if len(kinds) > 1:
        (one, first), (two, second) = list(kinds.items())[:2]
        text = f"{path.name} holds {TITLES[one]} ({first}) and {TITLES[two]} ({second})"
        raise Refused(text, "Give a file with one kind of change.", SETTING)


def _refuse_broken(path: Path, kind: Kind, stem: str, keys: Mapping[str, str]) -> None:
    whole: tuple[str, ...] = ("A", "B")
    if kind == "loha":
        whole = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
    elif kind == "lokr":
        whole = tuple(
            name
            for factor in ("lokr_w1", "lokr_w2")
            for name in ((factor,) if factor in keys else (f"{factor}_a", f"{factor}_b"))
        )
    lacking = [name for name in whole if name not in keys]
    if lacking:
        text = f"{path.name} is broken: {stem} lacks {', '.join(lacking)}"
        raise Refused(text, "Copy the file again.", SETTING)


def _refuse_foreign(path: Path, unknown: list[str], stems: Iterable[str], layers: Mapping[str, FileLayer]) -> None:
    if not unknown and layers:
        return
    if unknown:
        family = family_of_names(unknown)
        what = f"is a LoRA of {family}" if family and not layers else "is a LoRA of another model"
        text = f"{path.name} {what}: this one has no layer {unknown[0]}"
    elif stems:
        text = f"{path.name} changes text encoders or a text conditioner only, and nothing that is trained here"
    else:
        text = f"{path.name} is empty: it holds no LoRA"
    raise Refused(text, "Use a LoRA of the same base model.", SETTING)
