"""Tells by its tensors' names and shapes what a model file is, for the message that a wrong one gets. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Shapes = Mapping[str, tuple[int, ...]]
Where = Literal["", "relative", "foreign"]


@dataclass(frozen=True)
class Kind:
    """A kind of file: parts of tensor names that must all be there, and what it is in words.

    where: "relative" of a model that is trained here whose names fit it, but which works otherwise; "foreign" of what
    no base model holds, whatever else is in the file. inputs: of its first layer, by which relatives are recognised.
    """

    needles: tuple[str, ...]
    title: str
    where: Where = ""
    inputs: tuple[str, int] | None = None

    def fits(self, shapes: Shapes, names: str) -> bool:
        """Whether a file of these tensors is one. names: theirs, one a line: a text is searched sooner than a list."""
        if not all(needle in names for needle in self.needles):
            return False
        if self.inputs is None:
            return True
        ending, count = self.inputs
        return any(name.endswith(ending) and len(shape) > 1 and shape[1] == count for name, shape in shapes.items())


_LDM, _UNET = ("input_blocks.", "middle_block."), "input_blocks.0.0.weight"
_BFL, _FLUX = ("double_blocks.", "single_blocks."), ("single_transformer_blocks.", "x_embedder.")
_FILL = "the transformer of FLUX.1 Fill, which takes a masked image too"
_CONTROL = "the transformer of FLUX.1 Canny or Depth, which takes a drawing too"

_HUNYUAN_I2V = "the transformer of HunyuanVideo for images to video, which takes a picture too"
_SKYREELS = "the transformer of SkyReels for images to video, which takes a picture too"
_WAN = "patch_embedding.weight"

# The first that fits is the one. Names: each project's own code, and ComfyUI's `comfy/model_detection.py`.
KINDS: tuple[Kind, ...] = (
    Kind((".lokr_w",), "a LoKr", "foreign"),
    Kind((".hada_w",), "a LoHa", "foreign"),
    Kind((".lora_",), "a LoRA", "foreign"),
    Kind(("lora_unet_",), "a LoRA", "foreign"),
    Kind(("lora_te",), "a LoRA of a text encoder", "foreign"),
    Kind(("controlnet_",), "a ControlNet", "foreign"),
    Kind(("control_model.",), "a ControlNet", "foreign"),
    Kind(("input_hint_block.",), "a ControlNet", "foreign"),
    Kind(("ip_adapter.",), "an IP-Adapter", "foreign"),
    Kind(("motion_modules.",), "a motion module of AnimateDiff", "foreign"),
    Kind(("quant_state.bitsandbytes",), "a model whose weights bitsandbytes has quantised", "foreign"),
    Kind((".qweight",), "a model whose weights another program has quantised to 4 bits", "foreign"),
    Kind((".weight_scale_2",), "a model whose weights are quantised to NVFP4", "foreign"),
    Kind(("redux_up.",), "the adapter of FLUX.1 Redux"),
    Kind((*_BFL, "text_encoders.", "vae."), "a whole FLUX checkpoint"),
    Kind(("double_blocks.", "distilled_guidance_layer."), "a Chroma transformer"),
    Kind(("double_stream_modulation_img.",), "a FLUX.2 transformer"),
    Kind(("double_blocks.", "byt5_in.", "vision_in."), "a HunyuanVideo 1.5 transformer, which is not supported"),
    Kind(("double_blocks.", "individual_token_refiner."), _HUNYUAN_I2V, "relative", ("img_in.proj.weight", 33)),
    Kind(("double_blocks.", "individual_token_refiner."), _SKYREELS, "relative", ("img_in.proj.weight", 32)),
    Kind(("double_blocks.", "individual_token_refiner.", "byt5_in."), "a HunyuanVideo 1.5 or HunyuanImage transformer"),
    Kind(("double_blocks.", "individual_token_refiner."), "a HunyuanVideo transformer"),
    Kind(("clean_x_embedder.", "image_projection."), "a FramePack transformer"),
    Kind(("single_transformer_blocks.", "token_refiner."), _HUNYUAN_I2V, "relative", ("x_embedder.proj.weight", 33)),
    Kind(("single_transformer_blocks.", "token_refiner."), _SKYREELS, "relative", ("x_embedder.proj.weight", 32)),
    Kind(("single_transformer_blocks.", "token_refiner."), "a HunyuanVideo transformer in diffusers layout"),
    Kind(_BFL, _FILL, "relative", ("img_in.weight", 384)),
    Kind(_BFL, _CONTROL, "relative", ("img_in.weight", 128)),
    Kind(_BFL, "a FLUX transformer in Black Forest Labs' own layout"),
    Kind(_FLUX, _FILL, "relative", ("x_embedder.weight", 384)),
    Kind(_FLUX, _CONTROL, "relative", ("x_embedder.weight", 128)),
    Kind(_FLUX, "a FLUX transformer in diffusers layout"),
    Kind(("txt_norm.", "addition_t_embedding."), "the transformer of Qwen-Image-Layered", "relative"),
    Kind(("transformer_blocks.", "txt_norm.", "img_in."), "a Qwen-Image transformer"),
    Kind(("joint_blocks.", "x_embedder.proj.", "first_stage_model.", "text_encoders."), "a whole SD3 checkpoint"),
    Kind(("joint_blocks.", "x_embedder.proj.", "first_stage_model."), "an SD3 checkpoint without its text encoders"),
    Kind(("joint_blocks.", "x_embedder.proj."), "an SD3 transformer"),
    Kind(("transformer_blocks.", "pos_embed.proj.", "context_embedder."), "an SD3 transformer in diffusers layout"),
    Kind(("llm_adapter.", "blocks.0.adaln_modulation"), "an Anima transformer"),
    Kind(("blocks.0.adaln_modulation", "t_embedder."), "a Cosmos transformer"),
    Kind(("blocks.0.cross_attn.k_img", "patch_embedding."), "a Wan image-to-video transformer"),
    Kind(("blocks.0.cross_attn.", "vace_patch_embedding."), "a Wan VACE transformer"),
    Kind(("blocks.0.cross_attn.", _WAN), "a Wan 2.2 image-to-video transformer", "", (_WAN, 36)),
    Kind(("blocks.0.cross_attn.", _WAN), "the transformer of Wan 2.2 5B", "", (_WAN, 48)),
    Kind(("blocks.0.cross_attn.", "patch_embedding."), "a Wan transformer"),
    Kind(("noise_refiner.", "cap_embedder."), "a Lumina 2 or Z-Image transformer"),
    Kind(("double_stream_blocks.", "caption_projection."), "a HiDream transformer"),
    Kind(("double_layers.", "positional_encoding"), "an AuraFlow transformer"),
    Kind(("t_block.1.", "cross_attn.q_linear."), "a PixArt transformer"),
    Kind(("patchify_proj.", "adaln_single."), "an LTX-Video transformer"),
    Kind(("time_stack.",), "a Stable Video Diffusion checkpoint", "relative"),
    Kind(("edm_mean", *_LDM), "a Playground v2.5 checkpoint, which is trained over another noise schedule", "relative"),
    Kind(("edm_vpred.", *_LDM), "a CosXL checkpoint, which is trained over another noise schedule", "relative"),
    Kind(("time_embed.cond_proj.",), "a latent consistency model (LCM), which is distilled", "relative"),
    Kind(_LDM, "an inpainting checkpoint, which takes a masked image too", "relative", (_UNET, 9)),
    Kind(_LDM, "an InstructPix2Pix checkpoint, which takes an image too", "relative", (_UNET, 8)),
    Kind(_LDM, "a depth-to-image checkpoint, which takes a depth map too", "relative", (_UNET, 5)),
    Kind(("input_blocks.", "conditioner.embedders.0.model."), "the refiner of SDXL", "relative"),
    Kind(
        ("input_blocks.", "cond_stage_model.model.transformer."),
        "a Stable Diffusion 2 checkpoint, which is read from a folder in diffusers layout only",
        "relative",
    ),
    Kind(("input_blocks.", "first_stage_model.", "conditioner."), "a whole SDXL checkpoint"),
    Kind(("input_blocks.", "first_stage_model.", "cond_stage_model."), "a whole Stable Diffusion checkpoint"),
    Kind(("input_blocks.", "first_stage_model."), "a Stable Diffusion checkpoint without its text encoders"),
    Kind(_LDM, "a Stable Diffusion UNet in latent diffusion's layout"),
    Kind(("down_blocks.", "time_embedding."), "a Stable Diffusion UNet"),
    Kind(("encoder.downsamples.0.downsamples.",), "the VAE of Wan 2.2 5B"),
    Kind(("encoder.downsamples.", "decoder.upsamples."), "the VAE of Wan or Qwen-Image"),
    Kind(("decoder.mid_block.", "encoder.mid_block.", "to_qkv."), "the VAE of Wan or Qwen-Image in diffusers layout"),
    Kind(("decoder.mid.block_1.", "encoder.conv_in.conv."), "HunyuanVideo's VAE"),
    Kind(("decoder.mid_block.", "encoder.conv_in.conv.", "to_q."), "HunyuanVideo's VAE in diffusers layout"),
    Kind(("decoder.mid.block_1.", "encoder.conv_in."), "a VAE in latent diffusion's layout"),
    Kind(("decoder.conv_in.", "encoder.conv_in."), "a VAE"),
    Kind(("decoder.conv_in.",), "a VAE decoder"),
    Kind(("encoder.layers.0.weight", "decoder.layers.1.weight"), "a tiny autoencoder (TAESD), for previews"),
    Kind(("visual.", "layers.0.self_attn."), "a vision language model, such as Qwen2.5-VL"),
    Kind(("embed_tokens.", "layers.0.self_attn."), "a language model, such as Qwen's or Llama"),
    Kind(("block.1.layer.0.SelfAttention.relative_attention_bias",), "a umT5 text encoder"),
    Kind(("SelfAttention.",), "a T5 text encoder"),
    Kind(("vision_model.",), "a whole CLIP model with its vision part"),
    Kind(("visual.", "transformer.resblocks."), "a whole open_clip model with its vision part"),
    Kind(("transformer.resblocks.",), "a CLIP text encoder in open_clip's layout"),
    Kind(("text_model.encoder.layers.12.", "text_projection."), "the larger CLIP text encoder (bigG)"),
    Kind(("text_model.",), "a CLIP text encoder"),
    Kind(("embeddings.token_embedding.",), "a CLIP text encoder"),
    Kind(("clip_l",), "an embedding (textual inversion)"),
    Kind(("emb_params",), "an embedding (textual inversion)"),
    Kind(("RDB1.conv1.",), "an upscaler"),
    Kind(("rdb1.conv1.",), "an upscaler"),
)


def which(shapes: Shapes) -> Kind | None:
    """The kind of a file that holds tensors of these names and shapes; None when nothing known fits."""
    names = "\n".join(shapes)
    return next((kind for kind in KINDS if kind.fits(shapes, names)), None)


def kind_of(names: Iterable[str]) -> str | None:
    """What a set of tensor names belongs to, in words ("a VAE"); None when nothing known fits."""
    kind = which(dict.fromkeys(names, ()))
    return None if kind is None else kind.title
