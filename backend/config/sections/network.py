"""Declares [network]: the LoRA."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from backend.config.declare import Section, optional_path, setting
from backend.config.sections.values import clean_path, pattern

_Pattern = Annotated[str, AfterValidator(pattern)]
_Multiplier = Annotated[float, Field(ge=-10, le=10)]


class LayerRow(Section):
    """One row of [[network.layer_settings]]."""

    layers: _Pattern = setting(
        label="Layers",
        help="The end of a layer's name (attn.to_q), or a regular expression for the whole name "
        "(single_transformer_blocks.*). A pattern that matches no trained layer is an error.",
    )
    dim: int | None = setting(
        None,
        ge=1,
        le=4096,
        label="Rank (dim)",
        help="Rank of these layers. Empty: the rank of the run.",
        aliases=("network_dim", "rank", "conv_dim"),
    )
    alpha: float | None = setting(
        None,
        gt=0,
        le=65536,
        label="Alpha",
        help="Alpha of these layers. Empty: alpha / rank is the same as in other layers.",
        aliases=("network_alpha", "conv_alpha"),
    )
    learning_rate: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="Learning rate",
        help="Learning rate of these layers; the scheduler changes it too. Empty: the learning rate of the run.",
        aliases=("lr",),
    )


class NetworkSection(Section):
    """Type, size and layers of the LoRA."""

    network_type: Literal["lora", "dora", "lokr", "loha"] = setting(
        "lora",
        label="Network type",
        help="lora: two small matrices for each layer, which every program reads. dora: the same, and the length of "
        "each output's weights is trained separately; at small ranks it can come nearer to full training, but "
        "it is slower and needs more memory. ComfyUI reads it in kohya's layout, but divides by other lengths, "
        "so that large changes look stronger or weaker there; diffusers reads it exactly, in its own layout. "
        "lokr, a Kronecker product, makes much smaller files. loha can change more at the same rank and trains "
        "more slowly. Both are LyCORIS types: ComfyUI reads them, diffusers does not.",
        aliases=("algo", "lora_type", "lycoris_algo", "network_kind", "peft_type"),
        advanced=True,
    )
    lokr_factor: int | None = setting(
        None,
        ge=1,
        le=4096,
        label="LoKr factor",
        help="Largest size of LoKr's small factor. Smaller values make larger files that can learn more: 4 to 16 "
        "are common. Empty: both factors are as square as possible, which is the smallest file.",
        aliases=("factor", "decompose_factor"),
        advanced=True,
    )
    network_dim: int = setting(
        16,
        ge=1,
        le=4096,
        label="Network rank (dim)",
        help="Size of the LoRA. A higher rank can learn more and makes a larger file: 8 to 16 for a style or a "
        "character, 32 or more for many subjects at once.",
        aliases=("rank", "lora_rank", "lora_dim", "lora_r", "r", "linear", "dim"),
        basic=True,
    )
    network_alpha: float = setting(
        16.0,
        gt=0,
        le=65536,
        label="Network alpha",
        help="The LoRA is multiplied by alpha / rank. An alpha equal to the rank does not scale it; half the rank "
        "trains as with a lower learning rate. In some trainers 0 means 'the rank': write the rank itself "
        "here.",
        aliases=("lora_alpha", "alpha", "linear_alpha"),
        basic=True,
    )
    network_dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Network dropout",
        help="Share of the LoRA's inputs that is set to zero in each step. 0.05 to 0.1 can help against overfitting "
        "with small data sets; 0 is off.",
        aliases=("lora_dropout", "dropout", "neuron_dropout"),
        advanced=True,
    )
    rank_dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Rank dropout",
        help="Share of the LoRA's ranks that is skipped in each step: 0.1 to 0.3 is common, 0 is off. It spreads "
        "the learning over all ranks. Chosen at random for each image; the other ranks are scaled up.",
        aliases=("lora_rank_dropout",),
        advanced=True,
    )
    module_dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Module dropout",
        help="How often a layer runs one step without its LoRA: 0.1 to 0.3 can help against overfitting with small "
        "data sets; 0 is off. Chosen at random for each layer.",
        aliases=("lora_module_dropout", "layer_dropout"),
        advanced=True,
    )
    scale_weight_norms: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="Scale weight norms",
        help="Largest norm of the LoRA's change in one layer: 1 is usual, empty sets no limit. After each step, "
        "layers above it are scaled down to it. It protects single layers at high learning rates, and makes "
        "LoRAs easier to combine.",
        aliases=("scale_weight_norm", "max_key_norm", "max_norm_regularization", "weight_norm_limit"),
        advanced=True,
    )
    loraplus_lr_ratio: float = setting(
        1.0,
        gt=0,
        le=1000,
        label="LoRA+ LR ratio",
        help="The LoRA's second matrix (B, up) learns with this multiple of the learning rate: 4 to 16 learn "
        "faster, with a somewhat lower learning rate; 1 is off. The run shows the rate of the first matrix.",
        aliases=("loraplus_unet_lr_ratio", "loraplus_ratio", "lora_plus_ratio", "lora_plus_lr_ratio", "lora_plus"),
        advanced=True,
    )
    loraplus_text_encoder_lr_ratio: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="LoRA+ LR ratio (text encoders)",
        help="The same for trained text encoders. Empty: the LoRA+ LR ratio above.",
        aliases=("loraplus_te_lr_ratio",),
        advanced=True,
    )
    conv_dim: int | None = setting(
        None,
        ge=1,
        le=4096,
        label="Conv rank (dim)",
        help="For SDXL and Stable Diffusion 1.5: the ResNets, down- and upsamplers get a LoRA too, with this rank "
        "in convolutions larger than one pixel (LoCon). It can change shapes and textures more, makes a larger "
        "file and needs more memory. Empty: they get none.",
        aliases=("conv_rank", "conv_lora_dim", "convolution_dim"),
        advanced=True,
    )
    conv_alpha: float | None = setting(
        None,
        gt=0,
        le=65536,
        label="Conv alpha",
        help="Alpha of the convolutions. Empty: alpha / rank is the same as in other layers.",
        aliases=("convolution_alpha",),
        advanced=True,
    )
    train_text_encoder: bool = setting(
        False,
        label="Train text encoders",
        help="The text encoders get a LoRA too, with the same rank, saved in the same file; in full fine-tuning their "
        "own weights are trained and saved. Captions are then encoded in every step and not cached, and the text "
        "encoders stay on the GPU: slower, with more memory. It helps with new words.",
        aliases=("train_text_encoders", "train_te", "text_encoder_train", "network_train_text_encoder"),
    )
    lora_weight_dtype: Literal["fp32", "bf16"] = setting(
        "fp32",
        label="LoRA weight precision",
        help="Format of the LoRA's weights in the forward and backward pass. bf16 saves a conversion in every "
        "block. The optimizer then changes float32 copies, which are saved, and needs 4 more bytes for each "
        "weight.",
        aliases=("lora_dtype", "network_dtype", "lora_precision"),
        advanced=True,
    )
    lora_fused: bool = setting(
        False,
        label="Fuse LoRA of Q, K and V",
        help="Computes the LoRA of query, key and value in one product instead of three. Fewer and larger kernels, "
        "the same numbers; not possible with dropout.",
        aliases=("fused_lora", "fuse_qkv_lora"),
        advanced=True,
    )
    targets_include: list[_Pattern] | None = setting(
        None,
        min_length=1,
        label="Layers to train",
        help="Which layers get a LoRA, by the end of their name (attn.to_q) or by a regular expression for the "
        "whole name. Empty: the list of the model family. A pattern that matches no layer is an error. In full "
        "fine-tuning: which parts of the model are trained (also transformer_blocks.0); empty: all of it.",
        aliases=("target_modules", "lora_target_modules", "include_patterns", "lora_layers", "only_if_contains"),
        advanced=True,
    )
    targets_exclude: list[_Pattern] | None = setting(
        None,
        min_length=1,
        label="Layers to exclude",
        help="Layers that are not trained even if the list above names them, written in the same way.",
        aliases=("exclude_patterns", "exclude_modules", "ignore_if_contains"),
        advanced=True,
    )
    layer_settings: list[LayerRow] | None = setting(
        None,
        min_length=1,
        label="Rank and LR of single layers",
        help="Rank, alpha and learning rate of single layers, by name. Where several rows match a layer, the later "
        "rows count.",
        aliases=("rank_pattern", "lr_pattern", "network_reg_dims", "network_reg_lrs", "block_dims", "block_lr"),
        advanced=True,
    )
    base_weights: list[Annotated[str, AfterValidator(clean_path)]] | None = setting(
        None,
        min_length=1,
        label="LoRAs to merge into the base model",
        help="LoRA files that are merged into the base model before training, in this order. The new LoRA is "
        "trained on top of them, and needs them wherever it is used. LoRA, DoRA, LoKr and LoHa, in the layouts "
        "that Continue from LoRA reads, for the same base model, with their CLIP text encoders. They are "
        "merged in float32, before the base model is quantized; the files on disk do not change.",
        aliases=("base_lora", "base_loras", "merge_lora"),
        advanced=True,
    )
    base_weights_multiplier: list[_Multiplier] | None = setting(
        None,
        min_length=1,
        label="Multipliers of merged LoRAs",
        help="Strength of each merged LoRA, in the same order: 1 is the full strength, 0.5 is half of it, a "
        "negative number subtracts it. Empty: 1 for all.",
        aliases=("base_weights_strength",),
        advanced=True,
    )
    network_weights: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Continue from LoRA",
        help="A LoRA file whose weights are the start of the training, with a new optimizer state and step count: "
        "from Monotile, kohya's sd-scripts, ComfyUI, diffusers or peft, for the same base model. A rank "
        "smaller than the network rank is padded. A DoRA can start from a plain LoRA too. A LoKr or LoHa, from "
        "Monotile or LyCORIS, keeps its rank. To continue a stopped run exactly where it stopped, use Resume "
        "instead.",
        aliases=("lora_model_name", "resume_lora", "init_lora", "pretrained_lora", "lora_path"),
        advanced=True,
    )

    @property
    def drops(self) -> bool:
        """Whether anything of the LoRA is left out by chance."""
        return max(self.network_dropout, self.rank_dropout, self.module_dropout) > 0

    @property
    def merged(self) -> list[tuple[str, float]]:
        """The files of `base_weights` in their order, each with its multiplier."""
        paths = self.base_weights or []
        return list(zip(paths, self.base_weights_multiplier or [1.0] * len(paths), strict=True))
