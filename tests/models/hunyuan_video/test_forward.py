"""HunyuanVideo's forward: that of diffusers' own denoiser, whatever pads its clips and trims its text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from backend.memory import checkpointing
from backend.models.hunyuan_video.denoiser import places, rope_of
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, gradients
from tests.tiny.hunyuan_forward import (
    EVERY_LAYER,
    GUIDANCE,
    LENGTHS,
    SIZES,
    make_batch,
    model_with_lora,
    ours,
    predict,
)
from tests.tiny.hunyuan_video import TEXT_WIDTH, make_tiny_denoiser
from tests.tiny.shapes import assert_equal_runs, relative

GARBAGE, ROOM = 1e4, 24


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def theirs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward, called as `HunyuanVideoPipeline` does; gradients summed.

    Its text has padding behind it, which is masked.
    """
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        real = text["prompt_embeds"].shape[0]
        padded = torch.cat([text["prompt_embeds"], torch.full((ROOM - real, TEXT_WIDTH), 3.0)])
        made = model(
            hidden_states=latent[None],
            timestep=1000 * sigma[None],
            encoder_hidden_states=padded[None],
            encoder_attention_mask=(torch.arange(ROOM) < real)[None].long(),
            pooled_projections=text["pooled"][None],
            guidance=torch.tensor([GUIDANCE * 1000]),
            return_dict=False,
        )[0]
        outs.append(made[0])
    return [x.detach() for x in outs], gradients(model, outs)


MASK, SINK = attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")


@pytest.mark.parametrize(
    ("mode", "rows", "buckets", "route"),
    [
        ("off", 1, None, MASK),
        ("off", 3, (8, 16), SINK),
        ("static", 3, (8, 16), MASK),
        ("static", 3, None, SINK),
        ("static", 1, (8, 16), SINK),
    ],
)
def test_equals_diffusers_own_call_in_output_and_gradients(
    mode: str, rows: int, buckets: tuple[int, ...] | None, route: attention_routes.Route
) -> None:
    batch = make_batch(SIZES[:rows], LENGTHS[:rows])
    wanted = theirs(model_with_lora(EVERY_LAYER), batch)
    assert len(wanted[1]) > 60 and any("refiner" in name for name in wanted[1])
    # clips have a size of their own; text is longer than all there is: padded on the left
    shapes = ShapeRuntime(mode, (20, 56), buckets, ROOM + 5, route)
    shapes.pad_fill = GARBAGE
    for checkpointed in ("off", "block"):
        model = model_with_lora(EVERY_LAYER)
        checkpointing.apply(model, checkpointed)
        assert_equal_runs(ours(model, batch, shapes), wanted)


def test_without_the_mask_padding_leaks() -> None:
    """The counter-proof."""

    class Unmasked(attention_routes.MaskedSdpa):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            return attention_routes.plain_attention(q, k, v, None)

    batch = make_batch(SIZES[:1], LENGTHS[:1])
    wanted = ours(model_with_lora(), batch, ShapeRuntime())
    output = ours(model_with_lora(), batch, ShapeRuntime("static", 56, None, None, Unmasked()))
    assert relative(output[0][0], wanted[0][0]) > 1e-3


@pytest.mark.parametrize("size", [(1, 8, 8), (5, 6, 10), (9, 2, 30)])
def test_positions_are_the_models_own_whatever_is_padded(size: tuple[int, int, int]) -> None:
    model = make_tiny_denoiser()
    count = size[0] * size[1] * size[2] // 4
    wanted = model.rope(torch.empty(1, 4, *size))
    rope = rope_of(model, places([[size]], 7, count + 5))
    for table, part, still in zip(rope, wanted, (1.0, 0.0), strict=True):
        assert torch.equal(table[0, 7 : 7 + count], part)
        # text and padding are turned by nothing
        assert (table[0, :7] == still).all() and (table[0, 7 + count :] == still).all()


def test_guidance_is_asked_for_and_an_undistilled_model_has_none() -> None:
    batch = make_batch(SIZES[:1], LENGTHS[:1])
    with pytest.raises(ValueError, match="needs a guidance value"):
        predict(make_tiny_denoiser(), batch.noisy, batch.sigma, batch.text, None, ShapeRuntime())
    plain = make_tiny_denoiser(guidance_embeds=False)
    (one,) = predict(plain, batch.noisy, batch.sigma, batch.text, None, ShapeRuntime())
    (other,) = predict(plain, batch.noisy, batch.sigma, batch.text, 6.0, ShapeRuntime())
    assert torch.equal(one, other)


def test_timesteps_stay_float32_and_half_precision_padding_finite() -> None:
    """0.750 and 0.751 are the same number in bf16; their embeddings must differ."""
    for dtype in (torch.bfloat16, torch.float16):
        model = model_with_lora().to(dtype)
        seen: list[Tensor] = []
        model.time_text_embed.time_proj.register_forward_hook(lambda _m, _a, out, seen=seen: seen.append(out))
        batch = make_batch(SIZES[:2], LENGTHS[:2])
        shapes = ShapeRuntime("static", 56, (8, 16), 24)
        shapes.pad_fill = 100.0
        batch.sigma = torch.tensor([0.750, 0.751])
        out, grads = ours(model, batch, shapes)
        assert all(torch.isfinite(x).all() for x in [*out, *grads.values()])
        assert not torch.equal(seen[0][0], seen[0][1]) and seen[0].dtype == torch.float32
