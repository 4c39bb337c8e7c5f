"""Describes the parts of a base model: what a part must hold, and the parts that several families share. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.families.files import measures
from backend.families.files.layouts.autoencoder import LDM_VAE
from backend.families.files.layouts.rules import Layout
from backend.families.files.layouts.text import HF_CLIP, HF_CLIP_G, HF_CLIP_VISION, T5, UMT5, UMT5_NATIVE
from backend.families.files.layouts.wan_vae import WAN22_VAE, WAN_VAE
from backend.families.files.measures import Measure

CONFIG = (("config.json",),)


@dataclass(frozen=True)
class Part:
    """One part of a base model: a folder of the diffusers layout, or what a single file holds of it.

    `class_names` are those that model_index.json or the part's own config may give; `files` lists alternatives: of each
    inner tuple at least one must be there. `weights` is the stem of its safetensors ("" for a part without weights);
    `markers` are tensor names that the weights must hold, so that a mixed-up file is seen before anything loads.
    `setting` is the [model] setting that may give this part alone ("" for none). `layouts` are the layouts of single
    files that it is read from, `shipped` the config that goes with them, a file below backend/models, and `measure`
    reads from a file's shapes where its config differs; a part without layouts comes from folders only. `where` says
    what a person takes for it: a published file's name, or which folder of which model. `optional`: the model works
    without it. `beside`: a base model that is a file never holds it, whatever its names look like.
    """

    name: str
    title: str
    folder: str
    class_names: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    weights: str = ""
    markers: tuple[str, ...] = ()
    setting: str = ""
    layouts: tuple[Layout, ...] = ()
    measure: Measure | None = None
    shipped: str = ""
    where: str = ""
    optional: bool = False
    beside: bool = False


def denoiser(
    family: str,
    title: str,
    class_name: str,
    markers: tuple[str, ...],
    layout: Layout,
    measure: Measure,
    where: str,
    name: str = "transformer",
) -> Part:
    """The part that is trained. family: the folder below backend/models whose configs/ holds the shipped config."""
    return Part(
        name,
        title,
        name,
        (class_name,),
        CONFIG,
        "diffusion_pytorch_model",
        markers,
        layouts=(layout,),
        measure=measure,
        shipped=_shipped(family, name),
        where=where,
    )


def kl_vae(family: str, where: str) -> Part:
    """The VAE of latent diffusion: ``AutoencoderKL``."""
    markers = ("encoder.down_blocks.0.resnets.0.conv1.weight", "decoder.conv_in.weight")
    return _vae(family, "AutoencoderKL", markers, LDM_VAE, measures.kl_vae, where)


def qwen_vae(family: str) -> Part:
    """The VAE of Wan as Qwen-Image has it: ``AutoencoderKLQwenImage``."""
    markers = ("encoder.mid_block.attentions.0.to_qkv.weight", "decoder.conv_in.weight")
    where = "qwen_image_vae.safetensors, or a VAE's folder"
    return _vae(family, "AutoencoderKLQwenImage", markers, WAN_VAE, measures.wan_vae, where)


def wan_vae(family: str) -> Part:
    """The VAE of Wan 2.1: ``AutoencoderKLWan``."""
    markers = ("encoder.mid_block.attentions.0.to_qkv.weight", "decoder.conv_in.weight")
    return _vae(family, "AutoencoderKLWan", markers, WAN_VAE, measures.wan_vae, "wan_2.1_vae.safetensors")


def wan22_vae(family: str) -> Part:
    """The VAE of Wan 2.2 5B: another ``AutoencoderKLWan``."""
    part = replace(wan_vae(family), title="the VAE of Wan 2.2 5B", where="wan2.2_vae.safetensors")
    return replace(part, layouts=(WAN22_VAE,), measure=measures.wan22_vae, shipped=_shipped(family, "vae_22"))


def _vae(family: str, class_name: str, markers: tuple[str, ...], layout: Layout, measure: Measure, where: str) -> Part:
    return Part(
        "vae",
        "the VAE",
        "vae",
        (class_name,),
        CONFIG,
        "diffusion_pytorch_model",
        markers,
        setting="vae",
        layouts=(layout,),
        measure=measure,
        shipped=_shipped(family, "vae"),
        where=where,
    )


def text_encoder(
    family: str,
    name: str,
    title: str,
    class_names: tuple[str, ...],
    markers: tuple[str, ...],
    layouts: tuple[Layout, ...],
    measure: Measure,
    where: str,
    optional: bool = False,
) -> Part:
    """A text encoder of transformers."""
    shipped = _shipped(family, name)
    return Part(
        name, title, name, class_names, CONFIG, "model", markers, name, layouts, measure, shipped, where, optional
    )


def clip(
    family: str,
    name: str,
    where: str,
    class_name: str = "CLIPTextModel",
    layouts: tuple[Layout, ...] = (HF_CLIP,),
) -> Part:
    """The smaller CLIP text encoder."""
    markers = ("embeddings.token_embedding.weight",)
    return text_encoder(family, name, "the CLIP text encoder", (class_name,), markers, layouts, measures.clip, where)


def large_clip(
    family: str,
    name: str,
    where: str,
    layouts: tuple[Layout, ...] = (HF_CLIP_G,),
    markers: tuple[str, ...] = ("embeddings.token_embedding.weight",),
) -> Part:
    """The larger CLIP text encoder (OpenCLIP bigG), with its projection."""
    classes = ("CLIPTextModelWithProjection",)
    return text_encoder(family, name, "the larger CLIP text encoder", classes, markers, layouts, measures.clip, where)


def t5(family: str, name: str, where: str, optional: bool = False) -> Part:
    """T5's encoder."""
    classes, markers = ("T5EncoderModel",), ("SelfAttention.q.weight",)
    return text_encoder(family, name, "the T5 text encoder", classes, markers, (T5,), measures.t5, where, optional)


