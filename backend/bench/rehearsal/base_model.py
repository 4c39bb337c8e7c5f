"""Writes a base model with random weights as a folder in diffusers layout, at the size of the published one.

    python -m backend.bench.rehearsal.base_model --size flux --folder DIR [--blocks N]

A process of its own, so that the GPU that draws the weights is empty again when the training is measured. Weights are
bf16, drawn tensor by tensor and written in shards, some at a time, so that no large part is ever whole in memory.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from safetensors.torch import save_file
from torch import nn

from backend.base.errors import Refused
from backend.base.files import write_atomic
from backend.bench.random_part import RandomPart, RandomTensor
from backend.bench.rehearsal.sizes import SIZES, TOKENIZERS, RehearsalSize
from backend.bench.rehearsal.tokenizers import clip_tokenizer, llama_tokenizer, qwen_tokenizer, t5_tokenizer
from backend.families.files.parts import Part
from backend.models.common import meta_model

DTYPE = torch.bfloat16
SHARD_BYTES = 4 * 2**30
# Each holds one shard in memory; copying and writing leave Python's lock to the others for most of the time.
_WRITERS = max(1, min(4, (os.cpu_count() or 1) // 4))
_SEED = 0


def write_base_model(size: RehearsalSize, folder: Path, blocks: int | None = None) -> None:
    """Write the model to `folder`, which must not exist; it appears under this name when it is whole.

    blocks: of the denoiser, None for all. Refused when the disk has too little room, ValueError for a wrong `blocks`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    weights = {
        part.name: _tensors(_class_of(part), size.config(part, blocks), device, fp8=part.name in size.fp8)
        for part in size.facts.parts
        if part.weights
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    _refuse_full_disk(folder.parent, sum(_bytes(tensor) for part in weights.values() for tensor in part.values()))
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    index: dict[str, Any] = {"_class_name": size.facts.pipeline_class, "_diffusers_version": diffusers.__version__}
    for part in size.facts.parts:
        if part.class_names[0] in TOKENIZERS:
            _write_tokenizer(size, part, partial / part.folder)
        else:
            (partial / part.folder).mkdir(parents=True)
            config = size.config(part, blocks)
            write_atomic(partial / part.folder / part.files[0][0], json.dumps(config, indent=2) + "\n")
            if part.weights:
                write_shards(partial / part.folder, part.weights, weights[part.name])
        library = "diffusers" if hasattr(diffusers, part.class_names[0]) else "transformers"
        index[part.name] = [library, part.class_names[0]]
    write_atomic(partial / "model_index.json", json.dumps(index, indent=2) + "\n")
    partial.rename(folder)


def write_shards(folder: Path, stem: str, tensors: Mapping[str, RandomTensor], limit: int = SHARD_BYTES) -> None:
    """Write `tensors` as one safetensors file, or as shards of about `limit` bytes with their index."""
    shards: list[list[str]] = [[]]
    held = 0
    for name, tensor in tensors.items():
        if shards[-1] and held + _bytes(tensor) > limit:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += _bytes(tensor)
    suffixes = [""] if len(shards) == 1 else [f"-{at:05d}-of-{len(shards):05d}" for at in range(1, len(shards) + 1)]
    files = {
        name: f"{stem}{suffix}.safetensors" for suffix, names in zip(suffixes, shards, strict=True) for name in names
    }

    def write(names: Sequence[str]) -> None:
        drawn = {name: tensors[name].read().cpu() for name in names}
        save_file(drawn, folder / files[names[0]], {"format": "pt"})

    with ThreadPoolExecutor(_WRITERS) as pool:
        list(pool.map(write, shards))
    if len(shards) > 1:
        total = sum(_bytes(tensor) for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_atomic(folder / f"{stem}.safetensors.index.json", json.dumps(index, indent=1) + "\n")


def _class_of(part: Part) -> type[nn.Module]:
    name = part.class_names[0]
    return getattr(diffusers, name) if hasattr(diffusers, name) else getattr(transformers, name)


def _tensors(
    cls: type[nn.Module], config: Mapping[str, Any], device: torch.device, *, fp8: bool = False
) -> dict[str, RandomTensor]:
    """What a file of the model holds: tied weights once, and no buffers of whole numbers. fp8: matrices in 8 bits."""
    part = RandomPart(cls, config, DTYPE, device, _SEED)
    tied = meta_model.ties(part.empty)
    whole = {name for name, value in part.empty.state_dict().items() if not value.dtype.is_floating_point}
    stored = names_in_files(part.empty)
    kept = {stored[name]: tensor for name, tensor in part.tensors().items() if name not in tied and name not in whole}
    if not fp8:
        return kept
    matrices = {name for name, tensor in kept.items() if len(tensor.shape) == 2 and name.endswith(".weight")}
    return kept | {name: replace(kept[name], dtype=torch.float8_e4m3fn) for name in matrices}


def names_in_files(model: nn.Module) -> dict[str, str]:
    """Name of each tensor in the model -> its name in published files, which transformers renames when it loads."""
    names = list(model.state_dict())
    if not meta_model.of_transformers(type(model)):
        return dict(zip(names, names, strict=True))
    from transformers.core_model_loading import revert_weight_conversion

    # numbers in place of the weights, so that each new name tells which one it is
    reverted = revert_weight_conversion(model, {name: torch.tensor(number) for number, name in enumerate(names)})
    return {names[int(number)]: name for name, number in reverted.items()}


def _bytes(tensor: RandomTensor) -> int:
    return math.prod(tensor.shape) * tensor.dtype.itemsize


def _write_tokenizer(size: RehearsalSize, part: Part, folder: Path) -> None:
    kind = part.class_names[0]
    if kind == "CLIPTokenizer":
        # as SDXL's second tokenizer has it
        clip_tokenizer(folder, pad="!" if part.name == "tokenizer_2" else None)
    elif kind == "T5TokenizerFast":
        t5_tokenizer(folder)
    elif kind == "LlamaTokenizerFast":
        llama_tokenizer(folder, size.facts.caption_template)
    else:
        qwen_tokenizer(folder, size.facts.caption_template)


def _refuse_full_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        text = f"The base model takes {needed / 1e9:.1f} GB, and the disk of {folder} has {free / 1e9:.1f} GB free."
        raise Refused(text, "Give --work on another disk, or fewer --blocks.")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the model; 2 when that can't be done."""
    parser = argparse.ArgumentParser(prog="python -m backend.bench.rehearsal.base_model")
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--folder", type=Path, required=True, help="the new folder")
    parser.add_argument("--blocks", type=int, help="blocks of the denoiser; all when left out")
    options = parser.parse_args(argv)
    try:
        write_base_model(SIZES[options.size], options.folder, options.blocks)
    except (Refused, ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
