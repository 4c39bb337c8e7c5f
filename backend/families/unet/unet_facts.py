"""Describes what the UNet families of Stable Diffusion have in common. Torch-free.

`unet` is no family: it is to the families with a UNet what `files` and `common` are to all, and they alone import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from backend.base.problems import Problem
from backend.families.activations import BlockActivations, FamilyMemory, Kept, VaeActivations
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles, header_of
from backend.families.files.headers import SETTING
from backend.families.files.layouts.rules import Layout
from backend.families.files.layouts.text import HF_CLIP, HF_CLIP_BARE
from backend.families.files.parts import Part
from backend.families.spec import (
    CONVOLUTION_OPTIONS,
    DIFFUSION_OPTIONS,
    TEXT_OPTIONS,
    BaseModel,
    FamilyFacts,
    Geometry,
)
from backend.families.unet.layout import LDM_UNET, ldm_unet, measure

TEXT_LENGTH = 77
"""Tokens that CLIP reads; the padding is attended to."""

LORA_LAYERS: tuple[str, ...] = (
    r"(down_blocks\.\d+|mid_block|up_blocks\.\d+)\.attentions\.\d+\.(proj_in|proj_out)",
    r"(down_blocks\.\d+|mid_block|up_blocks\.\d+)\.attentions\.\d+\.transformer_blocks\.\d+\."
    r"(attn[12]\.(to_q|to_k|to_v|to_out\.0)|ff\.net\.(0\.proj|2))",
    r"(down_blocks\.\d+|mid_block|up_blocks\.\d+)\.resnets\.\d+\.(time_emb_proj|conv1|conv2|conv_shortcut)",
    r"(down_blocks\.\d+\.downsamplers|up_blocks\.\d+\.upsamplers)\.0\.conv",
    r"conv_in|conv_out",
    r"(time_embedding|add_embedding)\.linear_[12]",
    r"te[12]?\.text_model\.encoder\.layers\.\d+\.(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])",
)
"""Linear layers and convolutions in ComfyUI's key map of UNets (``unet_to_diffusers`` in comfy/utils.py), and of CLIP
text encoders (comfy/lora.py)."""

_NO_STATIC = {"static": "its convolutions read the edge of an image, so that padding would change the result"}

# Tensors without a value to read, by which makers of checkpoints mark how they were trained (as ComfyUI reads them).
_MARKS = {"v_pred": {"prediction_type": "v_prediction"}, "ztsnr": {"rescale_betas_zero_snr": True}}

_SCHEDULERS = (
    "EulerDiscreteScheduler",
    "PNDMScheduler",
    "DDIMScheduler",
    "DDPMScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "LMSDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "UniPCMultistepScheduler",
    "LCMScheduler",
)


@dataclass(frozen=True, kw_only=True)
class UnetFacts(FamilyFacts):
    """The facts of a family with a UNet. levels: of the UNet."""

    levels: int
    denoiser_class: str = "UNet2DConditionModel"
    text_length: int = TEXT_LENGTH
    text_rule: str = "attended"
    # What sd-scripts trains by default: every layer of the transformers, in SD 1.5 as convolutions at both ends.
    default_targets: tuple[str, ...] = (
        *(f"attn{number}.{name}" for number in (1, 2) for name in ("to_q", "to_k", "to_v", "to_out.0")),
        "ff.net.0.proj",
        "ff.net.2",
        "proj_in",
        "proj_out",
    )
    # layers of CLIP that sd-scripts trains
    text_targets: tuple[str, ...] = (r".+\.layers\.\d+\.(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])",)
    # layers that sd-scripts trains too where ``conv_dim`` is set: all of the ResNets, and what changes the size
    conv_targets: tuple[str, ...] = (
        r".+\.resnets\.\d+\.(conv1|conv2|conv_shortcut|time_emb_proj)",
        r".+\.(down|up)samplers\.\d+\.conv",
    )
    options: frozenset[str] = (
        DIFFUSION_OPTIONS | TEXT_OPTIONS | CONVOLUTION_OPTIONS | {"true_cfg_scale", "max_token_length"}
    )
    objective: str = "diffusion"
    lacks_modes: Mapping[str, str] = field(default_factory=lambda: dict(_NO_STATIC))
    fixed_text_length: bool = True
    one_size_batches: bool = True
    lora_layers: tuple[str, ...] = LORA_LAYERS
    lora_prefix: str = "unet"

    def lora_layout(self, paths: Iterable[str]) -> Layout | None:
        """Latent diffusion's names, which number blocks by the residual layers a level: 2 where none is seen."""
        found = (re.match(r"down_blocks\.\d+\.resnets\.(\d+)\.", path) for path in paths)
        return ldm_unet(max((int(match[1]) + 1 for match in found if match), default=2))

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """As the class's, and a UNet of another build, such as one with fewer levels."""
        widths = self.config(base, "unet").get("block_out_channels")
        problems = super().fit(base)
        if not isinstance(widths, list) or len(widths) == self.levels:
            return problems
        text = f"the UNet has {len(widths)} levels, and {self.title} has {self.levels}"
        remedy = f"Choose a {self.title} model, or the family of this one."
        return [Problem(SETTING, None, text, remedy), *problems]

    def geometry(self, base: BaseModel) -> Geometry:
        """As the class's: a token is what one cell of the UNet's coarsest level stands for."""
        found, widths = super().geometry(base), self.config(base, "unet").get("block_out_channels")
        if not isinstance(widths, list):
            raise ValueError(f"the config of the UNet of {BaseModelFiles.at(base).path} gives no block_out_channels")
        wanted = self.number(base, "unet", "in_channels")
        if wanted is not None and wanted != found.latent_channels:
            raise ValueError(f"the UNet takes {wanted} channels, the VAE gives {found.latent_channels}")
        return replace(found, patch=2 ** (len(widths) - 1))

    def scheduler_config(self, base: BaseModel) -> dict[str, Any]:
        """The model's schedule, a single file's with what its marks say; ValueError when it can't be read."""
        base = BaseModelFiles.at(base)
        config = super().scheduler_config(base)
        if base.path is None or not base.path.is_file():
            return config
        names = header_of(base.path).names
        return config | {key: value for mark, said in _MARKS.items() if mark in names for key, value in said.items()}


