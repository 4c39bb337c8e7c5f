"""Static shapes are exact: real tokens give the output and LoRA gradients of the unpadded run, whatever pads them."""

from collections.abc import Iterator

import pytest
import torch

from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.shapes import SIZES, TEXT, assert_equal_runs, denoiser_with_lora, make_batch, reference, relative, run

CPU = torch.device("cpu")
GARBAGE = 1e6


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return denoiser_with_lora()


@pytest.fixture
def checkpointed(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    model.enable_gradient_checkpointing()
    yield model
    model.disable_gradient_checkpointing()


def static(route: attention_routes.Route | None = None, count: int = 32) -> ShapeRuntime:
    shapes = ShapeRuntime("static", count, text_length=TEXT, route=route)
    shapes.pad_fill = GARBAGE
    return shapes


def routes() -> list[attention_routes.Route]:
    """The two styles that run in float32 on the CPU; the other routes are in test_gpu_routes."""
    return [attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")]


@pytest.mark.parametrize("route", routes(), ids=["mask", "sink"])
@pytest.mark.parametrize("rows", [[1], [0, 1, 2, 3]], ids=["batch1", "batch4"])
def test_padded_equals_unpadded(model: torch.nn.Module, rows: list[int], route: attention_routes.Route) -> None:
    batch = make_batch([SIZES[i] for i in rows], [9, 12, 5, 7][: len(rows)])
    assert_equal_runs(run(model, batch, static(route)), reference(model, batch))


@pytest.mark.parametrize("route", routes(), ids=["mask", "sink"])
@pytest.mark.parametrize("rows", [[1], [0, 1, 2, 3]], ids=["batch1", "batch4"])
def test_padded_equals_unpadded_with_checkpointing(
    checkpointed: torch.nn.Module, rows: list[int], route: attention_routes.Route
) -> None:
    batch = make_batch([SIZES[i] for i in rows], [9, 12, 5, 7][: len(rows)])
    wanted = reference(checkpointed, batch)
    calls = []
    hook = checkpointed.transformer_blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    output = run(checkpointed, batch, static(route))
    hook.remove()
    assert len(calls) == 2, "the block was not computed again in the backward pass"
    assert_equal_runs(output, wanted)


def test_garbage_reaches_the_padding_and_changes_nothing_real(model: torch.nn.Module) -> None:
    """Bit for bit: zero padding and garbage padding give the same run, and the garbage is really there."""
    batch = make_batch(SIZES[:2], [9, 12])
    clean, dirty = static(), static()
    clean.pad_fill = 0.0
    tokens = [torch.ones(4, 3), torch.ones(8, 3)]
    packed = dirty.pack(tokens, [torch.ones(5, 3), torch.ones(12, 3)])
    assert (
        packed.image.shape == (2, 32, 3) and packed.image[0, 4:].eq(GARBAGE).all() and packed.image[0, :4].eq(1).all()
    )
    assert packed.text.shape == (2, 12, 3) and packed.text[0, :7].eq(GARBAGE).all() and packed.text[0, 7:].eq(1).all()
    assert_equal_runs(run(model, batch, dirty), run(model, batch, clean), tolerance=1e-7)


def test_without_the_mask_padding_leaks(model: torch.nn.Module) -> None:
    """The counter-proof: unmasked zero padding, as the seed has it, is far from the unpadded run."""
    batch = make_batch(SIZES[:1])

    class Unmasked(attention_routes.MaskedSdpa):
        def attend(self, q, k, v, mask):
            return attention_routes.plain_attention(q, k, v)

    shapes = static(Unmasked())
    shapes.pad_fill = 0.0
    padded, wanted = run(model, batch, shapes), reference(model, batch)
    assert relative(padded[0][0], wanted[0][0]) > 1e-3


def test_mixed_aspect_ratios_of_one_token_count(model: torch.nn.Module) -> None:
    """4x6, 6x4 and 2x12 tokens in one batch: RoPE is a sample's own, and nothing is padded."""
    batch = make_batch([(8, 12), (12, 8), (4, 24)])
    shapes = ShapeRuntime("exact_buckets")
    assert_equal_runs(run(model, batch, shapes), reference(model, batch))
    assert shapes.pack([torch.ones(24, 4)] * 3, [torch.ones(12, 4)] * 3).mask is None


@pytest.mark.parametrize("mode", ["off", "dynamic", "exact_buckets"])
def test_uneven_rows_are_masked_in_every_mode(model: torch.nn.Module, mode: str) -> None:
    batch = make_batch(SIZES, [9, 12, 5, 7])
    shapes = ShapeRuntime(mode)
    shapes.pad_fill = GARBAGE
    assert_equal_runs(run(model, batch, shapes), reference(model, batch))


def test_caption_buckets_equal_the_trimmed_run(model: torch.nn.Module) -> None:
    """Captions of 3, 4 and 7 real tokens of 12, buckets 4 and 8: the reference is the trimmed text, run alone."""
    batch = make_batch(SIZES[:3])
    for row, real in zip(batch.text, (3, 4, 7), strict=True):
        row["length"] = torch.tensor(real)
    trimmed = make_batch(SIZES[:3])
    for row, kept in zip(trimmed.text, (4, 4, 8), strict=True):
        row["prompt_embeds"] = row["prompt_embeds"][:kept]
    wanted = reference(model, trimmed)
    for mode in ("static", "off"):
        shapes = ShapeRuntime(mode, 32, caption_buckets=[8, 4], text_length=TEXT)
        shapes.pad_fill = GARBAGE
        assert_equal_runs(run(model, batch, shapes), wanted)
        assert shapes.text_tokens(12, 3) == 4 and shapes.text_tokens(12, 9) == 12 and shapes.text_tokens(12, None) == 12
    longest = ShapeRuntime("static", 32, caption_buckets=[4, 8], text_length=TEXT)
    assert longest.pack([torch.ones(16, 4)], [torch.ones(4, 4)]).text_size == 4, "a short caption must save work"
    untrimmed = reference(model, make_batch(SIZES[:3]))
    assert relative(wanted[0][0], untrimmed[0][0]) > 1e-4, "trimming attended text changes FLUX: it must be asked for"


def test_image_above_the_static_count_keeps_its_size(model: torch.nn.Module) -> None:
    batch = make_batch([(8, 12)])
    assert_equal_runs(run(model, batch, static(count=20)), reference(model, batch))


def test_no_padding_is_bit_exact(model: torch.nn.Module) -> None:
    """A row that fills the static count gives the very bits of the unpadded run, by the sink style too."""
    batch = make_batch([(8, 12)])
    out, _ = run(model, batch, static(routes()[1], count=24))
    bare, _ = run(model, batch, ShapeRuntime(route=routes()[1]))
    assert torch.equal(out[0], bare[0])


def test_half_precision_padding_stays_finite() -> None:
    """bf16 and fp16: garbage padding sends neither NaN nor inf into outputs or gradients."""
    for dtype in (torch.bfloat16, torch.float16):
        model = denoiser_with_lora().to(dtype)
        batch = make_batch(SIZES[:2], [9, 12]).to("cpu", dtype)
        shapes = static()
        shapes.pad_fill = 1e4
        out, grads = run(model, batch, shapes)
        assert all(torch.isfinite(x).all() for x in [*out, *grads.values()])
