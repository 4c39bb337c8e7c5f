"""Gives the code of a model family, by its name. A family's modules are imported when it is asked for, not before."""

from __future__ import annotations

from functools import cache

from backend.families.table import family, family_of_denoiser
from backend.models.family import Family


@cache
def load_family(name: str) -> Family:
    """The code of the family called `name`; ValueError that lists the known ones. Imports torch and diffusers."""
    return _class_of(name)(family(name))


def load_family_of(class_name: str) -> Family:
    """The code of the first family whose denoiser is of class `class_name`; ValueError when none is."""
    return load_family(family_of_denoiser(class_name).name)


def _class_of(name: str) -> type[Family]:
    # Imports within: a run needs one family, and each brings classes of diffusers and transformers along.
    match name:
        case "flux" | "flux_kontext":
            from backend.models.flux.denoiser import Flux

            return Flux
        case "sdxl":
            from backend.models.sdxl.denoiser import Sdxl

            return Sdxl
        case "sd15":
            from backend.models.sd15.denoiser import Sd15

            return Sd15
        case "anima":
            from backend.models.anima.denoiser import Anima

            return Anima
        case "qwen_image":
            from backend.models.qwen_image.denoiser import QwenImage

            return QwenImage
        case "qwen_image_edit":
            from backend.models.qwen_image.edit_encoders import QwenImageEdit

            return QwenImageEdit
        case "qwen_image_edit_plus":
            from backend.models.qwen_image.edit_encoders import QwenImageEditPlus

            return QwenImageEditPlus
        case "sd3":
            from backend.models.sd3.denoiser import Sd3

            return Sd3
        case "wan" | "wan22" | "wan22_5b":
            from backend.models.wan.denoiser import Wan

            return Wan
        case "wan22_5b_i2v":
            from backend.models.wan.small_start import WanFirstFrame

            return WanFirstFrame
        case "hunyuan_video":
            from backend.models.hunyuan_video.denoiser import HunyuanVideo

            return HunyuanVideo
        case "framepack" | "framepack_f1":
            from backend.models.hunyuan_video.framepack import FramePack, FramePackOnward

            return FramePack if name == "framepack" else FramePackOnward
        case "wan_i2v" | "wan22_i2v":
            from backend.models.wan.start_encoders import WanImage

            return WanImage
    family(name)  # says which are known
    raise NotImplementedError(f"the family {name} has facts, but no row in backend.models.family_classes")
