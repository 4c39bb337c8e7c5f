"""LoRA layers of one input in one product: the outputs and gradients of layers by themselves, in as many graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from backend.compile.model_compiler import compile_model
from backend.families.flux.facts import FACTS
from backend.families.sdxl.facts import FACTS as SDXL
from backend.lora.fused_layers import apply_together, fuse, is_fused
from backend.lora.inject import Lora, find_targets, inject
from backend.models.family_classes import load_family
from backend.models.unet.blocks import block_lists as unet_blocks
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.blocks import Counting
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.sdxl import FIRST_WIDTH, LATENT_CHANNELS, POOLED_WIDTH, SECOND_WIDTH, make_tiny_unet
from tests.tiny.shapes import assert_equal_runs, make_batch, run

block_lists = load_family("flux").block_lists

SIZES = [(6, 8), (8, 12)]
SOME = ("attn.to_q", "attn.to_v", "proj_mlp")


def flux(
    targets: tuple[str, ...] = FACTS.default_targets,
    dropout: float = 0.0,
    weight_dtype: torch.dtype = torch.float32,
    **dropouts: float,
) -> tuple[nn.Module, Lora]:
    model = make_tiny_denoiser(1, 1)
    layers = find_targets(model, targets)
    lora = inject(model, layers, rank=4, alpha=8, dropout=dropout, seed=0, weight_dtype=weight_dtype, **dropouts)
    torch.manual_seed(1)
    for path in lora.layers:
        nn.init.normal_(lora.pair(path)[1], std=0.1)
    lora.publish()
    return model.train(), lora


def products(model: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of the weights that linear products of a forward take."""
    seen: list[tuple[int, ...]] = []
    plain = nn.functional.linear

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        seen.append(tuple(weight.shape))
        return plain(x, weight, bias)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "linear", linear)
        run(model, make_batch(SIZES), ShapeRuntime())
    return seen


@pytest.mark.parametrize(
    ("targets", "saved"),
    # image q k v and text q k v of the double block, mlp q k v of the single one
    [(FACTS.default_targets, 2 + 2 + 3), (SOME, 1 + 2), (("attn.to_k",), 0)],
    ids=["all", "some", "one"],
)
def test_equal_to_layers_by_themselves(targets: tuple[str, ...], saved: int) -> None:
    """Outputs and all gradients to 1e-6; A of one input is one product where there are several."""
    (model, lora), (plain, _) = flux(targets), flux(targets)
    fuse(lora)
    batch = make_batch(SIZES)
    assert_equal_runs(run(model, batch, ShapeRuntime()), run(plain, batch, ShapeRuntime()), 1e-6)
    alone, fused = products(plain), products(model)
    assert len(alone) - len(fused) == saved
    if targets == FACTS.default_targets:
        assert fused.count((12, 32)) == 2


def test_equal_in_bf16_with_masters() -> None:
    """Stacking changes no A x; sums of gradients are rounded at other places."""
    (model, lora), (plain, _) = flux(weight_dtype=torch.bfloat16), flux(weight_dtype=torch.bfloat16)
    fuse(lora)
    batch = make_batch(SIZES)
    assert_equal_runs(run(model, batch, ShapeRuntime()), run(plain, batch, ShapeRuntime()), 3e-2)


def test_a_unet_joins_what_starts_from_pictures_and_from_text() -> None:
    """q, k, v of self-attention and k, v of cross-attention."""

    def pass_of(fused: bool) -> tuple[list[torch.Tensor], int]:
        model = make_tiny_unet().train()
        lora = inject(model, find_targets(model, SDXL.default_targets), rank=4, alpha=8, dropout=0.0, seed=0)
        torch.manual_seed(1)
        for path in lora.layers:
            nn.init.normal_(lora.pair(path)[1], std=0.1)
        if fused:
            fuse(lora)
        text = {"prompt_embeds": torch.randn(9, FIRST_WIDTH + SECOND_WIDTH), "time_ids": torch.ones(6)}
        text["pooled"] = torch.randn(POOLED_WIDTH)
        inputs = [torch.randn(LATENT_CHANNELS, 8, 8)], torch.tensor([500.0]), [text], None, ShapeRuntime()
        with pytest.MonkeyPatch.context() as patch:
            seen = []
            plain = nn.functional.linear
            patch.setattr(nn.functional, "linear", lambda *all: seen.append(all) or plain(*all))
            (out,) = load_family("sdxl").predict(model, *inputs)
        out.square().mean().backward()
        return [out, *(p.grad for p in lora.parameters())], len(seen)

    (output, fused), (wanted, alone) = pass_of(True), pass_of(False)
    blocks = sum(len(blocks) for blocks in unet_blocks(make_tiny_unet()).values())
    assert alone - fused == 3 * blocks
    for got, want in zip(output, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def test_one_graph_a_class_as_before() -> None:
    model, lora = flux(SOME)
    fuse(lora)
    counting = Counting()
    compile_model(model, block_lists(model), backend=counting, fullgraph=True, dynamic="false")
    shapes = ShapeRuntime("static", 24, text_length=12)
    outputs = [run(model, make_batch(sizes), shapes) for sizes in (SIZES, SIZES[::-1])]
    assert len(counting.graphs) == 2
    assert_equal_runs(outputs[0], run(flux(SOME)[0], make_batch(SIZES), shapes), 1e-6)


def test_dropout_and_replaced_forwards_stay_by_themselves() -> None:
    for dropout in ({"dropout": 0.1}, {"rank_dropout": 0.1}, {"module_dropout": 0.1}):
        _, dropped = flux(("attn.to_q",), **dropout)
        with pytest.raises(ValueError, match="dropout"):
            fuse(dropped)
    _, lora = flux(("attn.to_q", "attn.to_k"))
    fuse(lora)
    layers = list(lora.layers.values())[:2]
    layers[0].forward = lambda x: torch.zeros(1)
    assert not is_fused(layers[0]) and is_fused(layers[1])
    assert torch.equal(apply_together(torch.ones(1, 32), *layers)[0], torch.zeros(1))
