"""Describes Wan 2.2 14B, text to video and image to video: its two experts. Torch-free.

Each expert is a whole transformer of Wan 2.1's build: one for high noise, from a boundary on, and one for low noise.
Class names: diffusers `WanPipeline` and `WanImageToVideoPipeline` with ``transformer_2`` (0.42); folders:
Wan-AI/Wan2.2-T2V-A14B-Diffusers, Wan-AI/Wan2.2-I2V-A14B-Diffusers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from backend.base.problems import Problem
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import differing
from backend.families.files.headers import SETTING
from backend.families.files.parts import Part
from backend.families.spec import BaseModel, Experts, FamilyFacts
from backend.families.wan.facts import FACTS as WAN
from backend.families.wan.facts import WanFacts
from backend.families.wan.i2v_facts import I2V as WAN_I2V
from backend.families.wan.i2v_facts import WanImageFacts

SECOND = "transformer_2"
CHOICE = "timesteps.train_experts"


class ExpertFacts(WanFacts):
    """The facts of an expert of Wan 2.2."""

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture``, as that of Wan 2.1 is spelled."""
        return "wan2.2/lora"

    def of_experts(self, base: BaseModelFiles) -> list[Problem]:
        """A folder with both is as it should be."""
        return []

    def expert_problems(self, base: BaseModelFiles, choice: str) -> list[Problem]:
        """As the class's."""
        return _expert_problems(self, base, choice)


class ExpertImageFacts(WanImageFacts):
    """The facts of an expert of Wan 2.2 that starts from a picture, of which it reads no tokens."""

    def lora_architecture(self, base: BaseModel) -> str:
        """As of text to video."""
        return "wan2.2/lora"

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """Parts of one model, and a transformer that takes the picture's latents alone."""
        if self.config(base, "transformer").get("image_dim") is not None:
            text = "the transformer reads the tokens of a picture: it is of Wan 2.1"
            return [Problem(SETTING, None, text, f"Choose a {self.title} model, or the family wan_i2v.")]
        return differing(self.pairs(base), self.title)

    def expert_problems(self, base: BaseModelFiles, choice: str) -> list[Problem]:
        """As the class's."""
        return _expert_problems(self, base, choice)


def _expert_problems(facts: FamilyFacts, base: BaseModelFiles, choice: str) -> list[Problem]:
    """What to know of the experts where `choice` says which are trained: one that lacks, is of another build, or is
    in the other's place; and with auto, which of two is trained.
    """
    second = facts.part(SECOND)
    place = base.place(second)
    if choice == "auto":
        return [] if place is None else [_which(place.setting)]
    if choice == "both" and place is None:
        text = "both experts are to be trained, and the base model holds one transformer"
        remedy = (
            "Choose the folder with transformer and transformer_2, or set model.transformer_2 to the file of the "
            "expert for low noise. To train one, set train_experts to high or low."
        )
        return [Problem(CHOICE, None, text, remedy)]
    if place is not None and _shapes(base, facts.denoiser) != _shapes(base, second):
        text = "the two experts are of different builds: their tensors have other names or sizes"
        return [Problem(place.setting, None, text, "Choose both experts from one model.")]
    return _misplaced(base, None if place is None else place.path, choice)


def _which(setting: str) -> Problem:
    text = "of the two experts the one for high noise is trained (transformer), at all noise levels that are set"
    return Problem(setting, None, text, "Set train_experts to high, low or both.", "warning")


def _shapes(base: BaseModelFiles, part: Part) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, (_, shape) in base.tensors(part).items()}


def _misplaced(base: BaseModelFiles, second: Path | None, choice: str) -> list[Problem]:
    """A file whose name says that it is the other expert: an error where the other is given too."""
    first = base.path if base.path is not None and base.path.is_file() else None
    if second is not None:
        if not (_names(first, "low") or _names(second, "high")):
            return []
        text = "by their names, model.base_model is the expert for low noise and model.transformer_2 that for high"
        return [Problem(SETTING, None, text, "Exchange the two files.")]
    other = "low" if choice == "high" else "high"
    if not _names(first, other):
        return []
    assert first is not None
    text = f"{first.name} is by its name the expert for {other} noise, and is trained at {choice} noise"
    return [Problem(SETTING, None, text, f"Set train_experts to {other}, or choose the other file.", "warning")]


def _names(path: Path | None, side: str) -> bool:
    return path is not None and path.is_file() and f"{side}_noise" in path.name.lower()


def _parts(title: str, shipped: str, scheduler: str, where: str) -> tuple[Part, ...]:
    network, *rest = WAN.parts
    network = replace(network, title=title, shipped=f"wan/configs/{shipped}", where=where)
    second = replace(
        network,
        name=SECOND,
        title=f"{title} for low noise",
        folder=SECOND,
        setting=SECOND,
        where=where.partition(" or ")[2],
        optional=True,
        beside=True,
    )
    return (
        network,
        *(replace(part, shipped=f"wan/configs/{scheduler}") if part.name == "scheduler" else part for part in rest),
        second,
    )


FACTS = ExpertFacts.based_on(
    WAN,
    name="wan22",
    title="Wan 2.2 14B",
    experts=Experts(boundary=0.875),
    parts=_parts(
        "the expert of Wan 2.2",
        "transformer.json",
        "scheduler_22.json",
        "wan2.2_t2v_high_noise_14B_fp16.safetensors or wan2.2_t2v_low_noise_14B_fp16.safetensors",
    ),
)

I2V = ExpertImageFacts.based_on(
    WAN_I2V,
    name="wan22_i2v",
    title="Wan 2.2 image to video 14B",
    experts=Experts(boundary=0.9),
    parts=_parts(
        "the image-to-video expert of Wan 2.2",
        "transformer_22_i2v.json",
        "scheduler_5b.json",
        "wan2.2_i2v_high_noise_14B_fp16.safetensors or wan2.2_i2v_low_noise_14B_fp16.safetensors",
    ),
    default_targets=WAN.default_targets,
    lora_layers=WAN.lora_layers,
    memory=WAN.memory,
)
