"""Model files on disk, read without torch: safetensors headers, shards, part folders of the diffusers layout.

Everything is checked from headers and sizes, so a 24 GB model takes milliseconds. Problems come back as a list: the
person is told of all of them at once.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backend.compile.state_dict import clean_keys
from backend.config.problems import Problem
from backend.models.spec import Part

SETTING = "model.base_model"
# No published model has a header near this; a larger number means that the file is no safetensors file.
_MAX_HEADER_BYTES = 100_000_000

# (parts of tensor names that must all be there, what the file is); the first match wins.
_KINDS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((".lora_",), "a LoRA"),
    (("lora_unet_",), "a LoRA"),
    (("lora_te",), "a LoRA of a text encoder"),
    ((".lokr_w",), "a LoKr"),
    ((".hada_w",), "a LoHa"),
    (("controlnet_blocks.",), "a ControlNet"),
    (("control_model.",), "a ControlNet"),
    (("input_hint_block.",), "a ControlNet"),
    (("double_blocks.", "single_blocks.", "text_encoders.", "vae."), "a whole FLUX checkpoint"),
    (("double_blocks.", "distilled_guidance_layer."), "a Chroma transformer"),
    (("double_stream_modulation_img.",), "a FLUX.2 transformer"),
    (("double_blocks.", "single_blocks."), "a FLUX transformer in Black Forest Labs' own layout"),
    (("single_transformer_blocks.", "x_embedder."), "a FLUX transformer in diffusers layout"),
    (("transformer_blocks.", "txt_norm.", "img_in."), "a Qwen-Image transformer"),
    (("joint_blocks.", "x_embedder.proj.", "first_stage_model.", "text_encoders."), "a whole SD3 checkpoint"),
    (("joint_blocks.", "x_embedder.proj.", "first_stage_model."), "an SD3 checkpoint without its text encoders"),
    (("joint_blocks.", "x_embedder.proj."), "an SD3 transformer"),
    (("transformer_blocks.", "pos_embed.proj.", "context_embedder."), "an SD3 transformer in diffusers layout"),
    (("llm_adapter.", "blocks.0.adaln_modulation"), "an Anima transformer"),
    (("blocks.0.adaln_modulation", "t_embedder."), "a Cosmos transformer"),
    (("blocks.0.cross_attn.k_img", "patch_embedding."), "a Wan image-to-video transformer"),
    (("blocks.0.cross_attn.", "patch_embedding."), "a Wan transformer"),
    (("input_blocks.", "first_stage_model.", "conditioner."), "a whole SDXL checkpoint"),
    (("input_blocks.", "first_stage_model.", "cond_stage_model."), "a whole Stable Diffusion checkpoint"),
    (("input_blocks.", "first_stage_model."), "a Stable Diffusion checkpoint without its text encoders"),
    (("input_blocks.", "middle_block."), "a Stable Diffusion UNet in latent diffusion's layout"),
    (("down_blocks.", "time_embedding."), "a Stable Diffusion UNet"),
    (("encoder.downsamples.", "decoder.upsamples."), "the VAE of Wan or Qwen-Image"),
    (("decoder.conv_in.", "encoder.conv_in."), "a VAE"),
    (("decoder.conv_in.",), "a VAE decoder"),
    (("visual.", "layers.0.self_attn."), "a language model that sees, such as Qwen2.5-VL"),
    (("embed_tokens.", "layers.0.self_attn."), "a language model, such as Qwen's"),
    (("block.1.layer.0.SelfAttention.relative_attention_bias",), "a umT5 text encoder"),
    (("SelfAttention.",), "a T5 text encoder"),
    (("vision_model.",), "a whole CLIP model with its vision part"),
    (("visual.", "transformer.resblocks."), "a whole open_clip model with its vision part"),
    (("transformer.resblocks.",), "a CLIP text encoder in open_clip's layout"),
    (("text_model.encoder.layers.12.", "text_projection."), "the larger CLIP text encoder (bigG)"),
    (("text_model.",), "a CLIP text encoder"),
    (("embeddings.token_embedding.",), "a CLIP text encoder"),
)


@dataclass(frozen=True)
class Header:
    """A safetensors header: tensor name -> (dtype as written, shape), and whether the file is as long as it says.

    spans: tensor name -> first byte and end of its numbers in the file.
    """

    tensors: dict[str, tuple[str, tuple[int, ...]]]
    missing_bytes: int
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors)


def read_header(path: Path) -> Header:
    """Header of the safetensors file at `path`, its names clean of torch.compile's wrappers.

    ValueError, in words, when it is none, or when it holds a tensor under both its clean and its wrapped name.
    """
    with path.open("rb") as file:
        start = file.read(8)
        if start[:8] == b"version ":
            raise ValueError("is a Git LFS pointer: the real file was never downloaded (git lfs pull)")
        if len(start) < 8:
            raise ValueError("is empty" if not start else "is cut short")
        (length,) = struct.unpack("<Q", start)
        if not 2 <= length <= _MAX_HEADER_BYTES:
            raise ValueError("is not a safetensors file")
        raw = file.read(length)
    try:
        table = json.loads(raw)
        tensors = {k: (v["dtype"], tuple(v["shape"])) for k, v in table.items() if k != "__metadata__"}
        first = 8 + length
        spans = {k: (first + table[k]["data_offsets"][0], first + table[k]["data_offsets"][1]) for k in tensors}
        end = max((span[1] for span in spans.values()), default=first)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        cut = len(raw) < length
        raise ValueError("is cut short" if cut else "is not a safetensors file") from None
    try:
        tensors, spans = clean_keys(tensors), clean_keys(spans)
    except ValueError as error:
        raise ValueError(f"holds tensors twice: {error}") from None
    return Header(tensors, max(0, end - path.stat().st_size), spans)


def kind_of(names: Iterable[str]) -> str | None:
    """What a set of tensor names belongs to, in words ("a VAE"); None when nothing known fits."""
    names = list(names)
    for needles, kind in _KINDS:
        if all(any(needle in name for name in names) for needle in needles):
            return kind
    return None


def read_json(path: Path) -> dict[str, Any]:
    """JSON object at `path`; ValueError, in words, when it can't be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is broken JSON (line {error.lineno}, column {error.colno})") from None
    if not isinstance(data, dict):
        raise ValueError("holds no JSON object")
    return data


