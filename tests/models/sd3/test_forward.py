"""SD3's forward: that of diffusers' own denoiser in all three builds, whatever pads its rows and trims its text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from backend.families.sd3.facts import CLIP_TOKENS
from backend.memory import checkpointing
from backend.models.sd3.denoiser import places
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, gradients
from tests.tiny.sd3 import MOST_SIDE, make_tiny_denoiser
from tests.tiny.sd3_forward import EVERY_LAYER, make_batch, model_with_lora, ours
from tests.tiny.shapes import assert_equal_runs, relative

# 16, 24 and 15 tokens; odd numbers of rows and columns too, which lie beside the middle of the table
SIZES, LENGTHS, ROOM = [(8, 8), (8, 12), (6, 10)], [9, 14, 6], 24
GARBAGE = 1e4


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def theirs(model: nn.Module, batch: Batch, kept: tuple[int, ...] | None) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward, called as `StableDiffusion3Pipeline` does; gradients summed."""
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        real = int(text["length"]) - CLIP_TOKENS
        rows = CLIP_TOKENS + next(bucket for bucket in kept if bucket >= real) if kept else None
        made = model(
            hidden_states=latent[None],
            timestep=1000 * sigma[None],
            encoder_hidden_states=text["prompt_embeds"][None, :rows],
            pooled_projections=text["pooled"][None],
            return_dict=False,
        )[0]
        outs.append(made[0])
    return [x.detach() for x in outs], gradients(model, outs)


MASK, SINK = attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")


@pytest.mark.parametrize(
    ("kind", "mode", "rows", "kept", "route"),
    [
        ("3.5-medium", "off", 1, None, MASK),
        ("3.5-medium", "off", 3, (8, 16), SINK),
        ("3.5-medium", "static", 3, (8, 16), MASK),
        ("3.5-medium", "static", 3, None, SINK),
        ("3.5-large", "static", 1, (8, 16), SINK),
        ("3-medium", "static", 3, None, MASK),
    ],
)
def test_equals_diffusers_own_call_in_output_and_gradients(
    kind: str, mode: str, rows: int, kept: tuple[int, ...] | None, route: attention_routes.Route
) -> None:
    batch = make_batch(SIZES[:rows], LENGTHS[:rows], room=ROOM)
    targets = [*EVERY_LAYER, "pos_embed.proj"]
    wanted = theirs(model_with_lora(targets, kind), batch, kept)
    assert len(wanted[1]) > 40 and any("pos_embed" in name for name in wanted[1])
    # longer than all text there is: padded on the left
    shapes = ShapeRuntime(mode, 32, kept, CLIP_TOKENS + ROOM + 5, route)
    shapes.pad_fill = GARBAGE
    for checkpointed in ("off", "block"):
        model = model_with_lora(targets, kind)
        checkpointing.apply(model, checkpointed)
        assert_equal_runs(ours(model, batch, shapes), wanted)


def test_without_the_mask_padding_leaks() -> None:
    """The counter-proof, for joint attention and for that of the image alone."""

    class Unmasked(attention_routes.MaskedSdpa):
        def __init__(self, which: int) -> None:
            self.which = which

        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            alone = q.shape[1] == 32
            return attention_routes.plain_attention(q, k, v, None if alone == self.which else mask)

    batch = make_batch(SIZES[:1], LENGTHS[:1])
    wanted = ours(model_with_lora(), batch, ShapeRuntime())
    for which in (False, True):
        output = ours(model_with_lora(), batch, ShapeRuntime("static", 32, None, None, Unmasked(which)))
        assert relative(output[0][0], wanted[0][0]) > 1e-3


@pytest.mark.parametrize("size", [(8, 8), (6, 10), (14, 4), (2, 30)])
def test_positions_are_the_models_own_whatever_is_padded(size: tuple[int, int]) -> None:
    embed = make_tiny_denoiser().pos_embed
    count = size[0] * size[1] // 4
    positions = embed.pos_embed[0][places([size], MOST_SIDE, 40, torch.device("cpu"))]
    assert torch.equal(positions[0, :count], embed.cropped_pos_embed(*size)[0])
    with pytest.raises(ValueError, match="17 x 4 tokens is longer than the model's table of 16"):
        places([(8, 34)], MOST_SIDE, 80, torch.device("cpu"))


def test_timesteps_stay_float32_and_half_precision_padding_finite() -> None:
    """0.750 and 0.751 are the same number in bf16; their embeddings must differ."""
    for dtype in (torch.bfloat16, torch.float16):
        model = model_with_lora().to(dtype)
        seen: list[Tensor] = []
        model.time_text_embed.time_proj.register_forward_hook(lambda _m, _a, out, seen=seen: seen.append(out))
        batch = make_batch(SIZES[:2], LENGTHS[:2])
        shapes = ShapeRuntime("static", 32, (8, 16), 24)
        shapes.pad_fill = 100.0
        batch.sigma = torch.tensor([0.750, 0.751])
        out, grads = ours(model, batch, shapes)
        assert all(torch.isfinite(x).all() for x in [*out, *grads.values()])
        assert not torch.equal(seen[0][0], seen[0][1]) and seen[0].dtype == torch.float32
