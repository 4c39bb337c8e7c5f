"""LoRA files: loaded by others at the strength they were trained at, and read back by us."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers import FluxPipeline

from backend.base.errors import Refused
from backend.families.flux.facts import LORA_LAYERS
from backend.lora.comfyui_keys import not_loadable
from backend.lora.load import continue_from, read_lora
from backend.lora.save import LoraNotFinite, file_tensors, write_lora
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.lora import inputs, names, trained

NAMES = names()


@pytest.mark.parametrize("alpha", [1.0, 4.0, 10.0])
def test_diffusers_loads_it_at_the_strength_it_was_trained_at(tmp_path: Path, tiny_flux: Path, alpha: float) -> None:
    model, lora = trained(rank=4, alpha=alpha)
    write_lora(tmp_path / "x.safetensors", file_tensors(lora, "fp32", NAMES, "diffusers"), {})
    pipeline = FluxPipeline.from_pretrained(tiny_flux, transformer=make_tiny_denoiser())
    with torch.no_grad():
        base = pipeline.transformer(**inputs()).sample
        pipeline.load_lora_weights(tmp_path / "x.safetensors")
        theirs, ours = pipeline.transformer(**inputs()).sample, model(**inputs()).sample
    assert torch.allclose(theirs, ours, rtol=1e-5, atol=1e-5)
    assert (ours - base).abs().max() > 0.05


def test_comfyui_takes_every_layer_at_the_same_strength() -> None:
    """ComfyUI adds alpha / rank * B A, alpha from a key beside them or else the rank (comfy/lora.py)."""
    _, lora = trained(rank=4, alpha=10)
    tensors = file_tensors(lora, "fp32", NAMES, "diffusers")
    assert not_loadable(lora.layers, LORA_LAYERS) == []
    for path in lora.layers:
        a, b = lora.pair(path)
        assert f"transformer.{path}.alpha" not in tensors
        delta = tensors[f"transformer.{path}.lora_B.weight"] @ tensors[f"transformer.{path}.lora_A.weight"]
        assert torch.allclose(delta, 10 / 4 * (b @ a), atol=1e-6)


def test_every_linear_layer_of_the_denoiser_is_in_comfyuis_map() -> None:
    linear = [name for name, m in make_tiny_denoiser().named_modules() if isinstance(m, torch.nn.Linear)]
    assert len(linear) > 40
    assert not_loadable(linear, LORA_LAYERS) == []
    assert not_loadable(["transformer_blocks.0.attn.to_x", "x_embedder.more"], LORA_LAYERS) == [
        "transformer_blocks.0.attn.to_x",
        "x_embedder.more",
    ]


def test_hash_and_metadata_and_precision(tmp_path: Path) -> None:
    _, lora = trained()
    path = tmp_path / "x.safetensors"
    write_lora(path, file_tensors(lora, "bf16", NAMES, "diffusers"), {"ss_network_dim": "4"})
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    assert metadata["modelspec.hash_sha256"] == "0x" + hashlib.sha256(data[8 + length :]).hexdigest()
    assert metadata["ss_network_dim"] == "4"
    tensors = safetensors.torch.load_file(path)
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert all(re.fullmatch(r"transformer\..+\.lora_[AB]\.weight", key) for key in tensors)


def test_what_is_not_finite_is_not_saved() -> None:
    _, lora = trained()
    lora.pair("transformer_blocks.0.attn.to_q")[1].data[0, 0] = 1e30
    with pytest.raises(Refused, match="bf16 or fp32"):
        file_tensors(lora, "fp16", NAMES, "diffusers")
    lora.pair("transformer_blocks.0.attn.to_q")[1].data[0, 0] = torch.nan
    with pytest.raises(LoraNotFinite, match="NaN"):
        file_tensors(lora, "fp32", NAMES, "diffusers")


@pytest.mark.parametrize(("old_rank", "old_alpha"), [(4, 10.0), (2, 2.0), (3, 1.0)])
def test_continuing_keeps_the_function_at_another_rank_and_alpha(
    tmp_path: Path, old_rank: int, old_alpha: float
) -> None:
    old_model, old = trained(rank=old_rank, alpha=old_alpha)
    write_lora(tmp_path / "old.safetensors", file_tensors(old, "fp32", NAMES, "diffusers"), {})
    model, lora = trained(rank=4, alpha=8)
    notes = continue_from(lora, read_lora(tmp_path / "old.safetensors", NAMES))
    with torch.no_grad():
        assert torch.allclose(model(**inputs()).sample, old_model(**inputs()).sample, atol=2e-5)
    if old_rank == 4:
        assert notes == []
    else:
        assert f"rank {old_rank}" in notes[0] and "padded to 4" in notes[0]
        a, _ = lora.pair("transformer_blocks.0.attn.to_q")
        assert a[old_rank:].abs().min() > 0


def test_alpha_keys_of_other_savers_are_honoured(tmp_path: Path) -> None:
    old_model, old = trained(rank=4, alpha=10)
    tensors = {}
    for path in old.layers:
        a, b = old.pair(path)
        tensors |= {f"transformer.{path}.lora_A.weight": a.detach(), f"transformer.{path}.lora_B.weight": b.detach()}
        # written by a trainer that compiled its model and let the wrapper into the keys
        tensors[f"transformer.{path}.alpha".replace(".attn.", "._orig_mod.attn.")] = torch.tensor(10.0)
    safetensors.torch.save_file(tensors, tmp_path / "alpha.safetensors")
    model, lora = trained(rank=4, alpha=4)
    continue_from(lora, read_lora(tmp_path / "alpha.safetensors", NAMES))
    with torch.no_grad():
        assert torch.allclose(model(**inputs()).sample, old_model(**inputs()).sample, atol=2e-5)


def test_what_can_not_be_continued_is_refused_with_the_reason(tmp_path: Path) -> None:
    _, old = trained(rank=8, alpha=8)
    write_lora(tmp_path / "old.safetensors", file_tensors(old, "fp32", NAMES, "diffusers"), {})
    file = read_lora(tmp_path / "old.safetensors", NAMES)
    with pytest.raises(Refused, match="network_dim to 8"):
        continue_from(trained(rank=4)[1], file)
    with pytest.raises(Refused, match="no targets now"):
        continue_from(trained(rank=8, targets=("attn.to_q",))[1], file)
    whole = (tmp_path / "old.safetensors").read_bytes()
    for content, words in (
        (b"nonsense that is no file", "is not a safetensors file"),
        (b"GGUF\x03\0\0\0", "is a GGUF file"),
        (whole[:-8], "is cut short: 8 bytes are missing"),
    ):
        (tmp_path / "broken.safetensors").write_bytes(content)
        with pytest.raises(Refused, match=words):
            read_lora(tmp_path / "broken.safetensors", NAMES)
    with pytest.raises(Refused, match="can't be read"):
        read_lora(tmp_path / "absent.safetensors", NAMES)


def test_layers_that_the_old_lora_lacks_start_fresh_and_are_said(tmp_path: Path) -> None:
    _, old = trained(targets=("attn.to_q",))
    write_lora(tmp_path / "old.safetensors", file_tensors(old, "fp32", NAMES, "diffusers"), {})
    _, lora = trained(targets=("attn.to_q", "attn.to_k"))
    assert "4 target layers" in continue_from(lora, read_lora(tmp_path / "old.safetensors", NAMES))[0]


def test_a_file_is_made_on_one_thread_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    _, lora = trained()
    threads, usual, finite = set(), torch.get_num_threads(), torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda value: (threads.add(torch.get_num_threads()), finite(value))[1])
    torch.set_num_threads(2)
    try:
        file_tensors(lora, "bf16", NAMES, "kohya")
        assert threads == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)