def _variant_names(stem: str, variant: str | None) -> tuple[str, str]:
    """Names of the single file and of the shard index, as diffusers and transformers write them."""
    if variant:
        return f"{stem}.{variant}.safetensors", f"{stem}.safetensors.index.{variant}.json"
    return f"{stem}.safetensors", f"{stem}.safetensors.index.json"


def weight_files(folder: Path, stem: str, variant: str | None = None) -> list[Path]:
    """The safetensors files that make up the weights `stem` in `folder`, shards in order; empty when there are none.

    A part without files of the asked variant falls back to the plain ones, as diffusers does. Shards named by an index
    are returned whether they exist or not. ValueError when the index is broken.
    """
    for chosen in [variant, None] if variant else [None]:
        single, index = _variant_names(stem, chosen)
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            shards = read_json(folder / index).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise ValueError(f"{index} names no shards")
            return [folder / name for name in sorted(set(shards.values()))]
    return []


def folder_bytes(folder: Path, part: Part, variant: str | None = None) -> int:
    """Bytes on disk of the weights of `part` in its `folder`; 0 for a part without weights or with missing files."""
    if not part.weights:
        return 0
    try:
        files = weight_files(folder, part.weights, variant)
    except ValueError:
        return 0
    return sum(path.stat().st_size for path in files if path.is_file())


def folder_tensors(folder: Path, part: Part, variant: str | None = None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor names of `part` in its `folder` with dtype and shape, over all its shards.

    ValueError or OSError when a file can't be read.
    """
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in weight_files(folder, part.weights, variant):
        tensors |= read_header(path).tensors
    return tensors


def _problem(text: str, remedy: str) -> Problem:
    return Problem(path=SETTING, line=None, text=text, remedy=remedy)


def _check_class(base: Path, part: Part) -> list[Problem]:
    """The part's own config against the classes that it may have."""
    name = "config.json" if part.weights else ""
    if not name or not (base / part.folder / name).is_file():
        return []
    path = base / part.folder / name
    try:
        config = read_json(path)
    except ValueError as error:
        return [_problem(f"{part.folder}/{name} {error}", "Copy the file again from where the model came from.")]
    found = config.get("_class_name") or next(iter(config.get("architectures") or []), None)
    if found is None or found in part.class_names:
        return []
    wanted = part.class_names[0]
    return [
        _problem(
            f"{part.folder}/ holds {found}, but {part.title} must be {wanted}",
            f"Put the model's own {part.folder} folder there; this one belongs to another model.",
        )
    ]


def _check_weights(base: Path, part: Part, variant: str | None) -> list[Problem]:
    """Weights of one part: there, whole, and of the right kind."""
    folder = base / part.folder
    try:
        files = weight_files(folder, part.weights, variant)
    except ValueError as error:
        return [_problem(f"{part.folder}/ {error}", "Copy the folder again from where the model came from.")]
    if not files:
        other = sorted(
            p.name for p in folder.glob("*") if p.suffix in {".bin", ".pt", ".ckpt", ".safetensors", ".msgpack"}
        )
        seen = f" (found {', '.join(other[:3])})" if other else ""
        return [
            _problem(
                f"{part.title} has no weights: {part.folder}/{part.weights}.safetensors is missing{seen}",
                "Only safetensors are read; copy that file there, or set the variant if the name has one (fp16).",
            )
        ]
    problems, names = [], set()
    for path in files:
        shown = f"{part.folder}/{path.name}"
        if not path.is_file():
            problems.append(_problem(f"{shown} is missing", "Copy the missing shard; the index names it."))
            continue
        try:
            header = read_header(path)
        except ValueError as error:
            problems.append(_problem(f"{shown} {error}", "Copy the file again from where the model came from."))
            continue
        names |= header.names
        if header.missing_bytes:
            problems.append(
                _problem(
                    f"{shown} is cut short: {header.missing_bytes} bytes are missing",
                    "Copy the file again; the download broke off.",
                )
            )
    lacking = [marker for marker in part.markers if not any(marker in name for name in names)]
    if names and lacking and not problems:
        kind = kind_of(names)
        what = f"{kind}" if kind else f"something without {lacking[0]}"
        problems.append(
            _problem(
                f"{part.folder}/ holds {what}, not {part.title}",
                f"Put the model's own {part.folder} folder there; these weights belong to another part or model.",
            )
        )
    return problems


def check_folder(base: Path, part: Part, variant: str | None) -> list[Problem]:
    """Everything that is wrong with one part folder."""
    folder = base / part.folder
    if not folder.is_dir():
        return [
            _problem(
                f"{part.title} is missing: no folder {part.folder}/ in {base}",
                f"Copy the folder {part.folder} of the model there.",
            )
        ]
    problems = []
    for choices in part.files:
        if not any((folder / name).is_file() for name in choices):
            names = " or ".join(choices)
            problems.append(
                _problem(
                    f"{part.title} is incomplete: {part.folder}/{names} is missing", f"Copy {names} into {folder}."
                )
            )
    problems += _check_class(base, part)
    if part.weights:
        problems += _check_weights(base, part, variant)
    return problems
