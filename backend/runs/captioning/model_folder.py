"""Reads what a folder with a captioning model holds, without torch: its kind, its size, and what is wrong with it.

A folder is one as transformers saves it: config.json, safetensors, the tokenizer's files, preprocessor_config.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from backend.base.errors import Refused
from backend.base.files import human_bytes
from backend.families.files.headers import SAFE_ONLY, Unreadable, read_header, read_json, weight_files

TakesPrompt = Literal["task", "start", "instruction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A kind of model.

    architecture: its class, of several of a type the one that writes captions. prompt: what text it takes: a task of a
    fixed list, the words that a caption starts with, or any instruction. tokens, beams: what is usual for it.
    """

    title: str
    architecture: str
    prompt: TakesPrompt
    tokens: int
    beams: int


def _qwen(title: str, architecture: str) -> Layout:
    return Layout(title=title, architecture=architecture, prompt="instruction", tokens=256, beams=1)


LAYOUTS: Mapping[str, Layout] = {
    "blip": Layout(title="BLIP", architecture="BlipForConditionalGeneration", prompt="start", tokens=75, beams=3),
    "blip-2": Layout(title="BLIP-2", architecture="Blip2ForConditionalGeneration", prompt="start", tokens=75, beams=3),
    "florence2": Layout(
        title="Florence-2", architecture="Florence2ForConditionalGeneration", prompt="task", tokens=1024, beams=3
    ),
    "qwen2_vl": _qwen("Qwen2-VL", "Qwen2VLForConditionalGeneration"),
    "qwen2_5_vl": _qwen("Qwen2.5-VL", "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_vl": _qwen("Qwen3-VL", "Qwen3VLForConditionalGeneration"),
}
"""By `model_type` in config.json."""

BYTES_A_WEIGHT: Mapping[str, float] = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1.1, "nf4": 0.65}
"""Bytes a weight on the device. Of int8 and nf4 with the layers that stay in bf16, embeddings above all."""

_KNOWN = "Use a BLIP, BLIP-2, Florence-2 or Qwen-VL model (Qwen2-VL, Qwen2.5-VL, Qwen3-VL) in transformers' layout."
_TAGGER = "taggers such as WD14 are not offered: they are published for ONNX or timm, not for transformers"
_COPY = "Copy the folder again from where the model came from, with all of its files."
_CODES = "The code of a model folder is never run here. " + _KNOWN
_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionModel:
    """A model's folder.

    weights: how many numbers it has. file_bytes: of its safetensors files. stamp: changes when they or config.json do.
    """

    folder: Path
    model_type: str
    weights: int
    file_bytes: int
    stamp: str

    @property
    def layout(self) -> Layout:
        """Its kind."""
        return LAYOUTS[self.model_type]

    def tokens(self, wanted: int | None) -> int:
        """Most tokens of a caption, where None is what is usual for the model."""
        return self.layout.tokens if wanted is None else wanted

    def beams(self, wanted: int | None) -> int:
        """Beams of the search, where None is what is usual for the model."""
        return self.layout.beams if wanted is None else wanted

    def device_bytes(self, precision: str, gpu: bool) -> int:
        """Bytes that the weights take on the device; those of the images come on top."""
        return round(self.weights * BYTES_A_WEIGHT[chosen_precision(precision, gpu)])

    def sentence(self, precision: str, gpu: bool) -> str:
        """The model and its memory, for a person."""
        place = "GPU memory" if gpu else "RAM"
        size = human_bytes(self.device_bytes(precision, gpu))
        return (
            f"{self.layout.title}, {_count(self.weights)} weights, {human_bytes(self.file_bytes)} on disk: "
            f"about {size} of {place} in {chosen_precision(precision, gpu)}, and more while it reads images."
        )


def chosen_precision(precision: str, gpu: bool) -> str:
    """The precision that `auto` means: bf16 on a GPU, fp32 on the CPU."""
    return precision if precision != "auto" else "bf16" if gpu else "fp32"


def read_model(folder: Path) -> CaptionModel:
    """Look at the model in `folder`, which takes milliseconds. Refused, with what is wrong and the remedy."""
    config = _config(folder)
    model_type = config.get("model_type")
    layout = LAYOUTS.get(model_type) if isinstance(model_type, str) else None
    if layout is None:
        raise _unknown(folder, config)
    _refuse_what_cant_load(folder, config, layout)
    weights, size, stamps = _weights(folder)
    for names, what in ((_TOKENIZERS, "tokenizer"), (_PROCESSORS, "image processor")):
        if not any((folder / name).is_file() for name in names):
            raise Refused(f"{folder} has no {what}: none of {', '.join(names)} is there", _COPY, "model")
    stamp = sha256(json.dumps([config, stamps], sort_keys=True).encode()).hexdigest()[:16]
    return CaptionModel(folder=folder, model_type=str(model_type), weights=weights, file_bytes=size, stamp=stamp)


