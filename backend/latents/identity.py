"""Identifies model files by their content, in milliseconds: caches are keyed by it, so that another VAE is noticed.

Small files are hashed whole. Of a large safetensors file the header is hashed (names, types, shapes) and the first
bytes of every tensor; training or converting a model changes all of its tensors. Names and dates of files don't matter:
a copied or renamed model keeps its caches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from backend.base.paths import resolve
from backend.families.files.base_model import BaseModelFiles, header_of
from backend.families.files.headers import Unreadable, read_header
from backend.families.files.parts import Part
from backend.families.table import family
from backend.lora.comfyui_keys import is_of_text

if TYPE_CHECKING:
    from backend.config.schema import Config

_WHOLE_BYTES = 16_000_000
_TENSOR_BYTES = 4096
_CHUNK = 1 << 20


def vae_identity(cfg: Config) -> str:
    """Identity (hex) of what `cfg` encodes pictures with: its own `model.vae`, or the base model's.

    Of a family that starts clips from a picture, also of the encoder that sees this picture, and of the family, since
    more than the latent is kept.
    """
    facts = family(cfg.model.family)
    base = BaseModelFiles.of(cfg.model)
    vae = identity([_part_files(base, facts.part("vae"))])
    if facts.video is None or not facts.video.starts:
        return vae
    seeing = [part for part in facts.parts if part.name.startswith(("image_", "feature_"))]
    files = identity(_part_files(base, part) for part in seeing) if seeing else ""
    return hashlib.sha256(f"{vae} {files} {facts.name}".encode()).hexdigest()


def text_identity(cfg: Config) -> str:
    """Identity (hex) of what `cfg` encodes captions with: its text encoders, conditioner, tokenizers, processor.

    Their quantisation counts too, and LoRAs that are merged into them.
    """
    facts = family(cfg.model.family)
    base = BaseModelFiles.of(cfg.model)
    parts = [part for part in facts.parts if part.name.startswith(("text_", "tokenizer", "processor"))]
    files = identity(_part_files(base, part) for part in parts)
    kind = cfg.memory.text_encoder_quantization
    more = [] if kind == "none" else [kind]
    if facts.controls is not None and facts.controls.most > 1:
        # the same files as another family's, with another prompt around the caption
        more.append(facts.name)
    merged = base_weights_identity(cfg, text=True)
    if merged:
        more.append(f"merged {merged}")
    # as they are, the identity stays what it was before there was a choice: caches made then are still good
    return hashlib.sha256(" ".join([files, *more]).encode()).hexdigest() if more else files


def base_weights_identity(cfg: Config, text: bool = False) -> str:
    """Identity (hex) of the LoRA files that are merged into the base, with their multipliers; "" where none is.

    text: only of those that change text encoders. OSError when one can't be read.
    """
    files = [(resolve(path), times) for path, times in cfg.network.merged]
    identities = [f"{file_identity(path)} {times}" for path, times in files if not text or _changes_text(path)]
    return hashlib.sha256("\n".join(identities).encode()).hexdigest() if identities else ""


def _changes_text(path: Path) -> bool:
    return any(is_of_text(name) for name in header_of(path).names)


def identity(groups: Iterable[Iterable[Path]]) -> str:
    """Identity (hex) of groups of files, in the order given; OSError when one can't be read."""
    whole = hashlib.sha256()
    for group in groups:
        for path in group:
            whole.update(file_identity(path).encode())
        whole.update(b"/")
    return whole.hexdigest()


def file_identity(path: Path) -> str:
    """Identity (hex) of one file by its content."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        digest = hashlib.sha256(str(size).encode())
        spans = _tensor_spans(path) if size > _WHOLE_BYTES else None
        if spans is None:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
            return digest.hexdigest()
        digest.update(stream.read(spans[0][0]))
        for begin, end in spans:
            stream.seek(begin)
            digest.update(stream.read(min(end - begin, _TENSOR_BYTES)))
        return digest.hexdigest()


def _tensor_spans(path: Path) -> list[tuple[int, int]] | None:
    """Byte spans of the tensors of a safetensors file, in order; None for any other file."""
    if path.suffix.lower() not in (".safetensors", ".sft"):
        return None
    try:
        spans = read_header(path).spans
    except Unreadable:
        return None
    return sorted(spans.values()) or None


def _part_files(base: BaseModelFiles, part: Part) -> list[Path]:
    """The files that decide what a part computes: its weights, or all plain files of a tokenizer, and its config."""
    place = base.place(part)
    if place is None:
        return []
    folder = place.path
    if part.weights:
        config = folder / "config.json"
        return [*([config] if config.is_file() else []), *base.weight_files(part)]
    return sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in (".json", ".txt", ".model"))
