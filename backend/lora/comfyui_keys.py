"""Names a LoRA's layers in files: keys as ComfyUI (kohya), diffusers, peft, OneTrainer and LyCORIS spell them.

Writing: ``kohya`` is sd-scripts' (``lora_unet_<module, points as underscores>.lora_down.weight``, ``.lora_up.weight``,
``.alpha``, and LyCORIS' ``.dora_scale``), by the names that ComfyUI's key map has for the family; ``diffusers`` is
peft's behind the name of the part (``transformer.<module path>.lora_A.weight``, no alpha, and of a DoRA
``.lora_magnitude_vector.weight``). Reading takes both, and the names that ComfyUI, peft, OneTrainer, LyCORIS and older
diffusers write.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from backend.config.layer_patterns import MAGNITUDE
from backend.families.spec import FamilyFacts
from backend.lora.native_names import Native, native_names

Format = Literal["kohya", "diffusers"]

_DOTTED = (
    "transformer.",
    "unet.",
    "diffusion_model.",
    "model.diffusion_model.",
    "base_model.model.",
    "base_model.",
    "",
)
_FLAT = ("lora_unet_", "lora_transformer_", "lycoris_")

_PARTS = {"te": "text_encoder", "te1": "text_encoder", "te2": "text_encoder_2"}
"""Text encoder, as sd-scripts calls it -> in diffusers; paths in it begin so where it is trained."""

_CONDITIONER = re.compile(r"(?:.*[._])?(?:llm_adapter|text_conditioner)[._]")
"""Layers of what turns text into Anima's conditions, in its makers' names, sd-scripts' and diffusers'."""

_BUNDLED = re.compile(r"bundle_emb\.(?P<name>.+?)(?:\.string_to_param\..+|\.[^.]+)")
"""Embeddings that OneTrainer and A1111 keep in a LoRA file: ``bundle_emb.<trigger word>.<text encoder>``."""

_TEXT = re.compile(r"(lora_te\d?_|lora_prior_te_|text_encoders?(_\d)?\.|te\d?\.|cond_stage_model\.|conditioner\.)")

_LORA = re.compile(
    r"(?P<stem>.+?)"
    r"(?:\.lora_(?P<half>A|B|down|up)(?:\.(?!weight|bias)[A-Za-z]\w*)?\.weight"
    r"|(?:_lora|\.lora|\.lora_linear_layer|(?<=_lora[12]))\.(?P<old>down|up)\.weight"
    r"|\.(?P<length>dora_scale|lora_magnitude_vector(?:\.(?!weight)[A-Za-z]\w*)?(?:\.weight)?)"
    r"|\.(?P<alpha>alpha))"
)
_FACTOR = re.compile(r"(?P<stem>.+?)\.(?P<name>hada_w[12]_[ab]|lokr_w[12](?:_[ab])?)")
_KINDS = (
    (r"\.(hada|lokr)_t[12]$", "tucker"),
    (r"\.lora_mid\.weight$", "locon"),
    (r"\.(diff|diff_b|set_weight|w_norm|b_norm)$", "diff"),
    (r"\.(oft_\w+|boft_\w+)(\..+)?$", "oft"),
    (r"\.lora_[AB](\.\w+)?\.bias$", "bias"),
)
_HALF = {"A": "A", "B": "B", "down": "A", "up": "B", "alpha": "alpha"}


@dataclass(frozen=True)
class LayerNames:
    """What the layers of a denoiser are called in LoRA files.

    layers: module path -> (in, out) features, of every linear layer and convolution, whose in features are those of
    all cells of its kernel. prefix: diffusers' name of the part. natives: the layers' names in the project's own
    layout. kohya_native: ``kohya`` files go by those. others: natives in layouts that are read and never written.
    """

    layers: Mapping[str, tuple[int, int]]
    prefix: str = "transformer"
    natives: Mapping[str, Native] = field(default_factory=dict)
    kohya_native: bool = False
    others: tuple[Mapping[str, Native], ...] = ()

    @cached_property
    def stems(self) -> dict[str, list[tuple[str, Native | None]]]:
        """What a key may have before its ending -> the layers that it means; several where the file's are fused."""
        by_stem: dict[str, list[tuple[str, Native | None]]] = {}
        for path in self.layers:
            for stem in _spelled(path):
                by_stem.setdefault(stem, [(path, None)])
        fused: dict[str, list[tuple[str, Native | None]]] = {}
        for natives in (self.natives, *self.others):
            for path, native in natives.items():
                if native != Native(path):
                    for stem in (native.stem, *native.also):
                        fused.setdefault(stem, []).append((path, native))
        for stem, parts in fused.items():
            for spelled in _spelled(stem):
                by_stem.setdefault(spelled, parts)
        return by_stem

    def joined(self, layers: Mapping[str, tuple[int, int]]) -> LayerNames:
        """The same with `layers` of text encoders that are trained too."""
        return replace(self, layers={**self.layers, **layers})

    def out_name(self, path: str, form: Format) -> str:
        """What comes before the ending of a layer's keys in a file of the format `form`."""
        encoder, _, inside = path.partition(".")
        if encoder in _PARTS:
            return f"{_PARTS[encoder]}.{inside}" if form == "diffusers" else "lora_" + path.replace(".", "_")
        if form == "diffusers":
            return f"{self.prefix}.{path}"
        native = self.natives.get(path) if self.kohya_native else None
        return "lora_unet_" + (native.stem if native else path).replace(".", "_")

    def factored_name(self, path: str) -> str:
        """What comes before the factors of a LoKr or LoHa, which can't be joined where the project's names are fused.

        Of such a family ComfyUI and LyCORIS take ``lycoris_<diffusers' module path, points as underscores>``, for all
        layers: LyCORIS' own loader knows one prefix only.
        """
        return "lycoris_" + path.replace(".", "_") if self._fused else self.out_name(path, "kohya")

    @cached_property
    def _fused(self) -> bool:
        return self.kohya_native and any(len(each.shares) > 1 or each.turn for each in self.natives.values())


