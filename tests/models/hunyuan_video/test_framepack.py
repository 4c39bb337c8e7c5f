"""FramePack: its forward, what a row is made of, and a sample's section, against diffusers' own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import HunyuanVideoFramepackPipeline
from torch import Tensor, nn

from backend.families.hunyuan_video.framepack_facts import FRAMEPACK_FACTS, IMAGE_TOKENS
from backend.families.hunyuan_video.sections import sections_between
from backend.memory import checkpointing
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.shapes import attention_routes
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.forward import Batch, gradients
from tests.tiny.framepack import LATENT_CHANNELS, make_batch, make_tiny_denoiser, model_with_lora
from tests.tiny.hunyuan_forward import EVERY_LAYER, GUIDANCE
from tests.tiny.hunyuan_video import TEXT_WIDTH
from tests.tiny.shapes import assert_equal_runs, relative

CODE, CPU = load_family("framepack"), LoadOptions(torch.float32, torch.device("cpu"))
# 4 x 4, 4 x 6 and 3 x 5 tokens a frame: the last ones fill no patch of two or four
SIZES, LENGTHS, ROOM = [(8, 8), (8, 12), (6, 10)], [9, 14, 6], 24
TARGETS = [*EVERY_LAYER, r"image_projection\.(up|down)"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def told_by_the_pipeline(behind: Tensor, between: int) -> dict[str, Tensor]:
    """What `HunyuanVideoFramepackPipeline` gives its transformer of a clip, sampling ``inverted_anti_drifting``."""
    sizes = [1, 9 * between, 9, 1, 2, 16]
    prefix, _, own, once, twice, four = torch.arange(0, sum(sizes)).split(sizes, dim=0)
    start, first, second, third = behind[None].split([1, 1, 2, 16], dim=2)
    return {
        "indices_latents": own,
        "latents_clean": torch.cat([start, first], dim=2),
        "indices_latents_clean": torch.cat([prefix, once], dim=0),
        "latents_history_2x": second,
        "indices_latents_history_2x": twice,
        "latents_history_4x": third,
        "indices_latents_history_4x": four,
    }


def theirs(model: nn.Module, batch: Batch) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Each row alone through diffusers' own forward; gradients summed."""
    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        real = text["prompt_embeds"].shape[0]
        made = model(
            hidden_states=latent[None, :, 1:],
            timestep=1000 * sigma[None],
            encoder_hidden_states=torch.cat([text["prompt_embeds"], torch.full((ROOM - real, TEXT_WIDTH), 3.0)])[None],
            encoder_attention_mask=(torch.arange(ROOM) < real)[None].long(),
            pooled_projections=text["pooled"][None],
            image_embeds=text["image_embeds"][None],
            guidance=torch.tensor([GUIDANCE * 1000]),
            **told_by_the_pipeline(text["behind"], int(text["between"])),
            return_dict=False,
        )[0]
        outs.append(made[0])
    return [x.detach() for x in outs], gradients(model, outs)


