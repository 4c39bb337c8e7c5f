"""Declares [model]: the base model and its files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from backend.config.declare import Section, optional_path, setting
from backend.config.sections.values import clean_path, not_blank, one_of
from backend.families import table

FAMILIES = tuple(table.FAMILIES)


class ModelSection(Section):
    """The base model and how it is loaded."""

    family: Annotated[str, AfterValidator(one_of(table.FAMILIES))] = setting(
        "flux",
        choices=FAMILIES,
        label="Model family",
        help="The architecture of the base model. It decides which parts the folder must have, which blocks are "
        "compiled and which layers get a LoRA.",
        aliases=("model_type", "model_arch", "architecture", "model_family", "arch"),
        basic=True,
    )
    base_model: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Base model",
        help="Folder of the base model in diffusers layout (the folder with model_index.json), or a single "
        "safetensors file as its authors or ComfyUI publish it: flux1-dev.safetensors, or a whole SDXL or SD "
        "1.5 checkpoint. Choose below what the file does not contain. Nothing is downloaded.",
        aliases=("pretrained_model_name_or_path", "base_model_name", "name_or_path", "dit", "ckpt", "model_path"),
        basic=True,
    )
    transformer_2: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Low-noise expert",
        help="The expert for low noise of Wan 2.2 14B, where the base model is the file of the one for high noise: "
        "wan2.2_t2v_low_noise_14B_fp16.safetensors, or a folder. A folder with both experts needs nothing here.",
        aliases=("low_noise_model", "dit_low_noise"),
        basic=True,
    )
    text_encoder: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Text encoder",
        help="The text encoder, when the base model does not contain it or to use another one: a single file (for "
        "FLUX clip_l.safetensors) or its folder in diffusers layout.",
        aliases=("clip_l", "clip", "text_encoder_path", "text_encoder1", "qwen_vl"),
        basic=True,
    )
    text_encoder_2: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Second text encoder",
        help="The second text encoder, when the base model does not contain it or to use another one: for FLUX "
        "t5xxl_fp16.safetensors or an fp8 version of it, for SDXL and SD3 the larger CLIP; or its folder.",
        aliases=("t5xxl", "t5", "clip_g", "text_encoder2"),
        basic=True,
    )
    text_encoder_3: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Third text encoder",
        help="The third text encoder, when the base model does not contain it: for SD3 t5xxl_fp16.safetensors or an "
        "fp8 version of it, or its folder. SD3 also works without it, with its two CLIP encoders alone.",
        aliases=("text_encoder3",),
        basic=True,
    )
    image_encoder: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Image encoder",
        help="The encoder of the picture that a clip starts from, when the base model does not contain it: for Wan 2.1 "
        "image to video clip_vision_h.safetensors, or its folder.",
        aliases=("clip_vision", "clip_vision_path", "image_encoder_path"),
        basic=True,
    )
    zero_cond_t: Literal["auto", "on", "off"] = setting(
        "auto",
        label="File is Qwen-Image-Edit-2511",
        help="Whether a single file is Qwen-Image-Edit-2511, whose control images have a timestep of zero, or 2509. "
        "auto: as the file says; ComfyUI's files do. For a folder it is always known.",
        advanced=True,
    )
    tokenizer: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Tokenizer",
        help="Folder of the text encoder's tokenizer. Needed when the base model is a single file, which never "
        "contains it: the small folder tokenizer of the model's repository.",
        aliases=("tokenizer_path", "tokenizer_1", "tokenizer_cache_dir"),
    )
    tokenizer_2: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Second tokenizer",
        help="Folder of the second text encoder's tokenizer: tokenizer_2 of the model's repository.",
        aliases=("t5_tokenizer",),
    )
    tokenizer_3: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Third tokenizer",
        help="Folder of the third text encoder's tokenizer: tokenizer_3 of an SD3 model's repository.",
        aliases=("tokenizer3",),
    )
    vae: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="VAE",
        help="The VAE, when the base model does not contain it or to use another one: a single file (for FLUX "
        "ae.safetensors) or its folder in diffusers layout.",
        aliases=("vae_path", "ae", "vae_override"),
        basic=True,
    )
    variant: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="File variant",
        help="The middle part of the weight files' names: fp16 loads model.fp16.safetensors. Leave it empty for "
        "files without such a part.",
        aliases=("model_variant", "revision_variant"),
        advanced=True,
    )
    weight_dtype: Literal["auto", "bf16", "fp16", "fp32"] = setting(
        "auto",
        label="Base model precision",
        help="Number format of the frozen base model on the GPU. auto: bf16 where the GPU supports it, fp32 on a "
        "CPU. bf16 needs half the memory of fp32. fp16 is for GPUs without bf16 and can overflow. In full fine-tuning "
        "the trained weights have a setting of their own (full_weight_dtype), and this is for VAE and text encoders.",
        aliases=("transformer_dtype", "dit_dtype", "base_model_precision", "full_bf16", "train_dtype"),
    )
    guidance_scale: float = setting(
        1.0,
        ge=0,
        le=100,
        label="Guidance scale (training)",
        help="The guidance value that a guidance-distilled model (FLUX.1-dev) receives in every training step. Most "
        "trainers use 1.0 for LoRAs. Models without a guidance input ignore it. Sample images have a guidance "
        "scale of their own.",
        aliases=("training_guidance_scale", "flux_guidance_value", "guidance"),
    )
    text_length: int | None = setting(
        None,
        ge=16,
        le=4096,
        unit="tokens",
        label="Max text length",
        help="Longest caption that the text encoder reads; the rest is cut off. Empty: the family's own value (512 "
        "for FLUX, 256 of T5 for SD3), with which the base model was trained. A shorter length saves time, and "
        "changes the result for FLUX and SD3, because they attend to their padding.",
        aliases=("t5xxl_max_token_length", "max_sequence_length", "tokenizer_max_length"),
        advanced=True,
    )
