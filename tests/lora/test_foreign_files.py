"""LoRA files of other programs with other names, or with more than a LoRA of the denoiser: read, the rest is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from diffusers.loaders.lora_conversion_utils import _convert_xlabs_flux_lora_to_diffusers
from torch import Tensor

from backend.base.errors import Refused
from backend.config.layer_patterns import Size
from backend.families.table import family
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.file_contents import inspect_lora
from backend.lora.load import check_continue, continue_from, read_lora
from tests.tiny import anima
from tests.tiny.lora import names, trained

NAMES = names()
SQUARE = "transformer_blocks.0.attn.to_q"


def half(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(sum(size)))


def xlabs(single: bool) -> dict[str, Tensor]:
    """Rank 3 in the attention of all blocks of the tiny FLUX, under the names of XLabs-AI/x-flux."""
    tensors = {}
    for number in (0, 1):
        places = [
            (f"double_blocks.{number}.processor.{part}_lora{n}", part) for part in ("qkv", "proj") for n in (1, 2)
        ]
        places += (
            [(f"single_blocks.{number}.processor.{part}_lora", part) for part in ("qkv", "proj")] if single else []
        )
        for stem, part in places:
            inner = 160 if part == "proj" and "single" in stem else 32
            tensors[f"{stem}.down.weight"] = half(3, inner)
            tensors[f"{stem}.up.weight"] = half(96 if part == "qkv" else 32, 3)
    return tensors


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("prefix", ["", "diffusion_model."])
def test_xlabs_means_what_diffusers_takes_it_for(single: bool, prefix: str, tmp_path: Path) -> None:
    path, tensors = tmp_path / "x.safetensors", {prefix + key: value for key, value in xlabs(single).items()}
    safetensors.torch.save_file(tensors, path)
    theirs = _convert_xlabs_flux_lora_to_diffusers(dict(tensors))
    file = read_lora(path, NAMES)
    assert {f"transformer.{layer}" for layer in file.pairs} == {key.rpartition(".lora_")[0] for key in theirs}
    assert len(file.pairs) == (24 if single else 16) and not file.left_out
    for layer, (a, b) in file.pairs.items():
        ours, wanted = (
            b @ a,
            theirs[f"transformer.{layer}.lora_B.weight"] @ theirs[f"transformer.{layer}.lora_A.weight"],
        )
        torch.testing.assert_close(file.scales[layer] * ours, wanted)
    targets = (r".*\.attn\..*", r"single_transformer_blocks\.\d+\.proj_out")
    _, lora = trained(rank=4, targets=targets)
    check_continue(path, NAMES, dict.fromkeys(lora.layers, Size(4, 4.0)))
    assert "padded to 4" in continue_from(lora, file)[0]


def test_an_embedding_in_the_file_is_named_and_left_out(tmp_path: Path) -> None:
    """As OneTrainer and A1111 bundle one."""
    tensors = {f"lora_transformer_{SQUARE.replace('.', '_')}.{side}.weight": half(3, 32) for side in ("lora_down",)}
    tensors |= {f"lora_transformer_{SQUARE.replace('.', '_')}.lora_up.weight": half(32, 3)}
    tensors |= {"bundle_emb.my.fox.clip_l": half(1, 16), "bundle_emb.my.fox.t5_out": half(1, 16)}
    tensors |= {"bundle_emb.zxc.string_to_param.*": half(1, 16)}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    contents = inspect_lora(tmp_path / "x.safetensors", NAMES)
    assert list(contents.layers) == [SQUARE]
    (note,) = contents.left_out
    assert "2 embeddings" in note and "my.fox, zxc" in note


@pytest.mark.parametrize("stem", ["diffusion_model.{}", "lora_unet_{}", "net.{}", "text_conditioner.{}"])
def test_the_text_conditioner_of_anima_is_named_and_left_out(stem: str, tmp_path: Path) -> None:
    model = anima.make_tiny_denoiser()
    known = names_of(linear_layers(model), family("anima"))
    inside = "blocks.0.self_attn.q_proj"
    text = stem.format(inside if "conditioner" in stem else f"llm_adapter.{inside}")
    text = text.replace(".", "_") if text.startswith("lora_unet_") else text
    tensors = {
        f"diffusion_model.{inside}.lora_A.weight": half(2, 32),
        f"diffusion_model.{inside}.lora_B.weight": half(32, 2),
    }
    more = {f"{text}.lora_A.weight": half(2, 16), f"{text}.lora_B.weight": half(16, 2)}
    safetensors.torch.save_file(tensors | more, tmp_path / "x.safetensors")
    contents = inspect_lora(tmp_path / "x.safetensors", known)
    assert list(contents.layers) == ["transformer_blocks.0.attn1.to_q"]
    assert contents.left_out == ["the LoRA of the text conditioner llm_adapter (1 layer), which is not trained here"]
    safetensors.torch.save_file(more, tmp_path / "x.safetensors")
    with pytest.raises(Refused, match="a text conditioner only"):
        inspect_lora(tmp_path / "x.safetensors", known)


@pytest.mark.parametrize(
    ("ending", "shape", "by_output"),
    [
        ("dora_scale", (32, 1), True),
        ("dora_scale", (1, 32), False),
        ("dora_scale", (32,), True),
        ("lora_magnitude_vector.weight", (32,), True),
        ("lora_magnitude_vector.weight", (1, 32, 1, 1), True),
        ("lora_magnitude_vector", (32, 1), True),
    ],
)
def test_lengths_of_a_square_layer_are_told_by_their_shape(
    ending: str, shape: tuple[int, ...], by_output: bool, tmp_path: Path
) -> None:
    """By input they would be 75 % off if they were read as those of outputs."""
    stem = f"lora_transformer_{SQUARE.replace('.', '_')}" if ending == "dora_scale" else f"transformer.{SQUARE}"
    tensors = {
        f"{stem}.lora_down.weight": half(2, 32),
        f"{stem}.lora_up.weight": half(32, 2),
        f"{stem}.{ending}": half(*shape),
    }
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors")
    if by_output:
        lengths = read_lora(tmp_path / "x.safetensors", NAMES).lengths[SQUARE]
        assert torch.equal(lengths.flatten(), tensors[f"{stem}.{ending}"].flatten())
        return
    with pytest.raises(Refused, match=r"one length for each input of .*attn\.to_q, \[1, 32\]"):
        inspect_lora(tmp_path / "x.safetensors", NAMES)
