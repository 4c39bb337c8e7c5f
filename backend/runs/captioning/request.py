"""Says what is asked of a captioning model: its folder, its options, and the images."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from backend.base.errors import Refused
from backend.runs.captioning.model_folder import CaptionModel

Task = Literal["caption", "detailed", "more_detailed"]
Existing = Literal["leave", "replace", "append"]
Precision = Literal["auto", "bf16", "fp16", "fp32", "int8", "nf4"]

_FLORENCE_TASKS: Mapping[Task, str] = {
    "caption": "<CAPTION>",
    "detailed": "<DETAILED_CAPTION>",
    "more_detailed": "<MORE_DETAILED_CAPTION>",
}
_QWEN_PROMPTS: Mapping[Task, str] = {
    "caption": "Describe this image in one short sentence. Begin with the subject, not with words such as 'The image'.",
    "detailed": "Describe this image in two or three sentences: subject, clothes or parts, action, and surroundings. "
    "Begin with the subject, not with words such as 'The image'.",
    "more_detailed": "Describe this image in one detailed paragraph: subject, action, surroundings, composition, "
    "light, colors and style. Begin with the subject, not with words such as 'The image'.",
}
"""What is asked of models that follow instructions, by task."""


class CaptionOptions(BaseModel):
    """What a person chooses. None: what is usual for the model, or for the device."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(max_length=4096)
    """Folder of the model, as transformers saves it."""
    task: Task = "detailed"
    """How much is to be said; models that can only do one ignore it."""
    prompt: str = Field("", max_length=4000)
    """An instruction in place of the task's, or the words with which a caption begins, by what the model takes."""
    max_tokens: int | None = Field(None, ge=1, le=4096)
    """Most tokens of a caption."""
    beams: int | None = Field(None, ge=1, le=16)
    """Beams of the search; 1 takes the likeliest word each time."""
    batch: int | None = Field(None, ge=1, le=256)
    """Images at once."""
    precision: Precision = "auto"
    """Of the weights. auto: bf16 on a GPU, fp32 on the CPU. int8 and nf4 need an NVIDIA GPU."""
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d{1,2})?)$")
    """auto: the first GPU, else the CPU."""
    megapixels: float = Field(1.0, ge=0.05, le=20.0)
    """Larger images are reduced to this, where the model takes images of any size."""
    existing: Existing = "leave"
    """What is done with images that have a caption."""
    prefix: str = Field("", max_length=1000)
    """Written before each new caption, as it is."""
    suffix: str = Field("", max_length=1000)
    """Written after each new caption, as it is."""
    trigger: str = Field("", max_length=300)
    """Written in front of captions that lack it, with a comma."""

    def asked(self, model: CaptionModel) -> str:
        """The text that the model is given with an image; empty where it takes none.

        Raises Refused for a prompt that the model can't take.
        """
        takes = model.layout.prompt
        if takes == "task":
            if self.prompt.strip():
                text = f"{model.layout.title} takes no prompt of one's own"
                raise Refused(text, "Leave the prompt empty and choose a task.", "prompt")
            return _FLORENCE_TASKS[self.task]
        if takes == "start":
            return self.prompt.strip()
        return self.prompt.strip() or _QWEN_PROMPTS[self.task]


@dataclass(frozen=True, slots=True)
class Target:
    """An image, and where its caption is written. entry: its row, where `file` is a table of many captions."""

    image: Path
    file: Path
    entry: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionRequest:
    """Options and images of one request."""

    options: CaptionOptions
    targets: tuple[Target, ...]

    def to_json(self) -> dict[str, Any]:
        """The request as JSON takes it."""
        rows = [[str(each.image), str(each.file), each.entry] for each in self.targets]
        return {"options": self.options.model_dump(), "targets": rows}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> CaptionRequest:
        """Out of `to_json`; KeyError, TypeError or ValueError for anything else."""
        targets = tuple(Target(Path(image), Path(file), entry) for image, file, entry in document["targets"])
        return cls(options=CaptionOptions.model_validate(document["options"]), targets=targets)


def identity(options: CaptionOptions, model: CaptionModel) -> str:
    """A name of 16 letters for what decides the words of a caption: model, text, length, search, precision and size.

    Two requests of the same identity can share results, whatever their images. Not part of it: batch and device,
    which change a caption by rounding alone, and what is written around it.
    """
    parts = [
        str(model.folder),
        model.stamp,
        options.asked(model),
        model.tokens(options.max_tokens),
        model.beams(options.beams),
        options.precision,
        options.megapixels,
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]
