"""Opens base models for the tools: which family one is, what its layers are called, and its tensors one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.families.clip_words import clip_words
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.check import check_part
from backend.families.files.headers import SETTING
from backend.families.files.parts import Part
from backend.families.spec import FamilyFacts, Side
from backend.families.table import FAMILIES, PIPELINES, family
from backend.lora.comfyui_keys import LayerNames, family_of_names, linear_layers, names_of
from backend.models.common.base_weights import BaseWeights, clip_layers
from backend.models.common.meta_model import by_model_names
from backend.models.common.tensor_sources import LazyTensor, open_part

INDEX = "model_index.json"
_CANDIDATES = {
    "FLUX": ("flux",),
    "Hunyuan Video": ("hunyuan_video", "framepack"),
    "Qwen-Image": ("qwen_image",),
    "Stable Diffusion 3": ("sd3",),
    "Anima or another Cosmos model": ("anima",),
    "Wan": ("wan", "wan_i2v", "wan22_5b"),
    "SDXL or Stable Diffusion": ("sdxl", "sd15"),
}
"""What `family_of_names` tells -> the families whose LoRAs are called so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """A tensor of a part: `name` in its files, `layer` it is the weight of ("" for none), and the tensor itself."""

    name: str
    layer: str
    tensor: LazyTensor


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenModel:
    """A base model whose files were checked. denoiser: without weights. names: of the layers in LoRA files."""

    files: BaseModelFiles
    facts: FamilyFacts
    denoiser: nn.Module
    names: LayerNames

    def parts(self) -> list[Part]:
        """The denoiser, and the CLIP text encoders that the model brings along."""
        clips = [self.facts.part(name) for name in clip_words(self.facts)]
        return [self.facts.denoiser, *(part for part in clips if self._holds(part))]

    def stored(self, part: Part) -> dict[str, Stored]:
        """The tensors of a part by the names of its model. Refused when its files can't be read."""
        try:
            tensors = open_part(self.files, part).tensors()
        except ValueError as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"{part.title} of {self.files.path} can't be read: {error}", "Copy it again.") from error
        names = {name: name for name in tensors}
        if part.name == self.facts.denoiser.name:
            names = by_model_names(self.denoiser, names)
        layers = BaseWeights((), self.names, clip_words(self.facts))
        stored = {
            name: Stored(name=own, layer=layers.layer_of(part.name, name), tensor=tensors[own])
            for name, own in names.items()
        }
        return {name: one if one.layer in self.names.layers else replace(one, layer="") for name, one in stored.items()}

    def weights(self) -> dict[str, LazyTensor]:
        """Layer -> its weight, of all layers that a LoRA may change."""
        return {one.layer: one.tensor for part in self.parts() for one in self.stored(part).values() if one.layer}

    def weight_files(self) -> Iterator[Path]:
        """The files with the weights of the denoiser."""
        yield from self.files.weight_files(self.facts.denoiser)

    @property
    def other_expert(self) -> tuple[str, Side] | None:
        """Folder and noise of the expert in the model's folder that is not read; None where there is none."""
        experts, path = self.facts.experts, self.files.path
        if experts is None or path is None:
            return None
        published = family(self.facts.name).denoiser.folder
        low = self.facts.denoiser.folder == experts.part
        folder, noise = (published, "high") if low else (experts.part, "low")
        return (folder, noise) if (path / folder).is_dir() else None

    def _holds(self, part: Part) -> bool:
        return self.files.place(part) is not None and not check_part(self.files, part)


def open_model(
    path: str | Path, name: str | None = None, variant: str | None = None, expert: Side | None = None
) -> OpenModel:
    """The base model at `path`, a folder in diffusers layout or a single file.

    name: of its family; found by its files where it is None. expert: of the two in a folder, None for that for high
    noise. A folder may hold the denoiser alone where `name` is given. Refused for what is no model of a known family,
    and for an expert that it lacks.
    """
    files = BaseModelFiles(resolve(path), {}, variant)
    facts = _family_of(files, expert) if name is None else _of_expert(_named(name), expert)
    if holds_denoiser_alone(files.path, facts):
        problems = check_part(files, facts.denoiser)
    else:
        problems = [each for each in facts.check_base_model(files, variant) if _wrong(each.path, each.severity)]
    if problems:
        raise Refused.of([replace(each, path=None) for each in problems])
    denoiser = _empty_denoiser(files, facts)
    plain = names_of(linear_layers(denoiser), facts)
    return OpenModel(files=files, facts=facts, denoiser=denoiser, names=plain.joined(clip_layers(files, facts)))


def _empty_denoiser(files: BaseModelFiles, facts: FamilyFacts) -> nn.Module:
    """The denoiser without weights, on torch's meta device."""
    # here, since diffusers' models take seconds to import, and tools that read LoRA files alone need none
    from backend.models.family_classes import load_family

    return load_family(facts.name).empty_denoiser(files, facts.denoiser)


