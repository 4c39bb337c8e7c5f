"""Declares [network]: the LoRA."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from backend.config.declare import Section, setting
from backend.config.sections.values import clean_path, pattern

_Pattern = Annotated[str, AfterValidator(pattern)]
_Multiplier = Annotated[float, Field(ge=-10, le=10)]


class LayerRow(Section):
    """One row of [[network.layer_settings]]."""

    layers: _Pattern = setting(
        label="Layers",
        help="The end of a layer's name (attn.to_q), or a regular expression over the whole name "
        "(single_transformer_blocks.*). A pattern that fits no trained layer is an error.",
    )
    dim: int | None = setting(
        None,
        ge=1,
        le=4096,
        label="Rank",
        help="Rank of these layers. Empty: the run's.",
        aliases=("network_dim", "rank", "conv_dim"),
    )
    alpha: float | None = setting(
        None,
        gt=0,
        le=65536,
        label="Alpha",
        help="Alpha of these layers. Empty keeps alpha / rank as it is elsewhere.",
        aliases=("network_alpha", "conv_alpha"),
    )
    learning_rate: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="Learning rate",
        help="Learning rate of these layers; the schedule applies to it too. Empty: the run's.",
        aliases=("lr",),
    )


class NetworkSection(Section):
    """Size, strength and place of the LoRA."""

    network_type: Literal["lora", "dora", "lokr", "loha"] = setting(
        "lora",
        label="Kind",
        help="How a layer's change is kept small. lora: two thin matrices, read by every program. dora: the same, and "
        "the length of each output's weights is trained by itself; at small ranks it can come nearer to full "
        "training, and it is slower and takes more memory. ComfyUI reads it in kohya's layout, but divides by other "
        "lengths, so that large changes come out stronger or weaker there; diffusers reads it exactly, in its own. "
        "lokr, a Kronecker product, makes much smaller files; loha can change more at the same rank and trains slower. "
        "Both are LyCORIS', and ComfyUI reads them, but diffusers does not.",
        aliases=("algo", "lora_type", "lycoris_algo", "network_kind", "peft_type"),
        advanced=True,
    )
    lokr_factor: int | None = setting(
        None,
        ge=1,
        le=4096,
        label="LoKr factor",
        help="Largest size of LoKr's small factor. Smaller values make larger files that can learn more: 4 to 16 are "
        "common. Empty makes both factors as square as they can be, the smallest file.",
        aliases=("factor", "decompose_factor"),
        advanced=True,
    )
    network_dim: int = setting(
        16,
        ge=1,
        le=4096,
        label="Rank",
        help="Width of the LoRA (r). More can learn more and makes a larger file: 8 to 16 for a style or a "
        "character, 32 and up for many subjects at once.",
        aliases=("rank", "lora_rank", "lora_dim", "lora_r", "r", "linear", "dim"),
    )
    network_alpha: float = setting(
        16.0,
        gt=0,
        le=65536,
        label="Alpha",
        help="The LoRA is scaled by alpha / rank. Equal to the rank leaves it unscaled; half the rank trains as if the "
        "learning rate were lower. Some trainers take 0 for 'the rank': write the rank itself here.",
        aliases=("lora_alpha", "alpha", "linear_alpha"),
    )
    network_dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Dropout",
        help="Share of the LoRA's inputs set to zero in each step. 0.05 to 0.1 can help small data sets not to be "
        "learnt by heart; 0 is off.",
        aliases=("lora_dropout", "dropout", "neuron_dropout"),
        advanced=True,
    )
    rank_dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Rank dropout",
        help="Share of the LoRA's ranks left out in each step: 0.1 to 0.3 is common, 0 is off. It spreads what is "
        "learnt over all of them. Drawn for each picture by itself; the others are scaled up.",
        aliases=("lora_rank_dropout",),
        advanced=True,
    )
    module_dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        unit="share",
        label="Module dropout",
        help="How often a layer goes without its LoRA for a step: 0.1 to 0.3 can help small data sets not to be learnt "
        "by heart; 0 is off. Drawn for each layer by itself.",
        aliases=("lora_module_dropout", "layer_dropout"),
        advanced=True,
    )
    scale_weight_norms: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="Limit of weight norms",
        help="Largest norm of what the LoRA changes in one layer: 1 is usual, empty sets no limit. After each step, "
        "layers above it are scaled back to it. It keeps single layers from burning in at high rates, and LoRAs easier "
        "to combine.",
        aliases=("scale_weight_norm", "max_key_norm", "max_norm_regularization", "weight_norm_limit"),
        advanced=True,
    )
    loraplus_lr_ratio: float = setting(
        1.0,
        gt=0,
        le=1000,
        label="LoRA+ ratio",
        help="The LoRA's second matrix (B, up) learns at this multiple of the learning rate: 4 to 16 learn faster, at "
        "a somewhat lower learning rate; 1 is off. The rate that is shown is the first matrix's.",
        aliases=("loraplus_unet_lr_ratio", "loraplus_ratio", "lora_plus_ratio", "lora_plus_lr_ratio", "lora_plus"),
        advanced=True,
    )
    loraplus_text_encoder_lr_ratio: float | None = setting(
        None,
        gt=0,
        le=1000,
        label="LoRA+ ratio of text encoders",
        help="The same for trained text encoders. Empty: the ratio above.",
        aliases=("loraplus_te_lr_ratio",),
        advanced=True,
    )
    conv_dim: int | None = setting(
        None,
        ge=1,
        le=4096,
        label="Rank of convolutions",
        help="For SDXL and Stable Diffusion 1.5: gives the ResNets, down- and upsamplers a LoRA too, of this rank in "
        "convolutions larger than one pixel (a LoCon). It can change shapes and textures more, makes a larger file and "
        "takes more memory. Empty leaves them alone.",
        aliases=("conv_rank", "conv_lora_dim", "convolution_dim"),
        advanced=True,
    )
    conv_alpha: float | None = setting(
        None,
        gt=0,
        le=65536,
        label="Alpha of convolutions",
        help="Alpha of the convolutions. Empty keeps alpha / rank as it is elsewhere.",
        aliases=("convolution_alpha",),
        advanced=True,
    )
    train_text_encoder: bool = setting(
        False,
        label="Train text encoders",
        help="Gives the text encoders a LoRA too, of the same rank, saved in the same file. Captions are then encoded "
        "in every step and not cached, and the encoders stay on the card: slower, and more memory. It helps with new "
        "words.",
        aliases=("train_text_encoders", "train_te", "text_encoder_train", "network_train_text_encoder"),
    )
    lora_weight_dtype: Literal["fp32", "bf16"] = setting(
        "fp32",
        label="LoRA number format",
        help="Format of the LoRA's weights in the forward and backward pass. bf16 saves their conversion in every "
        "block; the optimizer moves float32 copies, which are what is saved, at 4 more bytes a weight.",
        aliases=("lora_dtype", "network_dtype", "lora_precision"),
        advanced=True,
    )
    lora_fused: bool = setting(
        False,
        label="Fuse LoRA layers of one input",
        help="Multiplies the input of an attention with the LoRA of query, key and value in one product instead of "
        "three. Fewer and larger kernels, the same numbers; not with dropout.",
        aliases=("fused_lora", "fuse_qkv_lora"),
        advanced=True,
    )
    targets_include: list[_Pattern] | None = setting(
        None,
        min_length=1,
        label="Layers to train",
        help="Which layers get a LoRA, by the end of their name (attn.to_q) or by a regular expression over the "
        "whole name. Empty takes the family's own list. A pattern that fits no layer is an error.",
        aliases=("target_modules", "lora_target_modules", "include_patterns", "lora_layers", "only_if_contains"),
        advanced=True,
    )
    targets_exclude: list[_Pattern] | None = setting(
        None,
        min_length=1,
        label="Layers to leave out",
        help="Layers that get no LoRA although the list above names them, written the same way.",
        aliases=("exclude_patterns", "exclude_modules", "ignore_if_contains"),
        advanced=True,
    )
    layer_settings: list[LayerRow] | None = setting(
        None,
        min_length=1,
        label="Layers of their own size or rate",
        help="Rank, alpha and learning rate of single layers, by name. Of several rows that fit a layer, the later "
        "ones count.",
        aliases=("rank_pattern", "lr_pattern", "network_reg_dims", "network_reg_lrs", "block_dims", "block_lr"),
        advanced=True,
    )
    base_weights: list[Annotated[str, AfterValidator(clean_path)]] | None = setting(
        None,
        min_length=1,
        label="LoRAs merged into the base",
        help="LoRA files that the base model gets before training, in this order: what is trained then comes on top of "
        "them, and needs them wherever it is used. LoRA, DoRA, LoKr and LoHa, in the layouts that Continue from LoRA "
        "reads, for the same base model; their CLIP text encoders too. They are merged in float32, before the base is "
        "quantised, and files on disk stay as they are.",
        aliases=("base_lora", "base_loras", "merge_lora"),
        advanced=True,
    )
    base_weights_multiplier: list[_Multiplier] | None = setting(
        None,
        min_length=1,
        label="Multipliers of merged LoRAs",
        help="Strength of each LoRA merged into the base, in their order: 1 is as it was trained, 0.5 half of it, a "
        "negative number takes it away. Empty: 1 for all.",
        aliases=("base_weights_strength",),
        advanced=True,
    )
    network_weights: Annotated[str, AfterValidator(clean_path)] | None = setting(
        None,
        kind="path",
        min_length=1,
        label="Continue from LoRA",
        help="A LoRA file whose weights training starts from, with fresh optimizer state and steps: of Monotile, "
        "kohya's sd-scripts, ComfyUI, diffusers or peft, for the same base model. A smaller rank than the one set here "
        "is padded. A DoRA can start from a plain LoRA too. A LoKr or LoHa, of Monotile or LyCORIS, keeps its rank. To "
        "go on with a stopped run as if it had not stopped, use Resume instead.",
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