def ours(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    out = [made[:, 1:] for made in CODE.predict(model, batch.noisy, batch.sigma, batch.text, GUIDANCE, shapes)]
    return [x.detach() for x in out], gradients(model, out)


MASK, SINK = attention_routes.MaskedSdpa(), attention_routes.sink_route("sdpa", "aten", "flash, padded keys removed")


@pytest.mark.parametrize(
    ("mode", "rows", "buckets", "route"),
    [("off", 1, None, MASK), ("off", 3, (8, 16), SINK), ("static", 3, None, SINK), ("static", 3, (8, 16), MASK)],
)
def test_equals_diffusers_own_call_in_output_and_gradients(
    mode: str, rows: int, buckets: tuple[int, ...] | None, route: attention_routes.Route
) -> None:
    batch, model = make_batch(SIZES[:rows], LENGTHS[:rows]), model_with_lora(TARGETS)
    wanted = theirs(model, batch)
    assert len(wanted[1]) > 60 and any("image_projection" in name for name in wanted[1])
    shapes = ShapeRuntime(mode, 320, buckets, IMAGE_TOKENS + ROOM + 5, route)
    # of the captions it goes through layers first, whose sums a larger one drowns
    shapes.pad_fill = 100.0
    for checkpointed in ("off", "block"):
        checkpointing.apply(model, checkpointed)
        assert_equal_runs(ours(model, batch, shapes), wanted)


def test_the_tokens_are_as_the_plan_counts_them() -> None:
    geometry, seen = FRAMEPACK_FACTS.default_geometry, []
    for size, count in zip(SIZES, (16 * 11 + 4 + 4, 24 * 11 + 6 + 8, 15 * 11 + 6 + 8), strict=True):
        assert (
            geometry.image_tokens(8 * size[1], 8 * size[0], 37)
            == count
            == geometry.image_tokens(8 * size[1], 8 * size[0], 109)
        )
        batch, model = make_batch([size], [5]), make_tiny_denoiser()
        model.transformer_blocks[0].register_forward_pre_hook(
            lambda _m, inputs, seen=seen: seen.append(inputs[0].shape[1])
        )
        CODE.predict(model, batch.noisy, batch.sigma, batch.text, 1.0, ShapeRuntime())
        assert seen.pop() == count
    assert geometry.image_tokens(640, 640, 37) == 18_400
    assert [geometry.whole_frames(frames) for frames in (1, 36, 37, 72, 73, 120)] == [1, 1, 37, 37, 73, 109]
    with pytest.raises(ValueError, match="33 frames are not 36 n"):
        geometry.image_tokens(64, 64, 33)


def test_the_start_adds_nothing_to_the_loss_and_is_where_samples_end() -> None:
    batch, model = make_batch(SIZES[:1], LENGTHS[:1]), make_tiny_denoiser()
    noise, start = torch.randn(LATENT_CHANNELS, 10, 8, 8), batch.text[0]["behind"][:, :1]
    clean = torch.cat([start, batch.noisy[0][:, 1:]], dim=1)
    for sigma in (0.02, 0.5, 1.0):
        noisy = (1 - sigma) * clean + sigma * noise
        (made,) = CODE.predict(model, [noisy], torch.tensor([sigma]), batch.text, 1.0, ShapeRuntime())
        assert (made[:, :1] - (noise - clean)[:, :1]).abs().max() < 1e-3
        torch.testing.assert_close((noisy - sigma * made)[:, :1], start, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_sections_are_told_of_as_the_pipeline_tells_of_them(count: int) -> None:
    paddings = [*reversed(range(count))] if count <= 4 else [3] + [2] * (count - 3) + [1, 0]
    assert [sections_between(count - 1 - turn, count) for turn in range(count)] == paddings


def rows_of(base: Path, frames: int) -> tuple[list[dict[str, Tensor]], list[Tensor], Any]:
    """Of several clips: what is kept, and the latents of the whole."""
    stack, draw = CODE.load_vae(base, CPU), torch.Generator().manual_seed(4)
    clips = [torch.rand(3, frames, 32, 32, generator=draw) * 2 - 1 for _ in range(4)]
    return [stack.encode_row(clip) for clip in clips], [stack.encode(clip[None])[0] for clip in clips], clips


def test_a_row_is_a_section_with_what_is_behind_it(tiny_framepack: Path) -> None:
    pipeline = HunyuanVideoFramepackPipeline.from_pretrained(tiny_framepack)
    rows, wholes, clips = rows_of(tiny_framepack, 109)
    assert len({int(row["between"]) for row in rows}) > 1
    for row, whole, clip in zip(rows, wholes, clips, strict=True):
        at = 1 + 9 * int(row["between"])
        assert torch.equal(row["latent"], torch.cat([whole[:, :1], whole[:, at : at + 9]], dim=1))
        behind = torch.nn.functional.pad(whole[:, at + 9 :], (0, 0, 0, 0, 0, 30))[:, :19]
        assert torch.equal(row["behind"], torch.cat([whole[:, :1], behind], dim=1))
        seen = pipeline.encode_image(clip[None, :, 0], device=torch.device("cpu"))[0]
        torch.testing.assert_close(row["image_embeds"], seen)
    stack = CODE.load_vae(tiny_framepack, CPU)
    for short in (clips[0][:, 0], clips[0][:, :33]):
        with pytest.raises(ValueError, match="36 n"):
            stack.encode_row(short)


@pytest.mark.parametrize(
    ("family", "kind", "count"),
    [
        ("framepack", "inverted_anti_drifting", 1),
        # from five on the pipeline tells of others than how many are left
        ("framepack", "inverted_anti_drifting", 5),
        ("framepack_f1", "vanilla", 3),
    ],
)
def test_a_sample_of_framepack_and_framepack_f1_is_the_pipelines(
    tiny_framepack: Path, family: str, kind: str, count: int
) -> None:
    """From the noise that the pipeline draws for each section: its latents, and the clip that it makes of them."""
    code = load_family(family)
    pipeline = HunyuanVideoFramepackPipeline.from_pretrained(tiny_framepack)
    pipeline.set_progress_bar_config(disable=True)
    picture = torch.rand(3, 32, 48, generator=torch.Generator().manual_seed(1)) * 2 - 1
    stack, text = code.load_vae(tiny_framepack, CPU), code.load_text(tiny_framepack, CPU)
    start_fields = stack.encode_start(picture)
    start = start_fields["behind"][None, :, :1]
    values = {"image": (picture[None] + 1) / 2, "prompt": "a red circle", "height": 32, "width": 48}
    values |= {"num_inference_steps": 2, "guidance_scale": 4.5, "max_sequence_length": 24, "sampling_type": kind}
    # it draws the picture's latent at random
    pipeline.prepare_image_latents = lambda *arguments, **named: start
    source = torch.Generator().manual_seed(5)
    wanted = pipeline(**values, num_frames=33 * count, generator=source, output_type="latent").frames[-1]
    source = torch.Generator().manual_seed(5)
    model = code.load_denoiser(tiny_framepack, CPU).eval()
    (words,) = text.encode(["a red circle"], 24)
    levels = code.sampling_sigmas(2, 300, tiny_framepack)
    sections = code.sections(36 * count + 1)
    for _ in range(sections.count):
        noise = torch.randn(1, LATENT_CHANNELS, 9, 4, 6, generator=source)[0]
        x = torch.cat([torch.randn(LATENT_CHANNELS, 1, 4, 6), noise], dim=1)
        row = [sections.told(words | start_fields)]
        with torch.no_grad():
            for now, then in zip(levels, levels[1:], strict=False):
                (made,) = code.predict(model, [x], torch.tensor([now]), row, 4.5, ShapeRuntime())
                x = x + (then - now) * made
        sections.add(x)
    whole = sections.whole()
    assert wanted.shape[1:] == whole.shape == (LATENT_CHANNELS, 1 + 9 * count, 4, 6)
    assert relative(whole, wanted[0]) < 1e-3
    # a clip of whole sections: the picture and 36 frames of each
    if count == 1:
        assert stack.decode(whole[None]).shape == (1, 3, 37, 32, 48)


def test_a_row_of_framepack_f1_is_a_section_with_what_is_before_it(tiny_framepack: Path) -> None:
    stack, draw = load_family("framepack_f1").load_vae(tiny_framepack, CPU), torch.Generator().manual_seed(4)
    clips = [torch.rand(3, 109, 32, 32, generator=draw) * 2 - 1 for _ in range(3)]
    result = set()
    for clip in clips:
        row, whole = stack.encode_row(clip), stack.encode(clip[None])[0]
        section = next(at for at in range(3) if torch.equal(row["latent"][:, 1:], whole[:, 1 + 9 * at : 10 + 9 * at]))
        known = torch.nn.functional.pad(whole[:, : 1 + 9 * section], (0, 0, 0, 0, 19, 0))[:, -19:]
        four, twice, once = known.split([16, 2, 1], dim=1)
        assert torch.equal(row["behind"], torch.cat([whole[:, :1], once, twice, four], dim=1))
        result.add(section)
    assert len(result) > 1
