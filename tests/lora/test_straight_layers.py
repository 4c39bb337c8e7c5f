"""LoRA layers and attentions ask nothing at each call that the compiler would have to trace."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch

from backend.lora.inject import inject
from backend.lora.peft_layers import LoraLinear
from backend.lora.straight_layers import StraightLinear
from backend.models.common.attention import JointAttention, set_processor
from backend.shapes.attention_routes import MaskedSdpa
from tests.tiny.flux import make_tiny_denoiser


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


def test_an_attention_calls_its_processor_without_reading_its_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = make_tiny_denoiser().transformer_blocks[0].attn
    processor = JointAttention(MaskedSdpa())
    attention.set_processor(processor)
    x = torch.randn(1, 6, attention.to_q.in_features)
    expected = attention(x, encoder_hidden_states=x)
    set_processor(attention, processor)
    monkeypatch.setattr(inspect, "signature", lambda _: pytest.fail("the signature was read"))
    assert all(torch.equal(*pair) for pair in zip(attention(x, encoder_hidden_states=x), expected, strict=True))
