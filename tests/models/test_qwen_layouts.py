"""Qwen-Image's single files: the VAE in Wan's layout against diffusers' converter, the others name by name."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from diffusers.loaders import single_file_utils as theirs
from torch import Tensor

from backend.families.table import LAYOUTS
from tests.tiny import originals
from tests.tiny.originals import wan


def header(state: dict[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: ("F32", tuple(value.shape)) for name, value in state.items()}


def test_wans_vae() -> None:
    model = originals.tiny(
        lambda: AutoencoderKLQwenImage(base_dim=8, z_dim=4, latents_mean=[0.0] * 4, latents_std=[1.0] * 4)
    )
    state = model.state_dict()
    stored = wan(state)
    assert "decoder.upsamples.3.resample.1.weight" in stored and "encoder.downsamples.2.resample.1.weight" in stored
    converted = theirs.convert_wan_vae_to_diffusers(dict(stored))
    pieces = LAYOUTS["wan_vae"].pieces(header(stored))
    assert pieces.keys() == converted.keys() == state.keys()
    for name, piece in pieces.items():
        assert stored[piece.source] is converted[name] and torch.equal(converted[name], state[name]), name


@pytest.mark.parametrize("prefix", LAYOUTS["qwen_dit"].prefixes)
def test_qwens_transformer_keeps_its_names_behind_a_prefix(prefix: str) -> None:
    model = QwenImageTransformer2DModel(
        num_layers=1, num_attention_heads=2, attention_head_dim=16, joint_attention_dim=16, axes_dims_rope=(4, 6, 6)
    )
    stored = originals.behind(prefix, model.state_dict())
    assert LAYOUTS["qwen_dit"].prefix_in(stored) == prefix
    pieces = LAYOUTS["qwen_dit"].pieces(header(stored), prefix)
    assert {name: piece.source for name, piece in pieces.items()} == {n: prefix + n for n in model.state_dict()}


def test_qwens_text_encoder_keeps_the_names_of_its_publication() -> None:
    names = [
        "model.layers.0.self_attn.q_proj.weight",
        "visual.patch_embed.proj.weight",
        "lm_head.weight",
        "model.norm.weight",
    ]
    stored = dict.fromkeys(names, ("BF16", (2, 2)))
    assert LAYOUTS["qwen_vl"].prefix_in(stored) == ""
    assert sorted(LAYOUTS["qwen_vl"].pieces(stored)) == sorted(names)
