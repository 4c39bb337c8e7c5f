"""Which model family a file of another program is for: it says so by the program that it is given to, and by hints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backend.config.foreign.source import Kind
from backend.config.foreign.tables import LORA_TYPES, NETWORKS
from backend.config.foreign.values import is_off, number

_XL_NAMES = ("xl", "pony", "illustrious", "noob", "animagine")
_OTHER_NETWORKS = {
    "lycoris.kohya": "LyCORIS networks",
    "networks.oft": "OFT networks", "networks.dylora": "DyLoRA networks", "networks.loha": "LoHa networks",
    "networks.lokr": "LoKr networks", "networks.oft_flux": "OFT networks",
}  # fmt: skip


class Found(NamedTuple):
    """family: None where it can't be told. guessed: why it was taken, where the file does not say. network: what other
    kind of network the file asks for; empty for a LoRA."""

    family: str | None
    guessed: str = ""
    network: str = ""


def family_of(kind: Kind | None, values: Mapping[str, Any]) -> Found:
    """The family by our name for it, whether it is offered here or not."""
    module = str(values.get("network_module") or "").strip()
    lora_type = str(values.get("LoRA_type") or "").strip()
    network = _OTHER_NETWORKS.get(module, "")
    if lora_type and lora_type not in LORA_TYPES:
        network = f"{lora_type} networks"
    named = NETWORKS.get(module) or LORA_TYPES.get(lora_type) or ""
    if named == "flux" and kind == "musubi-tuner":
        return Found("flux_kontext", network=network)
    if named == "qwen_image" and (not is_off(values.get("edit")) or not is_off(values.get("edit_plus"))):
        return Found("qwen_image_edit", network=network)
    if named == "qwen_image" and str(values.get("model_version", "")).startswith("edit"):
        return Found("qwen_image_edit", network=network)
    if named:
        return Found(named, network=network)
    if kind == "musubi-tuner":
        return Found("hunyuan_video" if module == "networks.lora" else None, network=network)
    return _by_hints(values)._replace(network=network)


def _by_hints(values: Mapping[str, Any]) -> Found:
    for flag, name in (("flux1_checkbox", "flux"), ("sd3_checkbox", "sd3"), ("sdxl", "sdxl"), ("v2", "sd2")):
        if not is_off(values.get(flag)):
            return Found(name)
    if values.get("ae") or values.get("t5xxl"):
        return Found("flux", "by its text encoder and VAE")
    base = str(values.get("pretrained_model_name_or_path") or "").lower().replace("\\", "/").rsplit("/", 1)[-1]
    if "flux" in base:
        return Found("flux", "by the base model's name")
    if any(name in base for name in _XL_NAMES):
        return Found("sdxl", "by the base model's name")
    if "sdxl" in values:
        return Found("sd15")
    side = str(values.get("resolution") or values.get("max_resolution") or 512).split(",")[0]
    large = isinstance(number(side), int) and number(side) >= 1024
    return Found("sdxl" if large else "sd15", "by the resolution; the file says nothing of the model's family")
