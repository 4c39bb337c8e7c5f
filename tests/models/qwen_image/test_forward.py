"""Qwen-Image's forward: that of diffusers' own denoiser, exact whatever pads its rows and trims its text."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from diffusers import QwenImagePipeline
from torch import Tensor, nn

from backend.memory import checkpointing
from backend.models.qwen_image.denoiser import positions, rope_of
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, gradients
from tests.tiny.qwen_forward import (
    EVERY_LAYER,
    GARBAGE,
    LENGTHS,
    SIZES,
    make_batch,
    model_with_lora,
    ours,
)
from tests.tiny.qwen_image import make_tiny_denoiser
from tests.tiny.shapes import assert_equal_runs, relative


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def theirs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward, called as `QwenImagePipeline` does; gradients summed."""
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        channels, height, width = latent.shape
        packed = QwenImagePipeline._pack_latents(latent[None], 1, channels, height, width)
        made = model(
            hidden_states=packed,
            timestep=sigma[None],
            encoder_hidden_states=text["prompt_embeds"][None],
            encoder_hidden_states_mask=None,
            img_shapes=[[(1, height // 2, width // 2)]],
            return_dict=False,
        )[0]
        outs.append(QwenImagePipeline._unpack_latents(made, height * 8, width * 8, 8)[0, :, 0])
    return [x.detach() for x in outs], gradients(model, outs)


@functools.cache
def batch_and_wanted(rows: int) -> tuple[Batch, tuple[list[Tensor], dict[str, Tensor]]]:
    """So many rows, and what diffusers makes of them; the same for every way of padding them."""
    batch = make_batch(SIZES[:rows], LENGTHS[:rows])
    wanted = theirs(model_with_lora(EVERY_LAYER), batch)
    assert len(wanted[1]) > 40
    return batch, wanted


ROUTES = [attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")]


@pytest.mark.parametrize("route", ROUTES, ids=["mask", "sink"])
@pytest.mark.parametrize("kept", [None, (8, 16)], ids=["whole", "trimmed"])
@pytest.mark.parametrize("mode", ["off", "static"])
def test_equals_diffusers_own_call_in_output_and_gradients(
    route: attention_routes.Route, kept: tuple[int, ...] | None, mode: str
) -> None:
    """Three rows, and one; blocks recomputed too."""
    model = model_with_lora(EVERY_LAYER)
    shapes = ShapeRuntime(mode, 32, kept, 24, route)
    shapes.pad_fill = GARBAGE
    for rows, kind in ((1, "off"), (3, "off"), (3, "block")):
        checkpointing.apply(model, kind)
        batch, wanted = batch_and_wanted(rows)
        assert_equal_runs(ours(model, batch, shapes), wanted)


def test_without_the_mask_padding_leaks() -> None:
    """The counter-proof: text of 9 tokens in 24 places."""

    class Unmasked(attention_routes.MaskedSdpa):
        def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            return attention_routes.plain_attention(q, k, v)

    batch = make_batch(SIZES[:1], LENGTHS[:1])
    wanted = ours(model_with_lora(), batch, ShapeRuntime())
    output = ours(model_with_lora(), batch, ShapeRuntime("static", 16, None, 24, Unmasked()))
    assert relative(output[0][0], wanted[0][0]) > 1e-3


@pytest.mark.parametrize("size", [(8, 8), (6, 10), (14, 4), (2, 30)])
def test_positions_are_the_models_own_whatever_is_padded(size: tuple[int, int]) -> None:
    """Bit for bit, text too: where it lies depends on the picture's height and width."""
    model = make_tiny_denoiser()
    rows, columns = size[0] // 2, size[1] // 2
    image, text = model.pos_embed([[(1, rows, columns)]], device=torch.device("cpu"), max_txt_seq_len=5)
    cos, sin = rope_of(model, positions([[size]], [5], 12, 40, torch.device("cpu")))
    angles = [part[0, 7 : 12 + rows * columns, ::2] for part in (cos, sin)]
    whole = torch.cat([text, image])
    assert torch.equal(angles[0], whole.real) and torch.equal(angles[1], whole.imag)


def test_timesteps_stay_float32_and_half_precision_padding_finite() -> None:
    """0.750 and 0.751 are the same number in bf16; their embeddings must differ."""
    for dtype in (torch.bfloat16, torch.float16):
        model = model_with_lora().to(dtype)
        seen: list[Tensor] = []
        model.time_text_embed.time_proj.register_forward_hook(lambda _m, _a, out, seen=seen: seen.append(out))
        batch = make_batch(SIZES[:2], LENGTHS[:2])
        shapes = ShapeRuntime("static", 32, (8, 16), 24)
        shapes.pad_fill = GARBAGE
        batch.sigma = torch.tensor([0.750, 0.751])
        out, grads = ours(model, batch, shapes)
        assert all(torch.isfinite(x).all() for x in [*out, *grads.values()])
        assert not torch.equal(seen[0][0], seen[0][1]) and seen[0].dtype == torch.float32
