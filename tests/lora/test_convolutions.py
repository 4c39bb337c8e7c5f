"""LoRA of convolutions of one pixel: SD 1.5's projections into and out of its transformers."""

from __future__ import annotations

import pytest
import torch

from backend.lora.inject import find_targets, inject
from backend.lora.load import LoraFile, continue_from
from backend.models.sd15.facts import FACTS
from backend.plan.parts import denoiser_of, trained_layers
from backend.refused import Refused
from tests.tiny_sdxl import make_tiny_unet


def test_default_targets_are_all_layers_of_the_transformers_and_the_plan_counts_them() -> None:
    model = make_tiny_unet("sd15")
    targets = find_targets(model, FACTS.default_targets)
    inside = [
        name
        for name, module in model.named_modules()
        if ".attentions." in name and isinstance(module, torch.nn.Linear | torch.nn.Conv2d)
    ]
    assert targets == inside
    denoiser = denoiser_of({name: tuple(p.shape) for name, p in model.named_parameters()}, FACTS)
    assert set(trained_layers(denoiser, FACTS.default_targets, ())) == set(targets)


def test_a_larger_kernel_takes_none() -> None:
    with pytest.raises(Refused, match="one pixel"):
        find_targets(make_tiny_unet("sd15"), ["conv1"])


@pytest.mark.parametrize("flat", [False, True])
def test_a_file_is_continued_at_its_strength_with_16_bit_weights(flat: bool) -> None:
    model = make_tiny_unet("sd15")
    targets = find_targets(model, ["attentions.0.proj_in"])
    path = targets[0]
    plain = model.get_submodule(path).weight.clone()
    lora = inject(model, targets, rank=4, alpha=4.0, dropout=0.0, seed=1, weight_dtype=torch.bfloat16)
    source = torch.Generator().manual_seed(3)
    a, b = torch.randn(2, plain.shape[1], generator=source), torch.randn(plain.shape[0], 2, generator=source)
    tail = () if flat else (1, 1)
    file = LoraFile({path: (a.reshape(*a.shape, *tail), b.reshape(*b.shape, *tail))}, {path: 0.5}, {})
    continue_from(lora, file)
    x = torch.randn(1, plain.shape[1], 3, 5, generator=source)
    layer = lora.layers[path]
    added = layer(x) - layer.base_layer(x)
    wanted = torch.nn.functional.conv2d(x, 0.5 * (b @ a)[:, :, None, None])
    torch.testing.assert_close(added, wanted, atol=0.05, rtol=0.02)
    layer(x).square().mean().backward()
    lora.collect_gradients()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in lora.pair(path))