def names_of(linear: Mapping[str, tuple[int, int]], facts: FamilyFacts) -> LayerNames:
    """The names of a family's denoiser, whose linear layers are `linear` (module path -> in, out features).

    Those of kohya files are the family's own, or diffusers' where `FamilyFacts.kohya_native` says so.
    """
    natives, others = native_names(facts.lora_layout(linear), linear), native_names(facts.lora_also, linear)
    return LayerNames(dict(linear), facts.lora_prefix, natives, facts.kohya_native, (others,) if others else ())


def linear_layers(model: Any) -> dict[str, tuple[int, int]]:
    """Module path -> (in, out) features of a module's linear layers and convolutions, as in `LayerNames`."""
    sizes = {}
    for name, module in model.named_modules():
        if name and hasattr(module, "in_features") and hasattr(module, "weight"):
            sizes[name] = module.in_features, module.out_features
        elif name and len(getattr(module, "kernel_size", ())) == 2 and module.groups == 1:
            sizes[name] = module.in_channels * math.prod(module.kernel_size), module.out_channels
    return sizes


def split_key(key: str) -> tuple[str, str] | None:
    """What a key has before its ending, and ``A``, ``B``, ``alpha`` or ``dora_scale``.

    None for what belongs to no LoRA or DoRA.
    """
    match = _LORA.fullmatch(key)
    if match is None or kind_of_key(key) is not None:
        return None
    if match["length"]:
        return match["stem"], MAGNITUDE
    return match["stem"], _HALF[match["half"] or match["old"] or "alpha"]


def split_factor(key: str) -> tuple[str, str] | None:
    """What a key has before its ending, and the name of a factor of LyCORIS' LoKr or LoHa; None for any other."""
    match = _FACTOR.fullmatch(key)
    return None if match is None else (match["stem"], match["name"])


