"""Identity of model files: content decides, names and dates do not."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from backend.config.schema import Config
from backend.latents import identity
from backend.latents.identity import file_identity, text_identity, vae_identity


def safetensors_file(path: Path, tensors: dict[str, bytes]) -> Path:
    """A safetensors file of byte tensors, written by hand."""
    table, place = {}, 0
    for name, data in tensors.items():
        table[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [place, place + len(data)]}
        place += len(data)
    header = json.dumps(table).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"".join(tensors.values()))
    return path


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small files are treated as too large to be hashed whole."""
    monkeypatch.setattr(identity, "_WHOLE_BYTES", 0)


@pytest.mark.usefixtures("all_large")
def test_large_file_is_known_by_header_and_start_of_every_tensor(tmp_path: Path) -> None:
    tensors = {f"layer{n}": bytes([n]) * 10_000 for n in range(5)}
    first = file_identity(safetensors_file(tmp_path / "a.safetensors", tensors))
    assert file_identity(safetensors_file(tmp_path / "b.safetensors", tensors)) == first
    # Black Forest Labs' first ending, of ae.sft
    assert identity._tensor_spans(safetensors_file(tmp_path / "b.sft", tensors))
    for name in tensors:
        changed = {**tensors, name: b"\xff" + tensors[name][1:]}
        assert file_identity(safetensors_file(tmp_path / "c.safetensors", changed)) != first
    renamed = {name.replace("layer4", "layer5"): data for name, data in tensors.items()}
    assert file_identity(safetensors_file(tmp_path / "d.safetensors", renamed)) != first


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 100, struct.pack("<Q", 4) + b"{}  "])
def test_broken_or_foreign_file_is_hashed_whole(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    before = file_identity(path)
    path.write_bytes(data + b"x")
    assert file_identity(path) != before


def model(tiny_flux: Path, **changes: object) -> Config:
    return Config.model_validate({"model": {"base_model": str(tiny_flux), **changes}})


def test_model_parts(tiny_flux: Path, tmp_path: Path) -> None:
    vae, text = vae_identity(model(tiny_flux)), text_identity(model(tiny_flux))
    assert vae != text
    # A copy elsewhere, with other dates, is the same model.
    copy = shutil.copytree(tiny_flux, tmp_path / "copy")
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    assert (vae_identity(model(copy)), text_identity(model(copy))) == (vae, text)
    # Captions encoded by quantised encoders are others.
    quantized = model(copy)
    quantized.memory.text_encoder_quantization = "int8"
    assert text_identity(quantized) != text and vae_identity(quantized) == vae
    # The VAE may be given alone, as its folder or as a model that holds it.
    assert vae_identity(model(copy, vae=str(tiny_flux))) == vae
    assert vae_identity(model(copy, vae=str(tiny_flux / "vae"))) == vae


@pytest.mark.parametrize(
    ("file", "changes_text"),
    [
        ("vae/config.json", False),
        ("vae/diffusion_pytorch_model.safetensors", False),
        ("text_encoder/config.json", True),
        ("text_encoder_2/model.safetensors", True),
        ("tokenizer_2/tokenizer.json", True),
    ],
)
def test_changed_file_is_another_model(tiny_flux: Path, tmp_path: Path, file: str, changes_text: bool) -> None:
    copy = shutil.copytree(tiny_flux, tmp_path / "copy")
    data = bytearray((copy / file).read_bytes())
    # The last byte lies in a tensor or is a closing brace: same size, other content.
    data[-1] ^= 1
    (copy / file).write_bytes(data)
    assert (text_identity(model(copy)) != text_identity(model(tiny_flux))) is changes_text
    assert (vae_identity(model(copy)) != vae_identity(model(tiny_flux))) is not changes_text


def test_captions_of_anima_belong_to_its_conditioner_too(tiny_anima: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(tiny_anima, tmp_path / "copy")
    was = text_identity(model(copy, family="anima"))
    (weights,) = (copy / "text_conditioner").glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert text_identity(model(copy, family="anima")) != was == text_identity(model(tiny_anima, family="anima"))
