"""LoRA layers and attentions ask nothing at each call that the compiler would have to trace."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers.transformer_flux import FluxAttention

from backend.lora.inject import inject
from backend.lora.peft_layers import LoraLinear
from backend.lora.straight_layers import StraightLinear
from backend.models.family_classes import load_family
from backend.shapes.attention_routes import MaskedSdpa
from tests.tiny import anima
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.sdxl import make_tiny_unet


@pytest.mark.parametrize(("cast", "dtype"), [(True, torch.float32), (True, torch.bfloat16), (False, torch.float32)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_layer_gives_the_bits_of_pefts(cast: bool, dtype: torch.dtype, dropout: float) -> None:
    model = make_tiny_denoiser().to(dtype)
    inject(model, ["x_embedder"], rank=4, alpha=2.0, dropout=dropout, seed=1, cast=cast)
    layer = model.x_embedder
    assert type(layer) is StraightLinear
    torch.nn.init.normal_(layer.lora_B["default"].weight, generator=torch.Generator().manual_seed(2))
    other = copy.deepcopy(layer)
    other.__class__ = LoraLinear
    x = torch.randn(2, 5, layer.in_features, dtype=dtype)
    made = []
    for each in (layer, other):
        torch.manual_seed(3)
        out = each(x)
        out.float().square().sum().backward()
        made.append((out, each.lora_A["default"].weight.grad, each.lora_B["default"].weight.grad))
    assert all(torch.equal(ours, pefts) for ours, pefts in zip(*made, strict=True))
    layer.enable_adapters(False)
    assert torch.equal(layer(x), layer.base_layer(x))


@pytest.mark.parametrize("name", ["flux", "anima", "sdxl"])
def test_installed_attentions_call_their_processor_without_reading_its_signature(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser = {"flux": make_tiny_denoiser, "anima": anima.make_tiny_denoiser, "sdxl": make_tiny_unet}[name]()
    attentions = [module for module in denoiser.modules() if isinstance(module, (Attention, FluxAttention))]
    assert attentions
    load_family(name).install(denoiser, MaskedSdpa())
    monkeypatch.setattr(inspect, "signature", lambda _: pytest.fail("the signature was read"))
    for attention in attentions:
        x = torch.randn(1, 6, attention.to_q.in_features)
        monkeypatch.setattr(attention, "processor", lambda attn, *places, **names: (attn, places, names))
        assert attention(x, attention_mask=None) == (attention, (x, None, None), {})
