"""Wan's forward: that of diffusers' own denoiser and pipeline, exact whatever pads its rows and trims its text."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from backend.memory import checkpointing
from backend.models.wan import sinks
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch
from tests.tiny.shapes import assert_equal_runs, relative
from tests.tiny.wan_forward import make_batch, model_with_lora, ours, theirs

# clips of 32 and 24 tokens, and a picture of 15
SIZES, LENGTHS = [(2, 8, 8), (3, 4, 8), (1, 6, 10)], [9, 40, 3]
GARBAGE = 1e4
EVERY_LAYER = [r".*(attn\d\.to_.*|net\..*|linear_\d|time_proj|proj_out)"]


@functools.cache
def batch_and_wanted(rows: int) -> tuple[Batch, tuple[list[Tensor], dict[str, Tensor]]]:
    """So many rows, and what diffusers makes of them; the same for every way of padding them."""
    batch = make_batch(SIZES[:rows], LENGTHS[:rows])
    wanted = theirs(model_with_lora(EVERY_LAYER), batch)
    return batch, wanted


ROUTES = [attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")]


@pytest.mark.parametrize("route", ROUTES, ids=["mask", "sink"])
@pytest.mark.parametrize("kept", [None, (16, 64)], ids=["512 keys", "trimmed"])
@pytest.mark.parametrize("mode", ["off", "static"])
def test_equals_diffusers_own_call_in_output_and_gradients(
    route: attention_routes.Route, kept: tuple[int, ...] | None, mode: str
) -> None:
    """Three rows, and one; blocks recomputed too."""
    model = model_with_lora(EVERY_LAYER)
    shapes = ShapeRuntime(mode, 40, kept, 512, route)
    shapes.pad_fill = GARBAGE
    for rows, kind in ((1, "off"), (3, "off"), (3, "block")):
        checkpointing.apply(model, kind)
        batch, wanted = batch_and_wanted(rows)
        output = ours(model, batch, shapes)
        assert all(relative(got, want) < 1e-5 for got, want in zip(output[0], wanted[0], strict=True))
        # most of 512 keys are one: the gradient of the text's queries is a small difference of large numbers
        assert_equal_runs(output, wanted, 5e-4)


def test_clips_of_two_lengths_have_a_padded_size_each() -> None:
    batch = make_batch([(1, 8, 8), (3, 8, 8)], [9, 4])
    shapes = ShapeRuntime("static", (20, 50), None, 512)
    for at in (0, 1):
        wanted = theirs(model_with_lora(), batch.row(at))
        assert_equal_runs(ours(model_with_lora(), batch.row(at), shapes), wanted, 5e-4)


def test_trimming_without_the_zeros_would_be_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter-proof: captions of 9 and 40 tokens without the weight of the zeros behind them."""
    batch = make_batch(SIZES[:2], LENGTHS[:2])
    wanted = ours(model_with_lora(), batch, ShapeRuntime())
    monkeypatch.setattr(sinks, "PADDED_TO", 0)
    output = ours(model_with_lora(), batch, ShapeRuntime("off", None, (16, 64), 512))
    assert relative(output[0][0], wanted[0][0]) > 1e-3


def test_half_precision_padding_stays_finite() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = model_with_lora().to(dtype)
        batch = make_batch(SIZES[:2], LENGTHS[:2])
        shapes = ShapeRuntime("static", 40, (16, 64), 512)
        shapes.pad_fill = GARBAGE
        out, grads = ours(model, batch, shapes)
        assert all(torch.isfinite(x).all() for x in [*out, *grads.values()])


def test_times_are_told_apart_in_half_precision() -> None:
    """In bf16 a timestep of 750 and one of 751 would be one."""
    model = model_with_lora().to(torch.bfloat16)
    for name in model._keep_in_fp32_modules:
        for path, module in model.named_modules():
            if path.split(".")[-1] == name:
                module.float()
    batch = make_batch([SIZES[0]] * 2, [5, 5])
    batch.noisy[1], batch.text[1] = batch.noisy[0], batch.text[0]
    batch.sigma = torch.tensor([0.75, 0.751])
    first, second = ours(model, batch, ShapeRuntime())[0]
    assert not torch.equal(first, second)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
