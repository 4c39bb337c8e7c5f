"""Describes Wan 2.1, image to video: Wan, and a picture that the clip starts from, which goes in twice. Torch-free.

As latents behind the noisy ones, with a mask of which frames are given, and as tokens of CLIP's eyes, which the
transformer attends with keys of their own. Class names: diffusers `WanImageToVideoPipeline` (0.42); folders:
Wan-AI/Wan2.1-I2V-14B-480P-Diffusers, Wan-AI/Wan2.1-I2V-14B-720P-Diffusers.
"""

from __future__ import annotations

from dataclasses import replace

from backend.base.problems import Problem
from backend.families.activations import Kept
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair, differing
from backend.families.files.headers import SETTING
from backend.families.spec import VideoRule
from backend.families.wan.facts import BLOCK, FACTS, WanFacts
from backend.families.wan.layout import WAN_I2V_DIT, measure_i2v

GIVEN = 4
"""Channels of the mask: whether each of the frames that a latent frame stands for is given."""


class WanImageFacts(WanFacts):
    """The facts of a model that starts from a picture."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """As the class's, what the transformer takes, and the eyes of a model that has them."""
        outputs = self.number(base, "transformer", "out_channels")
        taken = (
            "the channels of noise, mask and picture",
            None if outputs is None else 2 * outputs + GIVEN,
            "the transformer's input channels",
            self.number(base, "transformer", "in_channels"),
        )
        pairs = (*super().pairs(base), taken)
        if not any(part.name == "image_encoder" for part in self.parts):
            return pairs
        eyes = (
            "the image encoder's width",
            self.number(base, "image_encoder", "hidden_size"),
            "the transformer's image width",
            self.number(base, "transformer", "image_dim"),
        )
        return (*pairs, eyes)

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """Parts of one model, and a transformer that reads the picture's tokens."""
        net = self.config(base, "transformer")
        if net.get("_class_name") == self.denoiser_class and net.get("image_dim") is None:
            text = "the transformer does not read the tokens of a picture: it is of another Wan model"
            family = "wan22_i2v" if net.get("in_channels") != net.get("out_channels") else "wan"
            return [Problem(SETTING, None, text, f"Choose a {self.title} model, or the family {family}.")]
        return differing(self.pairs(base), self.title) or self.of_experts(base)


PARTS = (
    replace(
        FACTS.denoiser,
        title="the Wan image-to-video transformer",
        markers=(*FACTS.denoiser.markers, "blocks.0.attn2.add_k_proj.weight"),
        layouts=(WAN_I2V_DIT,),
        measure=measure_i2v,
        shipped="wan/configs/transformer_i2v.json",
        where="wan2.1_i2v_480p_14B_bf16.safetensors or another Wan 2.1 image-to-video transformer",
    ),
    *FACTS.parts[1:],
    parts.clip_vision("wan", "clip_vision_h.safetensors, or the folder image_encoder of a Wan 2.1 I2V model"),
    parts.image_processor("wan"),
)

_PICTURE = ("attn2.add_k_proj", "attn2.add_v_proj")

I2V = WanImageFacts.based_on(
    FACTS,
    name="wan_i2v",
    title="Wan 2.1 image to video",
    pipeline_class="WanImageToVideoPipeline",
    same_pipelines=(),
    parts=PARTS,
    video=VideoRule(rate=16.0, frames=81, starts=True),
    default_targets=(*FACTS.default_targets, *_PICTURE),
    diffusers_together=(*FACTS.diffusers_together, _PICTURE),
    lora_layers=(
        *FACTS.lora_layers,
        r"blocks\.\d+\.attn2\.add_[kv]_proj",
        r"condition_embedder\.image_embedder\.ff\.net\.(0\.proj|2)",
    ),
    memory=replace(
        FACTS.memory,
        # a second sum over other keys
        blocks=(
            replace(
                BLOCK,
                others=(*BLOCK.others, (r"attn2\.add_[kv]_proj$", "text")),
                kept={**BLOCK.kept, "image": Kept(full=6, half=8)},
                same=(*BLOCK.same, r"attn2\.add_[kv]_proj$"),
            ),
        ),
    ),
)
