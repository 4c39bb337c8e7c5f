"""Describes Wan 2.2 14B, text to video and image to video: one of its two experts. Torch-free.

Each expert is a whole transformer of Wan 2.1's build: one for high noise, from a boundary on, and one for low noise.
Class names: diffusers `WanPipeline` and `WanImageToVideoPipeline` with ``transformer_2`` (0.42); folders:
Wan-AI/Wan2.2-T2V-A14B-Diffusers, Wan-AI/Wan2.2-I2V-A14B-Diffusers.
"""

from __future__ import annotations

from dataclasses import replace

from backend.base.problems import Problem
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import differing
from backend.families.files.headers import SETTING
from backend.families.files.parts import Part
from backend.families.spec import BaseModel
from backend.families.wan.facts import FACTS as WAN
from backend.families.wan.facts import WanFacts, has_experts
from backend.families.wan.i2v_facts import I2V as WAN_I2V
from backend.families.wan.i2v_facts import WanImageFacts

_ONE = Problem(
    SETTING,
    None,
    "of the two experts in the folder the one for high noise is trained (transformer)",
    "Set min_timestep to the boundary, 875 for text to video and 900 for image to video. For the other expert choose "
    "its single file, and set max_timestep.",
    "warning",
)


class ExpertFacts(WanFacts):
    """The facts of an expert of Wan 2.2."""

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture``, as that of Wan 2.1 is spelled."""
        return "wan2.2/lora"

    def of_experts(self, base: BaseModelFiles) -> list[Problem]:
        """Which of the two is trained."""
        return [_ONE] if has_experts(base) else []


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
        problems = differing(self.pairs(base), self.title)
        return problems or ([_ONE] if has_experts(base) else [])


def _parts(title: str, shipped: str, scheduler: str, where: str) -> tuple[Part, ...]:
    network, *rest = WAN.parts
    return (
        replace(network, title=title, shipped=f"wan/configs/{shipped}", where=where),
        *(replace(part, shipped=f"wan/configs/{scheduler}") if part.name == "scheduler" else part for part in rest),
    )


FACTS = ExpertFacts.based_on(
    WAN,
    name="wan22",
    title="Wan 2.2 14B",
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
