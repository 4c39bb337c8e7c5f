"""Writing a LoRA so that diffusers and ComfyUI load it at the strength it was trained at."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from backend.lora.inject import Lora
from backend.lora.keys import file_key
from backend.refused import Refused
from backend.runs.files import write_atomic

log = logging.getLogger(__name__)

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class LoraNotFinite(ValueError):
    """A LoRA holds NaN or infinity: it is not written."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} holds NaN or infinity")


def file_tensors(lora: Lora, precision: str, layout: str = "transformer") -> dict[str, Tensor]:
    """What goes into the file: A, and B with alpha / rank multiplied in, on the CPU in `precision`.

    In the layout ``kohya_unet`` alpha has a key of its own, and B is as it is. In the others there is no alpha:
    diffusers takes it from metadata of its own only, ComfyUI and others from a key, and where there is neither, all of
    them take alpha = rank. So B carries the factor, and the file means one thing to all.
    LoraNotFinite when a value is NaN or infinite; Refused when one does not fit into `precision`.
    """
    dtype = PRECISIONS[precision]
    tensors: dict[str, Tensor] = {}
    for path in lora.layers:
        a, b = lora.pair(path)
        own_alpha = layout == "kohya_unet"
        tensors[file_key(path, "A", layout)] = a.detach()
        tensors[file_key(path, "B", layout)] = b.detach() if own_alpha else b.detach() * lora.scale
        if own_alpha:
            tensors[file_key(path, "alpha", layout)] = torch.tensor(lora.alpha)
    tensors = {key: value.to("cpu", torch.float32) for key, value in tensors.items()}
    cast = {key: value.to(dtype).contiguous() for key, value in tensors.items()}
    for key, value in tensors.items():
        if not torch.isfinite(value).all():
            raise LoraNotFinite(key)
        if not torch.isfinite(cast[key]).all():
            text = f"{key} has values too large for {precision}"
            raise Refused(text, "Save as bf16 or fp32.", "saving.save_precision")
    return cast


def lora_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The file as bytes: `tensors`, `metadata` and the SHA-256 of all that comes after the header, in two spellings.

    ``modelspec.hash_sha256`` is ModelSpec 1.0.1's, ``sshs_model_hash`` that of sd-scripts and the tools that read it.
    """
    plain = safetensors.torch.save(dict(tensors))
    body = plain[8 + int.from_bytes(plain[:8], "little") :]
    digest = hashlib.sha256(body).hexdigest()
    said = {**metadata, "modelspec.hash_sha256": f"0x{digest}", "sshs_model_hash": digest}
    return safetensors.torch.save(dict(tensors), metadata=said)


def write_lora(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write the file whole or not at all (`backend.runs.files.write_atomic`), and read its header back."""
    assert not any("_orig_mod" in key for key in tensors)
    data = lora_bytes(tensors, metadata)
    write_atomic(path, data)
    with path.open("rb") as stream:
        header = json.loads(stream.read(8 + int.from_bytes(data[:8], "little"))[8:])
    assert header.keys() - {"__metadata__"} == tensors.keys(), f"{path} does not hold what was written"
    log.info("Saved %s: %d tensors, %.1f MB", path, len(tensors), len(data) / 1e6)
