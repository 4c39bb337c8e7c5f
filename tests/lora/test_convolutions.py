"""LoRA of convolutions: SD 1.5's projections of one pixel, and the larger ones of ResNets, down- and upsamplers."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from backend.base.errors import Refused
from backend.config.layer_patterns import Size, included, sizes
from backend.config.schema import Config
from backend.config.sections.network import NetworkSection
from backend.families.sd15.facts import FACTS
from backend.families.table import family
from backend.lora.comfyui_keys import linear_layers, names_of
from backend.lora.inject import find_targets, inject, is_large
from backend.lora.load import LoraFile, check_continue, continue_from, read_lora
from backend.plan.memory.estimate import _lora_shapes, _ranks
from backend.plan.memory.parts import denoiser_of, trained_layers
from tests.tiny.sdxl import make_tiny_unet


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


@pytest.mark.parametrize(("kind", "count"), [("sdxl", 2), ("sd15", 3)])
def test_conv_dim_adds_all_of_resnets_and_what_changes_the_size(kind: str, count: int) -> None:
    """As sd-scripts' ``conv_dim`` does, but for the text's and picture's own first and last layers."""
    model, facts = make_tiny_unet(kind), family(kind)
    network = NetworkSection(network_dim=8, network_alpha=4.0, conv_dim=2)
    targets = find_targets(model, included(network, facts))
    wanted = {
        f"{place}.{inside}"
        for place, module in model.named_modules()
        if type(module).__name__ in ("ResnetBlock2D", "Downsample2D", "Upsample2D")
        for inside, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d)
    }
    added = set(targets) - set(find_targets(model, facts.default_targets))
    assert added == wanted and sum("samplers" in path for path in added) == 2 * count
    large = {path for path in targets if is_large(model.get_submodule(path))}
    layer_sizes = sizes(targets, network, large)
    assert {layer_sizes[path] for path in large} == {Size(2, 1.0)}
    assert {layer_sizes[path] for path in set(targets) - large} == {Size(8, 4.0)}
    # the estimate counts each by its own size
    denoiser = denoiser_of({name: tuple(p.shape) for name, p in model.named_parameters()}, facts)
    assert large <= set(denoiser.kernels) and set(denoiser.kernels.values()) == {9}
    layers, cfg = trained_layers(denoiser, included(network, facts), ()), Config(network=network)
    counted = _lora_shapes(layers, _ranks(layers, denoiser.kernels, cfg), cfg)
    lora = inject(model, targets, rank=8, alpha=4.0, dropout=0.0, seed=1, sizes=layer_sizes)
    assert sorted(counted) == sorted(tuple(p.flatten(1).shape) for p in lora.parameters())


def test_a_lokr_takes_no_larger_kernel() -> None:
    model = make_tiny_unet("sd15")
    with pytest.raises(Refused, match="larger than one pixel"):
        inject(model, find_targets(model, ["conv1"]), rank=2, alpha=1.0, dropout=0.0, seed=1, kind="lokr")


def test_a_file_with_convolutions_needs_conv_dim_of_its_rank(tmp_path: Path) -> None:
    """kohya's and LyCORIS' LoCon: A as large as the kernel, B of one pixel."""
    model, facts = make_tiny_unet("sdxl"), family("sdxl")
    names = names_of(linear_layers(model), facts)
    path = "down_blocks.0.resnets.0.conv1"
    outer, inner = model.get_submodule(path).weight.shape[:2]
    stem, source = f"lora_unet_{path.replace('.', '_')}", torch.Generator().manual_seed(3)
    a, b = torch.randn(4, inner, 3, 3, generator=source), torch.randn(outer, 4, 1, 1, generator=source)
    tensors = {f"{stem}.lora_down.weight": a, f"{stem}.lora_up.weight": b, f"{stem}.alpha": torch.tensor(2.0)}
    file = tmp_path / "x.safetensors"
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(Refused, match="conv_dim adds convolutions"):
        check_continue(file, names, {"mid_block.attentions.0.proj_in": Size(4, 4.0)})
    with pytest.raises(Refused, match="Set conv_dim to 4"):
        check_continue(file, names, {path: Size(2, 2.0)})
    lora = inject(model, [path], rank=6, alpha=3.0, dropout=0.0, seed=1)
    check_continue(file, names, {path: Size(6, 3.0)})
    (note,) = continue_from(lora, read_lora(file, names))
    assert "padded to 6" in note
    layer, x = lora.layers[path], torch.randn(1, inner, 6, 7, generator=source)
    wanted = torch.nn.functional.conv2d(torch.nn.functional.conv2d(x, a, padding=1), b) * 0.5
    torch.testing.assert_close(layer(x) - layer.base_layer(x), wanted, rtol=1e-4, atol=1e-4)


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