def kind_of_key(key: str) -> str | None:
    """The kind that a key belongs to, of those that are not read: tucker, locon, diff, oft or bias; else None."""
    return next((kind for pattern, kind in _KINDS if re.search(pattern, key)), None)


def is_of_text(stem: str) -> bool:
    """True for a key of a text encoder's LoRA."""
    return _TEXT.match(stem) is not None


def is_of_conditioner(stem: str) -> bool:
    """True for a key of the LoRA of Anima's text conditioner."""
    return _CONDITIONER.match(stem) is not None


def bundled_embedding(key: str) -> str | None:
    """The trigger word of an embedding that is kept in a LoRA file; None for any other key."""
    match = _BUNDLED.fullmatch(key)
    return None if match is None else match["name"]


def not_loadable(paths: Iterable[str], accepted: Sequence[str]) -> list[str]:
    """Module paths that no pattern of `accepted` takes whole: other programs would leave these layers out."""
    patterns = [re.compile(pattern) for pattern in accepted]
    return [path for path in paths if not any(pattern.fullmatch(path) for pattern in patterns)]


def _spelled(name: str) -> list[str]:
    """Every way that a module's name is written before a key's ending."""
    flat = name.replace(".", "_")
    encoder, _, inside = name.partition(".")
    if encoder in _PARTS or encoder == "te3":
        return _spelled_of_text(encoder, inside)
    spelled = [prefix + name for prefix in _DOTTED] + [prefix + flat for prefix in _FLAT]
    head, point, last = name.rpartition(".to_")
    if point:
        # the attention processors of older diffusers: attn1.processor.to_out_lora.down.weight
        spelled += [f"{prefix}{head}.processor.to_{last.removesuffix('.0')}" for prefix in _DOTTED]
    return spelled


def _spelled_of_text(encoder: str, inside: str) -> list[str]:
    """The same of a text encoder's layer, of which language models and T5 have several names."""
    if encoder == "te3":
        places = [
            f"{part}.{inside}" for part in ("text_encoder_2", "text_encoder_3", "text_encoders.t5xxl.transformer")
        ]
        return [f"lora_te3_{inside.replace('.', '_')}", *places]
    whole = [inside]
    if encoder == "te" and inside.startswith("layers."):
        whole += [f"model.{inside}", f"language_model.{inside}", f"model.language_model.{inside}"]
    flat = [f"lora_{encoder}_{each.replace('.', '_')}" for each in whole]
    return [*flat, *(f"{_PARTS[encoder]}.{each}" for each in whole)]


_FAMILIES = (
    # first, since the blocks within these have names that others begin with
    ("SDXL or Stable Diffusion", r"(down_blocks|up_blocks|mid_block|input_blocks|middle_block|output_blocks)_"),
    ("Hunyuan Video", r"individual_token_refiner|txt_in_individual"),
    ("Chroma", r"distilled_guidance_layer"),
    ("FLUX", r"(single_transformer_blocks|double_blocks|single_blocks)_\d"),
    ("Qwen-Image", r"(img_mod|txt_mod)_1|transformer_blocks_\d+_(img|txt)_mlp"),
    ("Stable Diffusion 3", r"joint_blocks_\d|transformer_blocks_\d+_(norm1_context|ff_context|attn2?_add_q_proj)"),
    ("Anima or another Cosmos model", r"blocks_\d+_(self_attn_q_proj|adaln_modulation|cross_attn_q_proj)"),
    ("Wan", r"blocks_\d+_(self_attn|cross_attn|attn1|attn2)_"),
    ("Lumina or Z-Image", r"(layers|noise_refiner|context_refiner)_\d+_attention"),
)


def family_of_names(stems: Iterable[str]) -> str | None:
    """The family that layers are called like this in; None when it is none that is known here."""
    flat = [stem.replace(".", "_") for stem in stems]
    return next((name for name, pattern in _FAMILIES if any(re.search(pattern, stem) for stem in flat)), None)
