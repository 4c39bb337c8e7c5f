"""Declares [sampling]: pictures and clips drawn during training."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator

from backend.config.declare import Section, optional_path, setting
from backend.config.sections.values import clean_path, writable

CONTROL_IMAGES = ("control_image", "control_image_2", "control_image_3")


def _another(label: str) -> Any:
    return optional_path(
        label=label,
        help="One more control image, for models that take several (Qwen-Image-Edit-2509 and -2511).",
    )


class SamplePrompt(Section):
    """One row of [[sampling.prompts]]."""

    prompt: Annotated[str, AfterValidator(writable)] = setting(
        kind="text",
        label="Prompt",
        help="The prompt of this sample image. Use the trigger word in at least one prompt and leave it out of "
        "another, to see the difference.",
    )
    negative_prompt: Annotated[str, AfterValidator(writable)] = setting(
        "",
        kind="text",
        label="Negative prompt",
        help="What the image should not show. It needs a true CFG scale above 1.",
        aliases=("negative", "neg"),
    )
    control_image: Annotated[str, AfterValidator(clean_path)] | None = optional_path(
        label="Control image",
        help="The image to start from, cropped to the sample's size: of models that edit images (FLUX.1 Kontext, "
        "Qwen-Image-Edit), and as first frame of models that make a video from an image. Qwen-Image-Edit-2509 and "
        "-2511 keep its proportions.",
        aliases=("ci", "ctrl_img", "control_image_path", "image"),
    )
    control_image_2: Annotated[str, AfterValidator(clean_path)] | None = _another("Second control image")
    control_image_3: Annotated[str, AfterValidator(clean_path)] | None = _another("Third control image")
    width: int = setting(1024, ge=16, le=8192, unit="px", label="Width", help="Width of the image.", aliases=("w",))
    height: int = setting(1024, ge=16, le=8192, unit="px", label="Height", help="Height of the image.", aliases=("h",))
    frames: int | None = setting(
        None,
        ge=1,
        le=4097,
        unit="frames",
        label="Frames",
        help="For video models: length of the clip, rounded down to what the model can make (for most 4 n + 1: 17, 33, "
        "81). 1 makes an image. Empty: the model's own length. Longer clips need more time and memory.",
        aliases=("f", "video_length", "frame_count", "num_frames"),
    )
    seed: int = setting(
        42,
        ge=0,
        le=2**32 - 1,
        label="Seed",
        help="Seed of the start noise. It is the same in every sample of the run, so that only the LoRA changes.",
    )
    steps: int = setting(
        28,
        ge=1,
        le=1000,
        label="Steps",
        help="Sampling steps. 28 is good for FLUX.1-dev, 4 for FLUX.1-schnell.",
        aliases=("sample_steps", "num_inference_steps"),
    )
    guidance_scale: float = setting(
        3.5,
        ge=0,
        le=100,
        label="Guidance scale",
        help="Distilled guidance, which models such as FLUX.1-dev receive: how closely the image follows the "
        "prompt. 3.5 is FLUX.1-dev's own value.",
        aliases=("cfg_scale", "guidance"),
    )
    true_cfg_scale: float = setting(
        1.0,
        ge=1,
        le=100,
        label="True CFG scale",
        help="Classifier-free guidance with the negative prompt (true CFG). 1 is off; more needs twice the time.",
        aliases=("true_cfg", "cfg"),
    )
    lora_scale: float = setting(
        1.0,
        ge=-10,
        le=10,
        label="LoRA strength",
        help="Strength of the LoRA in this image. 0 shows what the base model draws.",
        aliases=("lora_multiplier", "lora_weight"),
    )
    text_length: int | None = setting(
        None,
        ge=16,
        le=4096,
        unit="tokens",
        label="Max text length",
        help="Longest prompt that the text encoder reads. Empty: as in training.",
        aliases=("max_sequence_length",),
    )

    @property
    def controls(self) -> dict[str, str]:
        """The control pictures that are given, by column, in their order."""
        paths = {column: getattr(self, column) for column in CONTROL_IMAGES}
        return {column: path for column, path in paths.items() if path is not None}


class SamplingSection(Section):
    """Sample images that are made during training."""

    prompts: list[SamplePrompt] = setting(
        list,
        label="Sample prompts",
        help="Images that are sampled during training, each with its own settings.",
        aliases=("sample_prompts", "validation_prompt", "validation_prompts", "samples"),
        basic=True,
    )
    sample_every_n_steps: int | None = setting(
        None,
        ge=1,
        unit="steps",
        label="Sample every N steps",
        help="Samples all prompts every N steps. Empty: not by steps.",
        aliases=("sample_every", "sample_every_n", "validation_steps"),
        basic=True,
    )
    sample_every_n_epochs: int | None = setting(
        None,
        ge=1,
        unit="epochs",
        label="Sample every N epochs",
        help="Samples all prompts every N epochs. Empty: not by epochs.",
        aliases=("validation_epochs",),
        basic=True,
    )
    sample_at_start: bool = setting(
        False,
        label="Sample before training",
        help="Also samples all prompts before the first step: the base model, for comparison.",
        aliases=("sample_at_first",),
    )
    sample_at_end: bool = setting(
        True,
        label="Sample at the end",
        help="Samples all prompts with the finished LoRA.",
        aliases=("sample_last",),
    )
