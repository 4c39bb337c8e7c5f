"""Describes FramePack: HunyuanVideo's blocks, a clip made in sections from a picture on. Torch-free.

Class names: diffusers `HunyuanVideoFramepackPipeline` and `HunyuanVideoFramepackTransformer3DModel` (0.42); the
transformer lies in lllyasviel/FramePackI2V_HY, SigLIP in lllyasviel/flux_redux_bfl, all else in HunyuanVideo's folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from backend.base.problems import Problem
from backend.families.files import parts
from backend.families.files.base_model import BaseModelFiles
from backend.families.files.fit import Pair, differing
from backend.families.files.headers import SETTING
from backend.families.files.layouts.rules import Layout, Rule
from backend.families.files.measures import Config, Shapes, count_modules
from backend.families.files.parts import Part
from backend.families.hunyuan_video.facts import FACTS, FOLDER, MARKERS, PATCH, HunyuanVideoFacts
from backend.families.hunyuan_video.layout import HUNYUAN_TENCENT, measure
from backend.families.hunyuan_video.sections import FRAMES, SectionGeometry
from backend.families.spec import BaseModel, VideoRule

IMAGE_TOKENS = 729
"""Tokens that SigLIP makes of a picture, 27 a side."""

FRAMEPACK = Layout(
    name="framepack",
    title="a FramePack transformer",
    markers=("clean_x_embedder.proj.weight", "image_projection.up.weight", MARKERS[-1]),
    prefixes=("", "model.diffusion_model.", "diffusion_model."),
    rules=(Rule(r"(?P<name>.+)", ("{name}",)),),
)
"""``FramePackI2V_HY_bf16.safetensors``: diffusers' names in one file."""

SIGLIP = Layout(
    name="siglip_vision",
    title="a SigLIP vision encoder",
    # CLIP's eyes have no bias there
    markers=("vision_model.embeddings.patch_embedding.bias", "vision_model.post_layernorm.weight"),
    ignored=(r"vision_model\.embeddings\.position_ids", r"logit_(scale|bias)", r"text_model\..+"),
    rules=(Rule(r"vision_model\.(?P<name>.+)", ("vision_model.{name}",)),),
)
"""``sigclip_vision_patch14_384.safetensors``."""


def measure_framepack(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of FramePack's transformer."""
    return measure(shapes, config) | {"image_proj_dim": shapes["image_projection.up.weight"][1]}


def measure_siglip(shapes: Shapes, config: Mapping[str, Any]) -> Config:
    """Config of SigLIP's vision encoder."""
    width, channels, patch = shapes["vision_model.embeddings.patch_embedding.weight"][:3]
    head = config["hidden_size"] // config["num_attention_heads"]
    return {
        "hidden_size": width,
        "num_channels": channels,
        "patch_size": patch,
        "image_size": patch * round(shapes["vision_model.embeddings.position_embedding.weight"][0] ** 0.5),
        "intermediate_size": shapes["vision_model.encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": count_modules(shapes, "vision_model.encoder.layers"),
        "num_attention_heads": max(1, width // head),
        "vision_use_head": "vision_model.head.probe" in shapes,
    }


class FramePackFacts(HunyuanVideoFacts):
    """The facts of FramePack."""

    def pairs(self, base: BaseModelFiles) -> tuple[Pair, ...]:
        """As the class's, and the eyes."""
        seen, wanted = (
            self.number(base, "image_encoder", "hidden_size"),
            self.number(base, "transformer", "image_proj_dim"),
        )
        return (*super().pairs(base), ("the image encoder's width", seen, "the transformer's image width", wanted))

    def fit(self, base: BaseModelFiles) -> list[Problem]:
        """Parts of one model, and a transformer that looks behind its section and at the picture."""
        net = self.config(base, "transformer")
        if net and not (net.get("has_clean_x_embedder") and net.get("has_image_proj")):
            text = "the transformer has no inputs for a picture and for what is behind a section"
            return [Problem(SETTING, None, text, "Choose FramePackI2V_HY, or the family of the file.")]
        problems = differing(self.pairs(base), self.title)
        return problems or self._by_name(base)

    def _by_name(self, base: BaseModelFiles) -> list[Problem]:
        """A warning for a model whose name is that of the other of FramePack and F1: their files hold the same."""
        place = base.place(self.denoiser)
        names = "" if place is None else f"{place.path.parent.name}/{place.path.name}".lower()
        onward, named = self.name == "framepack_f1", "f1_i2v" in names.replace("-", "_")
        if onward or not named:
            return []
        text = "by its name this is FramePack F1, which draws clips from their start to their end"
        return [Problem(SETTING, None, text, "Choose the family framepack_f1.", "warning")]

    def lora_architecture(self, base: BaseModel) -> str:
        """``modelspec.architecture`` as musubi-tuner spells it."""
        return "framepack/lora"


_DENOISER, *_REST = FACTS.parts

FRAMEPACK_FACTS = FramePackFacts.based_on(
    FACTS,
    name="framepack",
    title="FramePack",
    pipeline_class="HunyuanVideoFramepackPipeline",
    denoiser_class="HunyuanVideoFramepackTransformer3DModel",
    parts=(
        replace(
            _DENOISER,
            title="the FramePack transformer",
            class_names=("HunyuanVideoFramepackTransformer3DModel", "HunyuanVideoTransformer3DModelPacked"),
            markers=(*MARKERS, "clean_x_embedder.proj.weight"),
            layouts=(FRAMEPACK,),
            measure=measure_framepack,
            shipped=f"{FOLDER}/configs/transformer_framepack.json",
            where="FramePackI2V_HY_bf16.safetensors, or the folder lllyasviel/FramePackI2V_HY",
        ),
        *_REST,
        parts.text_encoder(
            FOLDER,
            "image_encoder",
            "the SigLIP vision encoder",
            ("SiglipVisionModel",),
            ("embeddings.patch_embedding.weight", "post_layernorm.weight"),
            (SIGLIP,),
            measure_siglip,
            "sigclip_vision_patch14_384.safetensors, or the folder image_encoder of lllyasviel/flux_redux_bfl",
        ),
        Part(
            "feature_extractor",
            "the image processor of SigLIP",
            "feature_extractor",
            ("SiglipImageProcessor", "SiglipImageProcessorFast", "SiglipImageProcessorPil"),
            (("preprocessor_config.json",),),
            shipped=f"{FOLDER}/configs/feature_extractor.json",
        ),
    ),
    text_before=IMAGE_TOKENS,
    default_geometry=SectionGeometry(downscale=8, patch=PATCH, latent_channels=16, frame_step=4),
    video=VideoRule(rate=30.0, frames=FRAMES + 1, starts=True, vae_frames=17, least=FRAMES + 1),
    lora_layers=(*FACTS.lora_layers, r"image_projection\.(up|down)"),
    # diffusers' names in every file, as musubi-tuner writes them; a LoRA of HunyuanVideo fits too
    kohya_native=False,
    lora_also=HUNYUAN_TENCENT,
    lora_version="framepack",
)

F1_FACTS = FramePackFacts.based_on(
    FRAMEPACK_FACTS,
    name="framepack_f1",
    title="FramePack F1",
    parts=(
        replace(
            FRAMEPACK_FACTS.denoiser,
            title="the FramePack F1 transformer",
            where="FramePack_F1_I2V_HY_20250503 in one file, or the folder lllyasviel/FramePack_F1_I2V_HY_20250503",
        ),
        *FRAMEPACK_FACTS.parts[1:],
    ),
)
"""The same transformer, trained on: a section is shown what is before it, and clips are drawn from their start on."""
