"""Anima's forward: that of diffusers' own denoiser and pipeline, exact whatever pads its rows and trims its text."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backend.memory import checkpointing
from backend.models.anima import sinks
from backend.models.common import sink_keys
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.anima_forward import make_batch, model_with_lora, ours
from tests.tiny.anima_pipeline import without_torchvision
from tests.tiny.forward import Batch, gradients
from tests.tiny.shapes import assert_equal_runs, relative

# 16, 24 and 15 tokens
SIZES, LENGTHS = [(8, 8), (8, 12), (6, 10)], [9, 40, 3]
GARBAGE = 1e4
EVERY_LAYER = [r".*(attn\d\.to_.*|net\..*|linear_\d|proj|proj_out)"]


@pytest.fixture
def nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torchvision(monkeypatch)


def theirs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward, called as `AnimaLoopDenoiser` does; gradients summed."""
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        words = text["prompt_embeds"]
        outs.append(
            model(
                hidden_states=latent[None, :, None],
                timestep=sigma[None],
                encoder_hidden_states=F.pad(words, (0, 0, 0, 512 - words.shape[0]))[None],
                padding_mask=torch.zeros(1, 1, latent.shape[1] * 8, latent.shape[2] * 8),
                return_dict=False,
            )[0][0, :, 0]
        )
    return [x.detach() for x in outs], gradients(model, outs)


@functools.cache
def batch_and_wanted(rows: int) -> tuple[Batch, tuple[list[Tensor], dict[str, Tensor]]]:
    """So many rows, and what diffusers makes of them; the same for every way of padding them."""
    batch = make_batch(SIZES[:rows], LENGTHS[:rows])
    wanted = theirs(model_with_lora(EVERY_LAYER), batch)
    return batch, wanted


ROUTES = [attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")]


@pytest.mark.usefixtures("nearest")
@pytest.mark.parametrize("route", ROUTES, ids=["mask", "sink"])
@pytest.mark.parametrize("kept", [None, (16, 64)], ids=["512 keys", "trimmed"])
@pytest.mark.parametrize("mode", ["off", "static"])
def test_equals_diffusers_own_call_in_output_and_gradients(
    route: attention_routes.Route, kept: tuple[int, ...] | None, mode: str
) -> None:
    """Three rows, and one; blocks recomputed too."""
    model = model_with_lora(EVERY_LAYER)
    shapes = ShapeRuntime(mode, 32, kept, 512, route)
    shapes.pad_fill = GARBAGE
    for rows, kind in ((1, "off"), (3, "off"), (3, "block")):
        checkpointing.apply(model, kind)
        batch, wanted = batch_and_wanted(rows)
        assert_equal_runs(ours(model, batch, shapes), wanted)


def test_trimming_without_sinks_would_be_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-proof: captions of 9 and 40 tokens without the weight of the zeros behind them."""
    batch = make_batch(SIZES[:2], LENGTHS[:2])
    wanted = ours(model_with_lora(), batch, ShapeRuntime())
    monkeypatch.setattr(sinks, "PADDED_TO", 0)
    output = ours(model_with_lora(), batch, ShapeRuntime("off", None, (16, 64), 512))
    assert relative(output[0][0], wanted[0][0]) > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("count", [1, 17, 448, 509])
def test_biases_add_up_in_every_format(count: int, dtype: torch.dtype) -> None:
    sums = torch.tensor(sink_keys.biases(count))
    assert torch.equal(sums.to(dtype).float(), sums), "a bias is rounded"
    assert sums.double().exp().sum().item() == pytest.approx(count, rel=1e-8)
    assert len(sums) == sink_keys.KEYS and torch.tensor(sink_keys.biases(0)).isinf().all()


@pytest.mark.parametrize("route", ROUTES, ids=["mask", "sink"])
def test_text_longer_than_the_models_own_length_has_no_sinks(route: attention_routes.Route) -> None:
    """Cut at 700 tokens, as the pipeline's max_sequence_length allows: 600 real rows are all there is."""
    batch, model = make_batch(SIZES[:2], [600, 9]), model_with_lora()
    alone = [ours(model, batch.row(at), ShapeRuntime())[0][0] for at in (0, 1)]
    output = ours(model, batch, ShapeRuntime("off", None, None, 700, route))[0]
    for got, want in zip(output, alone, strict=True):
        assert relative(got, want) < 1e-5


def test_half_precision_padding_stays_finite() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = model_with_lora().to(dtype)
        batch = make_batch(SIZES[:2], LENGTHS[:2])
        shapes = ShapeRuntime("static", 32, (16, 64), 512)
        shapes.pad_fill = GARBAGE
        out, grads = ours(model, batch, shapes)
        assert all(torch.isfinite(x).all() for x in [*out, *grads.values()])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
