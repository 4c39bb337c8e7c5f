"""Reads a LoRA file layer by layer under the names that it has, whatever model it is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.tensor_names import clean_key
from backend.config.layer_patterns import MAGNITUDE, Kind
from backend.families.files.base_model import header_of
from backend.families.files.kinds import kind_of
from backend.lora.comfyui_keys import bundled_embedding, is_of_text, kind_of_key, split_factor, split_key
from backend.lora.file_contents import TITLES, Shapes, shapes_in
from backend.lora.load import Configured
from backend.lora_tools.factors import product_norm
from backend.models.common.tensor_sources import FileTensor, file_tensors

_WHOLE: Mapping[Kind, tuple[str, ...]] = {
    "lora": ("A", "B"),
    "dora": ("A", "B"),
    "loha": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
}

_STYLES = (
    ("lora_unet_", "kohya (lora_unet_)"),
    ("lora_te", "kohya (lora_te)"),
    ("lora_transformer_", "OneTrainer (lora_transformer_)"),
    ("lycoris_", "LyCORIS (lycoris_)"),
    ("diffusion_model.", "ComfyUI's names (diffusion_model.)"),
    ("model.diffusion_model.", "ComfyUI's names (model.diffusion_model.)"),
    ("transformer.", "diffusers (transformer.)"),
    ("unet.", "diffusers (unet.)"),
    ("text_encoder", "diffusers (text_encoder.)"),
    ("base_model.model.", "peft (base_model.model.)"),
    ("bundle_emb.", "embeddings (bundle_emb.)"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RawLayer:
    """A layer's change. stem: what its keys have before their endings. keys: name of a part, as in `FileLayer` -> key.

    lacking: parts without which it is nothing.
    """

    stem: str
    kind: Kind
    keys: Mapping[str, str]
    lacking: tuple[str, ...] = ()

    @property
    def is_text(self) -> bool:
        """Whether it is one of a text encoder."""
        return is_of_text(self.stem)

    def misfit(self, shapes: Shapes) -> str:
        """Two factors of different ranks, in words; "" where all fit."""
        pairs = [("A", "B"), *((f"{name}_b", f"{name}_a") for name in ("hada_w1", "hada_w2", "lokr_w1", "lokr_w2"))]
        for a, b in pairs:
            if a in self.keys and b in self.keys:
                ranks = shapes[self.keys[a]][:1], shapes[self.keys[b]][1:2]
                if ranks[0] != ranks[1]:
                    return f"{self.stem} (rank {ranks[0]} and {ranks[1]})"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RawLora:
    """A LoRA file. others: keys of no layer -> their kind, "" for unknown. formats: key -> as safetensors says."""

    path: Path
    layers: Mapping[str, RawLayer]
    others: Mapping[str, str]
    embeddings: tuple[str, ...]
    shapes: Shapes
    formats: Mapping[str, str]
    metadata: Mapping[str, str]
    stored: Mapping[str, FileTensor]
    configured: Configured

    def parts(self, layer: RawLayer) -> dict[str, Tensor]:
        """The tensors of a layer by the names of their parts, on the CPU in float32. Refused for NaN and infinity."""
        parts = {part: self.tensor(key).float() for part, key in layer.keys.items()}
        for part, value in parts.items():
            if not torch.isfinite(value).all():
                text = f"{self.path.name} holds NaN or infinity in {layer.keys[part]}"
                raise Refused(text, "Give another file, such as an earlier one of its run.")
        return parts

    def tensor(self, key: str) -> Tensor:
        """One tensor, as the file has it; it may be a view of the file."""
        return self.stored[clean_key(key)].read()

    def size(self, layer: RawLayer) -> dict[str, tuple[int, ...]]:
        """The shapes of a layer's parts."""
        return {part: self.shapes[key] for part, key in layer.keys.items()}

    def rank(self, layer: RawLayer) -> int | None:
        """The layer's rank; None where its factors are whole, or broken."""
        size = self.size(layer)
        if "A" in size:
            return size["A"][0]
        return next((size[name][0] for name in ("hada_w1_b", "lokr_w2_b", "lokr_w1_b") if name in size), None)

    def alpha(self, layer: RawLayer) -> float | None:
        """Its alpha, where the file has a key for it."""
        return float(self.tensor(layer.keys["alpha"])) if "alpha" in layer.keys else None

    def scale(self, layer: RawLayer) -> float:
        """What the product of its factors is multiplied by."""
        alpha, rank = self.alpha(layer), self.rank(layer)
        if rank is None:
            return 1.0
        if alpha is None:
            return self.configured.scale(layer.stem, rank) if layer.kind in ("lora", "dora") else 1.0
        return alpha / rank

    @property
    def kinds(self) -> Counter[Kind]:
        """How many layers there are of each kind."""
        return Counter(layer.kind for layer in self.layers.values())

    def styles(self) -> list[str]:
        """In whose way the layers are named, the most frequent first."""
        counted = Counter(_style(layer.stem) for layer in self.layers.values())
        return [style for style, _ in counted.most_common()]


