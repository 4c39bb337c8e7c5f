r"""Tells which keys of a LoRA file ComfyUI, sd-scripts and musubi-tuner take, by the names that they look for.

Written from their rules. ComfyUI's ``comfy/lora.py``: a layer is ``lora_unet_<name, points as underscores>`` or
``diffusion_model.<name>`` by its name in the published model; UNets, FLUX, SD3 and Qwen-Image have further names by
diffusers' module paths. sd-scripts' and musubi-tuner's ``networks/lora*.py``: ``lora_unet_`` before the name in their
own model, of layers within its blocks, and ``lora_te<n>_`` for text encoders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from backend.families.spec import FamilyFacts
from backend.lora.comfyui_keys import LayerNames, not_loadable
from backend.lora_tools.verdict import Verdict

_COMFY_ENDING = re.compile(
    r"(?:\.alpha|\.dora_scale|\.reshape_weight"
    r"|\.lora_(?:up|down|mid)\.weight|_lora\.(?:up|down)\.weight|\.lora_[AB](?:\.default)?\.weight|\.lora_[AB]"
    r"|\.lora\.(?:up|down)\.weight|\.lora_linear_layer\.(?:up|down)\.weight"
    r"|\.hada_(?:w[12]_[ab]|t[12])|\.lokr_(?:w[12](?:_[ab])?|t2)|\.oft_blocks|\.rescale|\.[ab][12]\.weight"
    r"|\.(?:diff|diff_b|set_weight|w_norm|b_norm))"
)
_KOHYA_ENDING = re.compile(r"\.(?:alpha|lora_(?:up|down|mid)\.weight)")

_UNETS = ("sdxl", "sd15")
_OWN_PATHS = ("transformer.", "")
_COMFY_PREFIXES = {
    "flux": ((*_OWN_PATHS,), ("lycoris_", "lora_transformer_")),
    "sd3": (("transformer.", "base_model.model."), ("lycoris_", "lora_transformer_")),
    "qwen_image": ((*_OWN_PATHS,), ("lycoris_",)),
}
"""Family -> what ComfyUI takes before diffusers' paths, and before these with underscores."""

_XLABS = ("single_blocks.37.processor.qkv_lora.up.weight", "double_blocks.18.processor.qkv_lora2.up.weight")
"""Keys of the only files by attention processors that ComfyUI reads."""

_SD_SCRIPTS = ("sd15", "sdxl", "flux", "flux_kontext", "sd3", "anima")
_LYCORIS = "LoKr and LoHa are for network_module lycoris.kohya."


def comfyui(keys: Iterable[str], facts: FamilyFacts, names: LayerNames) -> Verdict:
    """What ComfyUI's own LoRA loader makes of the keys."""
    listed = list(keys)
    if facts.name.startswith("framepack"):
        error = "it has no FramePack of its own, only as a node pack."
        return Verdict(program="ComfyUI", total=len(listed), error=error)
    if all(key in listed for key in _XLABS):
        return Verdict(program="ComfyUI", total=len(listed))
    stems = set(_comfy_stems(facts, names))
    ignored = _ignored(listed, _COMFY_ENDING, stems.__contains__)
    if len(ignored) == len(listed):
        error = f"its key map of {facts.title} has none of the names, such as {listed[0]}."
        return Verdict(program="ComfyUI", total=len(listed), error=error)
    return Verdict(program="ComfyUI", total=len(listed), ignored=ignored)


def kohya(keys: Iterable[str], facts: FamilyFacts, names: LayerNames) -> Verdict:
    """What the networks of sd-scripts make of the keys; of families that it has not, those of musubi-tuner."""
    listed = list(keys)
    program = "sd-scripts" if facts.name in _SD_SCRIPTS else "musubi-tuner"
    stems = set(_kohya_stems(facts, names))
    ignored = _ignored(listed, _KOHYA_ENDING, stems.__contains__)
    factored = any(re.search(r"\.(hada|lokr)_", key) for key in listed)
    if len(ignored) == len(listed) or (factored and not any(".lora_" in key for key in listed)):
        error = _LYCORIS if factored else f"its networks have none of the names, such as {listed[0]}."
        return Verdict(program=program, total=len(listed), error=error)
    note = "dora_scale needs network_module lycoris.kohya." if any(k.endswith(".dora_scale") for k in ignored) else ""
    return Verdict(program=program, total=len(listed), ignored=ignored, note=note)


def _ignored(keys: Iterable[str], ending: re.Pattern[str], is_known: Callable[[str], bool]) -> list[str]:
    """Keys that are no known name with a known ending."""
    return [key for key in keys if not any(is_known(stem) for stem in _stems_of(key, ending))]


def _stems_of(key: str, ending: re.Pattern[str]) -> Iterator[str]:
    """What may come before the key's ending."""
    for match in ending.finditer(key):
        if match.end() == len(key):
            yield key[: match.start()]


def _comfy_stems(facts: FamilyFacts, names: LayerNames) -> Iterator[str]:
    denoiser = [path for path in names.layers if not _is_text(path)]
    for path in denoiser:
        for stem in _native(path, names):
            yield f"lora_unet_{_flat(stem)}"
            yield f"diffusion_model.{stem}"
    beyond = set(not_loadable(denoiser, facts.lora_layers))
    family = "qwen_image" if facts.name.startswith("qwen_image") else facts.name.removesuffix("_kontext")
    dotted, flat = _COMFY_PREFIXES.get(family, ((), ()))
    for path in (each for each in denoiser if each not in beyond):
        yield from (prefix + path for prefix in dotted)
        yield from (prefix + _flat(path) for prefix in flat)
        if family in _UNETS:
            yield from (f"lora_unet_{_flat(path)}", f"lycoris_{_flat(path)}")
            processor = path.replace(".to_", ".processor.to_")
            processor = processor.removesuffix(".0") if processor.endswith(".to_out.0") else processor
            yield from (processor, f"unet.{processor}")
        if family == "hunyuan_video":
            yield from (f"transformer.{stem}" for stem in _native(path, names))
    for path in (each for each in names.layers if _is_text(each)):
        word, _, inside = path.partition(".")
        yield f"lora_{word}_{_flat(inside)}"
        yield f"text_encoder{'_2' if word == 'te2' else ''}.{inside}"
        if word in ("te", "te1"):
            yield from (f"lora_te_{_flat(inside)}", f"lora_te1_{_flat(inside)}")


def _kohya_stems(facts: FamilyFacts, names: LayerNames) -> Iterator[str]:
    """Names of the layers within blocks; text encoders by sd-scripts' numbers."""
    within = re.compile("|".join(_blocks(facts)))
    for path in names.layers:
        if _is_text(path):
            yield f"lora_{_flat(path)}"
        elif within.match(path):
            own = _native(path, names) if facts.kohya_native else [path]
            yield from (f"lora_unet_{_flat(stem)}" for stem in own)


def _blocks(facts: FamilyFacts) -> Iterator[str]:
    """Beginnings of the paths of layers that a network is made for."""
    if facts.name in _UNETS:
        yield r"(?:down_blocks|mid_block|up_blocks)\."
        return
    for block in facts.block_classes:
        yield block.attribute if "\\" in block.attribute else re.escape(block.attribute) + r"\.\d+\."


def _native(path: str, names: LayerNames) -> list[str]:
    """A layer's names in the published model; its path where there it is called so."""
    native = names.natives.get(path)
    return [path] if native is None else [native.stem, *native.also]


def _is_text(path: str) -> bool:
    return re.match(r"te\d?\.text_model\.", path) is not None


def _flat(name: str) -> str:
    return name.replace(".", "_")
