"""Finds the model family that a file is for: by the program that it is given to, and by hints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from backend.config.file_kinds import Kind
from backend.families.table import FAMILIES
from backend.importers.arguments import arguments
from backend.importers.families import family_of_path, named_family
from backend.importers.tables import ALGOS, KINDS, LORA_TYPES, NETWORKS
from backend.importers.values import Left, is_off, number

_XL_NAMES = ("xl", "pony", "illustrious", "noob", "animagine")
_LYCORIS = "lycoris.kohya"
_OTHER_NETWORKS = {
    "networks.oft": "OFT", "networks.dylora": "DyLoRA", "networks.oft_flux": "OFT",
    "networks.lora_fa": "LoRA-FA",
}  # fmt: skip


class FamilyGuess(NamedTuple):
    """family: None where it is not known. guessed: why it was taken, where the file does not say. network: what kind
    of network the file asks for that is not offered; empty for one that is. kind: of the network here."""

    family: str | None
    guessed: str = ""
    network: str = ""
    kind: str = "lora"


def family_of(kind: Kind | None, values: Mapping[str, Any]) -> FamilyGuess:
    """The family by our name for it, whether it is offered here or not."""
    return _family_of(kind, values)._replace(**_network_of(values))


def _family_of(kind: Kind | None, values: Mapping[str, Any]) -> FamilyGuess:
    module = str(values.get("network_module") or "").strip()
    lora_type = str(values.get("LoRA_type") or "").strip()
    named = NETWORKS.get(module) or LORA_TYPES.get(lora_type, ("", ""))[0]
    if kind == "musubi-tuner" and module in (*KINDS, _LYCORIS):
        named = _of_musubi(values)
    if named == "flux" and kind == "musubi-tuner":
        return FamilyGuess("flux_kontext")
    if named == "wan" and kind == "musubi-tuner":
        return FamilyGuess(_wan_of(values))
    if named == "framepack" and not is_off(values.get("f1")):
        return FamilyGuess("framepack_f1")
    if named == "qwen_image":
        version = str(values.get("model_version") or "").lower()
        if version == "layered":
            return FamilyGuess("qwen_image_layered")
        if not is_off(values.get("edit_plus")) or version.startswith("edit-"):
            # 2509 and 2511, which read pictures otherwise
            return FamilyGuess("qwen_image_edit_plus")
        if not is_off(values.get("edit")) or version == "edit":
            return FamilyGuess("qwen_image_edit")
    if named:
        return FamilyGuess(named)
    if kind == "musubi-tuner":
        family = "hunyuan_video" if module == "networks.lora" else family_of_path(values.get("dit"))
        if values.get("task") and (not family or family.startswith("wan")):
            return FamilyGuess(_wan_of(values))
        return FamilyGuess(family or None)
    return _by_hints(values)


def _of_musubi(values: Mapping[str, Any]) -> str:
    """The network of the family that a file is for whose network may be of any; empty where nothing tells it."""
    base = str(values.get("dit") or "").lower().replace("\\", "/").rsplit("/", 1)[-1]
    if "qwen" in base or any(not is_off(values.get(name)) for name in ("edit", "edit_plus")):
        return "qwen_image"
    return "flux" if "kontext" in base else ""


def _wan_of(values: Mapping[str, Any]) -> str:
    """Which Wan a file of musubi-tuner is for: by its task (``t2v-A14B``), else by its base model's name."""
    task = str(values.get("task") or "").strip()
    version = "wan22" if "A14B" in task else "wan21"
    family = named_family(f"{version}{task}") if task else family_of_path(values.get("dit"))
    return family if family.startswith("wan") and family in FAMILIES else "wan"


def _network_of(values: Mapping[str, Any]) -> dict[str, str]:
    """`kind` and `network` of `FamilyGuess`."""
    module = str(values.get("network_module") or "").strip()
    lora_type = str(values.get("LoRA_type") or "").strip()
    if module == _LYCORIS:
        algo = algo_of(values)
        if algo not in ALGOS:
            return {"network": f"LyCORIS/{algo}"}
        return {"kind": _decomposed(ALGOS[algo], values)}
    if module in _OTHER_NETWORKS:
        return {"network": _OTHER_NETWORKS[module]}
    if lora_type and lora_type not in LORA_TYPES:
        return {"network": lora_type}
    return {"kind": KINDS.get(module) or _decomposed(LORA_TYPES.get(lora_type, ("", "lora"))[1], values)}


def _decomposed(kind: str, values: Mapping[str, Any]) -> str:
    """`kind`, or DoRA where LyCORIS trains the lengths of a LoRA's rows too."""
    if kind != "lora" or not is_lycoris(values):
        return kind
    try:
        switch = arguments(values.get("network_args")).get("dora_wd")
    except Left:
        switch = None
    return kind if is_off(switch) and is_off(values.get("dora_wd")) else "dora"


def algo_of(values: Mapping[str, Any]) -> str:
    """What a network of LyCORIS' is made by: its own name for it, or what the preset of kohya_ss stands for."""
    try:
        return str(arguments(values.get("network_args")).get("algo") or "lora").lower()
    except Left:
        return "lora"


def is_lycoris(values: Mapping[str, Any]) -> bool:
    """Whether LyCORIS makes the network."""
    lora_type = str(values.get("LoRA_type") or "")
    return str(values.get("network_module") or "").strip() == _LYCORIS or lora_type.startswith("LyCORIS/")


def _by_hints(values: Mapping[str, Any]) -> FamilyGuess:
    if not is_off(values.get("base_model_version")):
        # as it stands in a LoRA file: sdxl_base_v1-0, flux1, sd_v1
        return FamilyGuess(named_family(values["base_model_version"]))
    for flag, name in (("flux1_checkbox", "flux"), ("sd3_checkbox", "sd3"), ("sdxl", "sdxl"), ("v2", "sd2"),
                       ("sdxl_checkbox", "sdxl"), ("anima_checkbox", "anima"), ("lumina_checkbox", "lumina"),
                       ("hunyuan_image_checkbox", "hunyuan_image")):  # fmt: skip
        if not is_off(values.get(flag)):
            return FamilyGuess(name)
    if values.get("clip_g"):
        return FamilyGuess("sd3", "by its text encoders")
    if values.get("qwen3"):
        return FamilyGuess("anima", "by its text encoder")
    if values.get("ae") or values.get("t5xxl"):
        return FamilyGuess("flux", "by its text encoder and VAE")
    base = str(values.get("pretrained_model_name_or_path") or "").lower().replace("\\", "/").rsplit("/", 1)[-1]
    if "flux" in base:
        return FamilyGuess("flux", "by the base model's name")
    if any(name in base for name in _XL_NAMES):
        return FamilyGuess("sdxl", "by the base model's name")
    if "sdxl" in values:
        return FamilyGuess("sd15")
    side = str(values.get("resolution") or values.get("max_resolution") or 512).split(",")[0]
    large = isinstance(number(side), int) and number(side) >= 1024
    return FamilyGuess("sdxl" if large else "sd15", "by the resolution; the file says nothing of the model's family")