def _config(folder: Path) -> dict[str, Any]:
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        raise Refused(f"{folder} is not there", "Type the folder of a captioning model.", "model") from None
    except NotADirectoryError:
        raise Refused(f"{folder} is a file", "Type the folder that it lies in.", "model") from None
    except OSError as error:
        text = f"{folder} can't be opened: {error.strerror or error}"
        raise Refused(text, "Check its permissions.", "model") from None
    if "config.json" not in names:
        if "model_index.json" in names:
            raise Refused(f"{folder} holds a model that draws images", _KNOWN, "model")
        if any(name.endswith(".onnx") for name in names):
            raise Refused(f"{folder} holds an ONNX model; {_TAGGER}", _KNOWN, "model")
        raise Refused(f"{folder} has no config.json", _KNOWN, "model")
    try:
        return read_json(folder / "config.json")
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / 'config.json'} {error}", _COPY, "model") from None


def _unknown(folder: Path, config: Mapping[str, Any]) -> Refused:
    """Why a folder with a config.json is no model that is known."""
    if "pretrained_cfg" in config or any(folder.glob("*.onnx")):
        return Refused(f"{folder} holds a tagger; {_TAGGER}", _KNOWN, "model")
    kind = config.get("model_type") or ", ".join(map(str, config.get("architectures") or ())) or "nothing"
    if "auto_map" in config:
        return Refused(f"{folder} holds {kind}, which needs program code from its folder", _CODES, "model")
    return Refused(f"{folder} holds a model of type {kind}, which is not known here", _KNOWN, "model")


def _refuse_what_cant_load(folder: Path, config: Mapping[str, Any], layout: Layout) -> None:
    vision = config.get("vision_config")
    if layout.title == "Florence-2" and isinstance(vision, dict) and "dim_embed" in vision:
        text = f"{folder} is Florence-2 as it was first published, which needs program code from its folder"
        remedy = "Use the same model in transformers' layout, as florence-community publishes it."
        raise Refused(text, f"{remedy} The code of a model folder is never run here.", "model")
    quantized = config.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else None
        text = f"{folder} has weights that are quantized already ({method or 'unknown method'})"
        raise Refused(text, "Use the model as published in bf16, and choose int8 or nf4 here.", "model")
    classes = config.get("architectures") or [layout.architecture]
    if layout.architecture not in classes:
        text = f"{folder} is {layout.title} for another work ({', '.join(map(str, classes))})"
        raise Refused(text, f"Use a {layout.title} model of class {layout.architecture}.", "model")


def _weights(folder: Path) -> tuple[int, int, list[list[int]]]:
    """How many weights there are, the bytes of their files, and what tells them from others."""
    try:
        paths = weight_files(folder, "model")
    except (OSError, ValueError) as error:
        raise Refused(f"{folder}: {error}", _COPY, "model") from None
    if not paths:
        if any(folder.glob("*.bin")):
            raise Refused(f"{folder} has weights as .bin alone, which can hide program code", SAFE_ONLY, "model")
        raise Refused(f"{folder} has no weights: no model.safetensors is there", _COPY, "model")
    count, size, stamps = 0, 0, []
    for path in paths:
        try:
            header, status = read_header(path), path.stat()
        except Unreadable as error:
            raise Refused(f"{path} {error}", error.remedy, "model") from None
        except OSError as error:
            raise Refused(f"{path} can't be read: {error.strerror or error}", _COPY, "model") from None
        if header.missing_bytes:
            text = f"{path} is cut short: {human_bytes(header.missing_bytes)} are missing"
            raise Refused(text, _COPY, "model")
        count += sum(math.prod(shape) for _, shape in header.tensors.values())
        size += status.st_size
        stamps.append([status.st_size, status.st_mtime_ns])
    return count, size, stamps


def _count(number: int) -> str:
    """`224 million`, `7.6 billion`."""
    if number >= 1e9:
        return f"{number / 1e9:.1f} billion"
    return f"{number / 1e6:.0f} million" if number >= 1e6 else f"{number:,}"