def holds_denoiser_alone(path: Path | None, facts: FamilyFacts) -> bool:
    """Whether a folder holds the denoiser's own and no pipeline, as full fine-tuning writes it in diffusers layout."""
    return path is not None and (path / facts.denoiser.folder).is_dir() and not (path / INDEX).is_file()


def published(facts: FamilyFacts) -> tuple[nn.Module, LayerNames]:
    """The denoiser of a family as it was published, without weights, and the names of its layers and CLIP encoders'."""
    none = BaseModelFiles(None)
    denoiser = _empty_denoiser(none, facts)
    layers: dict[str, tuple[int, int]] = {}
    for part, word in clip_words(facts).items():
        config = none.config(facts.part(part))
        config = config.get("text_config", config)
        width, inner = config["hidden_size"], config["intermediate_size"]
        for number in range(config["num_hidden_layers"]):
            stem = f"{word}.text_model.encoder.layers.{number}"
            layers |= {f"{stem}.self_attn.{each}_proj": (width, width) for each in ("q", "k", "v", "out")}
            layers |= {f"{stem}.mlp.fc1": (width, inner), f"{stem}.mlp.fc2": (inner, width)}
    return denoiser, names_of(linear_layers(denoiser), facts).joined(layers)


def guessed_family(
    stems: Mapping[str, tuple[int, int] | None], metadata: Mapping[str, str]
) -> tuple[FamilyFacts, nn.Module, LayerNames] | None:
    """The family of a LoRA file by its names, with what `published` gives; None for names of no family here.

    stems: what keys have before their endings -> (in, out) features there. Of several families the one whose layers
    fit best is taken, or the one that the metadata names.
    """
    title = family_of_names(stems)
    candidates = _CANDIDATES.get(title or "", ())
    version = metadata.get("ss_base_model_version")
    families = [each.name for each in FAMILIES.values() if each.lora_version == version]
    named = [name for name in families if name in candidates] or families[:1] if families else []
    best: tuple[tuple[int, int], FamilyFacts, nn.Module, LayerNames] | None = None
    for name in named or candidates:
        facts = family(name)
        denoiser, names = published(facts)
        unknown, other = misfits(stems, names)
        score = len(unknown), len(other)
        if best is None or score < best[0]:
            best = score, facts, denoiser, names
    return None if best is None else best[1:]


def misfits(stems: Mapping[str, tuple[int, int] | None], names: LayerNames) -> tuple[list[str], list[str]]:
    """Stems that the model has no layer for, and those whose layer has another size."""
    unknown, other = [], []
    for stem, size in stems.items():
        layers = names.stems.get(stem)
        if layers is None:
            unknown.append(stem)
        elif size is not None:
            path, native = layers[0]
            inner, outer = names.layers[path]
            if size != (inner, native.rows(outer)[2] if native else outer):
                other.append(stem)
    return unknown, other


def feature_size(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[int, int] | None:
    """(in, out) features of a layer's A and B; None where they are not both there."""
    by_part = dict(shapes)
    if not {"A", "B"} <= by_part.keys():
        return None
    return math.prod(by_part["A"][1:]), by_part["B"][0]


def _named(name: str) -> FamilyFacts:
    try:
        return family(name)
    except ValueError as error:
        raise Refused(str(error), "Choose one of these with --family.") from error


def _of_expert(facts: FamilyFacts, expert: Side | None) -> FamilyFacts:
    """The facts with the folder of the expert for low noise as that of the denoiser. Refused without experts."""
    if expert is None:
        return facts
    if facts.experts is None:
        raise Refused(f"{facts.title} has no experts", "Leave out --expert: it is for Wan 2.2 14B.")
    if expert == "high":
        return facts
    first, second = facts.denoiser, facts.experts.part
    kept = [replace(part, folder=second) if part is first else part for part in facts.parts if part.name != second]
    return replace(facts, parts=tuple(kept))


def _family_of(files: BaseModelFiles, expert: Side | None) -> FamilyFacts:
    """The first family whose model this is; Refused with what the file is where none fits."""
    path = files.path
    if path is None or not path.exists():
        raise Refused(f"the base model {path} does not exist", "Give a model's folder or its single file.")
    misfits = []
    candidates = [facts for facts in FAMILIES.values() if expert is None or facts.experts is not None]
    for facts in (_of_expert(each, expert) for each in candidates):
        problems = [
            each
            for each in facts.check_base_model(files, families=PIPELINES)
            if each.path == SETTING and each.severity == "error"
        ]
        if not problems:
            return facts
        misfits.append(problems)
    fewest = min(misfits, key=len)
    raise Refused.of([replace(each, path=None) for each in fewest[:3]])


def _wrong(path: str | None, severity: str) -> bool:
    return path == SETTING and severity == "error"
