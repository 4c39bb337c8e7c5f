"""Describes Wan 2.2 5B, as text to video and from a picture: Wan, with a VAE of larger cells. Torch-free.

Its transformer takes a timestep for each token, so that a first frame may be given as it is, with a timestep of zero. A
clip that starts from nothing has one timestep for all of its tokens, which is Wan 2.1's forward. Class names: diffusers
`WanPipeline` and `WanImageToVideoPipeline` with ``expand_timesteps`` (0.42); folder: Wan-AI/Wan2.2-TI2V-5B-Diffusers.
"""

from __future__ import annotations

from dataclasses import replace

from backend.families.activations import Kept, VaeActivations
from backend.families.files import parts
from backend.families.spec import BaseModel, Geometry, VideoRule
from backend.families.wan.facts import BLOCK, PATCH, WanFacts
from backend.families.wan.facts import FACTS as WAN


class SmallFacts(WanFacts):
    """The facts of Wan 2.2 5B."""

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture``, as that of Wan 2.1 is spelled."""
        return "wan2.2-5b/lora"


_NETWORK = replace(
    WAN.denoiser,
    title="the transformer of Wan 2.2 5B",
    shipped="wan/configs/transformer_5b.json",
    where="wan2.2_ti2v_5B_fp16.safetensors or another transformer of Wan 2.2 5B",
)

FACTS = SmallFacts.based_on(
    WAN,
    name="wan22_5b",
    title="Wan 2.2 5B",
    parts=(
        _NETWORK,
        parts.wan22_vae("wan"),
        *(
            replace(part, shipped="wan/configs/scheduler_5b.json") if part.name == "scheduler" else part
            for part in WAN.parts[2:]
        ),
    ),
    default_geometry=Geometry(downscale=16, patch=PATCH, latent_channels=48, frame_step=4),
    video=VideoRule(rate=24.0, frames=121),
    # its first level sees patches of 2x2 px; its decoder's is wider than its encoder's
    memory=replace(WAN.memory, vae=VaeActivations(encode=2.75, decode=4.8)),
)

# Each token has a modulation of its own in six parts, which all blocks are given, and which a block adds its table to.
_BLOCK = replace(WAN.memory.blocks[0], kept={**BLOCK.kept, "image": Kept(full=12, half=6)})

I2V = SmallFacts.based_on(
    FACTS,
    name="wan22_5b_i2v",
    title="Wan 2.2 5B image to video",
    pipeline_class="WanImageToVideoPipeline",
    # its folder is published as one of text to video
    same_pipelines=("WanPipeline",),
    video=VideoRule(rate=24.0, frames=121, starts=True),
    memory=replace(FACTS.memory, blocks=(_BLOCK,), given_half=7),
)