def read_raw(path: Path) -> RawLora:
    """The file at `path`. Refused for what is no LoRA file."""
    try:
        shapes, metadata = shapes_in(path)
        stored = file_tensors(path)
        configured = Configured.of(path, metadata)
    except Refused as error:
        raise Refused(error.text, error.remedy) from error
    except (OSError, ValueError) as error:
        raise Refused(f"{path.name} can't be read: {error}", "Give a LoRA as a .safetensors file.") from error
    parts: dict[str, dict[str, str]] = {}
    others: dict[str, str] = {}
    embeddings: dict[str, None] = {}
    for key in shapes:
        clean = clean_key(key)
        word, half = bundled_embedding(clean), split_key(clean) or split_factor(clean)
        if word is not None:
            embeddings[word] = None
        elif half is None:
            others[key] = kind_of_key(clean) or ""
        elif half[1] in parts.setdefault(half[0], {}):
            raise Refused(f"{path.name} holds the change of {half[0]} twice", "Give another file.")
        else:
            parts[half[0]][half[1]] = key
    layers = {stem: _layer(stem, keys) for stem, keys in parts.items()}
    if not layers and not any(others.values()):
        kind = kind_of(shapes)
        what = f"is {kind}, not a LoRA" if kind and kind != "a LoRA" else "holds no LoRA"
        raise Refused(f"{path.name} {what}", "Give a LoRA file.")
    formats = {key: form for key, (form, _) in header_of(path).tensors.items()}
    return RawLora(
        path=path,
        layers=layers,
        others=others,
        embeddings=tuple(embeddings),
        shapes=shapes,
        formats={key: formats[clean_key(key)] for key in shapes},
        metadata=metadata,
        stored=stored,
        configured=configured,
    )


def plain_layers(file: RawLora, what: str) -> list[RawLayer]:
    """The layers of a file that holds nothing but LoRAs and DoRAs. Refused, with `what` can't be done, for others.

    Also for a layer that lacks a part.
    """
    for layer in file.layers.values():
        if layer.lacking:
            text = f"{file.path.name} is broken: {layer.stem} lacks {', '.join(layer.lacking)}"
            raise Refused(text, "Copy the file again.")
        if misfit := layer.misfit(file.shapes):
            raise Refused(f"{file.path.name} is broken: the factors of {misfit} do not fit", "Give another file.")
        if layer.kind not in ("lora", "dora"):
            text = f"{file.path.name} is {TITLES[layer.kind]} ({layer.stem}), and {what}"
            raise Refused(text, "Merge it into a base model instead: lora merge --base.")
    for key, kind in file.others.items():
        if kind in ("locon", "tucker"):
            text = f"{file.path.name} holds a convolution in three parts ({key}), and {what}"
            raise Refused(text, "Give a file without --conv in three parts (use_cp or use_tucker off).")
    return list(file.layers.values())


@torch.no_grad()
def norm_of(file: RawLora, layer: RawLayer) -> float:
    """Norm of the layer's change, at strength 1; of a DoRA that of its product, without what its lengths do."""
    parts, scale = file.parts(layer), abs(file.scale(layer))
    if "A" in parts:
        return scale * product_norm(parts["A"].flatten(1), parts["B"].flatten(1))
    flat = {name: part.flatten(1) for name, part in parts.items() if name != "alpha"}
    if "hada_w1_a" in flat:
        first, second = (flat[f"hada_w{n}_a"] @ flat[f"hada_w{n}_b"] for n in (1, 2))
        return scale * float((first * second).double().norm())
    norm = scale
    for name in ("lokr_w1", "lokr_w2"):
        whole = name in flat
        norm *= float(flat[name].double().norm()) if whole else product_norm(flat[f"{name}_b"], flat[f"{name}_a"])
    return norm


def _layer(stem: str, keys: Mapping[str, str]) -> RawLayer:
    names = [name for name in keys if name != "alpha"]
    kind: Kind = "lora"
    if any(name.startswith("lokr") for name in names):
        kind = "lokr"
    elif any(name.startswith("hada") for name in names):
        kind = "loha"
    elif MAGNITUDE in names:
        kind = "dora"
    if kind == "lokr":
        factors = ("lokr_w1", "lokr_w2")
        whole = tuple(name for each in factors for name in ((each,) if each in keys else (f"{each}_a", f"{each}_b")))
    else:
        whole = _WHOLE[kind]
    return RawLayer(stem=stem, kind=kind, keys=keys, lacking=tuple(name for name in whole if name not in keys))


def _style(stem: str) -> str:
    if ".processor." in stem:
        return "XLabs (.processor.)" if "_blocks." in stem and "block" in stem[:14] else "older diffusers (.processor.)"
    return next((style for start, style in _STYLES if stem.startswith(start)), "module paths alone")