def umt5(family: str, where: str) -> Part:
    """umT5's encoder."""
    markers = ("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight",)
    title, classes = "the umT5 text encoder", ("UMT5EncoderModel",)
    return text_encoder(family, "text_encoder", title, classes, markers, (UMT5, UMT5_NATIVE), measures.t5, where)


def clip_vision(family: str, where: str) -> Part:
    """The eyes of CLIP, for a model that reads the picture that a clip starts from."""
    markers = ("embeddings.patch_embedding.weight", "post_layernorm.weight")
    title, classes = "the CLIP vision encoder", ("CLIPVisionModel", "CLIPVisionModelWithProjection")
    layouts = (HF_CLIP_VISION,)
    return text_encoder(family, "image_encoder", title, classes, markers, layouts, measures.clip_vision, where)


def image_processor(family: str) -> Part:
    """What cuts a picture for the eyes of CLIP, of which the config alone is read."""
    inside, classes = (
        (("preprocessor_config.json",),),
        ("CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil"),
    )
    shipped = _shipped(family, "image_processor")
    return Part("image_processor", "the image processor of CLIP", "image_processor", classes, inside, shipped=shipped)


def clip_tokenizer(name: str, where: str, title: str = "the CLIP tokenizer") -> Part:
    """A CLIP tokenizer."""
    return Part(name, title, name, ("CLIPTokenizer", "CLIPTokenizerFast"), _BPE, setting=name, where=where)


def qwen_tokenizer(title: str, where: str) -> Part:
    """The tokenizer of a Qwen language model."""
    classes = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
    return Part("tokenizer", title, "tokenizer", classes, _BPE, setting="tokenizer", where=where)


def t5_tokenizer(
    name: str, where: str, folder: str = "", optional: bool = False, title: str = "the T5 tokenizer"
) -> Part:
    """T5's tokenizer, or umT5's."""
    inside = (("tokenizer_config.json",), ("tokenizer.json", "spiece.model"))
    classes = ("T5TokenizerFast", "T5Tokenizer")
    return Part(name, title, folder or name, classes, inside, setting=name, where=where, optional=optional)


def flow_scheduler(family: str) -> Part:
    """The scheduler of a model that is trained by flow matching."""
    return scheduler(family, ("FlowMatchEulerDiscreteScheduler",))


def scheduler(family: str, class_names: tuple[str, ...]) -> Part:
    """A scheduler, of which the config alone is read."""
    inside, shipped = (("scheduler_config.json",),), _shipped(family, "scheduler")
    return Part("scheduler", "the scheduler", "scheduler", class_names, inside, shipped=shipped)


def _shipped(family: str, name: str) -> str:
    return f"{family}/configs/{name}.json"


_BPE = (("tokenizer_config.json",), ("vocab.json", "tokenizer.json"), ("merges.txt", "tokenizer.json"))