def unet(family: str, where: str) -> Part:
    """The UNet, in diffusers layout or as whole checkpoints hold it."""
    markers = ("conv_in.weight", "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight")
    return parts.denoiser(family, "the UNet", "UNet2DConditionModel", markers, LDM_UNET, measure, where, "unet")


def clip(family: str, where: str) -> Part:
    """The first text encoder, under all names that checkpoints have for it."""
    return parts.clip(family, "text_encoder", where, layouts=(HF_CLIP, HF_CLIP_BARE))


def scheduler(family: str) -> Part:
    """The scheduler: of any of the classes that models were published with."""
    return parts.scheduler(family, _SCHEDULERS)


def level(number: int, levels: int) -> str:
    """The transformer blocks' lists of one level of a UNet of `levels`, as a pattern of their paths."""
    inside = r"attentions\.\d+\.transformer_blocks"
    return rf"(?:down_blocks\.{number}|up_blocks\.{levels - 1 - number})\.{inside}"


def memory(blocks: Mapping[str, int], around: int, levels: int) -> FamilyMemory:
    """What a UNet keeps, counted on diffusers' classes (0.42) at full size.

    blocks: class -> tokens for each token of the picture. around: bytes a token that frozen convolutions keep.
    """
    places = (
        # an upsampler's convolution sees the picture that it has doubled
        (rf"down_blocks\.{n}\.|up_blocks\.{levels - 1 - n}\.resnets|up_blocks\.{levels - 2 - n}\.upsamplers", pixels)
        for n, pixels in ((n, 4 ** (levels - 1 - n)) for n in range(levels))
    )
    counted = tuple(_block(name, scale) for name, scale in blocks.items())
    return FamilyMemory(counted, VaeActivations(5, 6), around, resolutions=tuple(places), launch_bound=True)


def _block(name: str, scale: int) -> BlockActivations:
    """Self-attention, attention to the text, and a gated feed-forward, whose gate after its activation is kept too."""
    return BlockActivations(
        name,
        "attn1.to_q",
        others=((r"attn2\.to_[kv]$", "text"),),
        # three norms; queries, keys, values and results of the first attention, queries and results of the second
        kept={"image": Kept(full=3, half=4 + 2 + 4)},
        outputs=(r"net\.0\.proj$",),
        shared=(r"to_out\.0$",),
        scale=scale,
    )
