"""FLUX.1 Kontext's forward: control pictures behind the picture's own tokens, as ``FluxKontextPipeline`` has them."""

from __future__ import annotations

import pytest
import torch
from diffusers import FluxKontextPipeline
from torch import Tensor

from backend.models.flux.denoise import predict
from backend.shapes.runtime import ShapeRuntime
from tests.shapes.common import SIZES, TEXT, denoiser_with_lora, make_batch, relative

CONTROLS = [(8, 8), (6, 10), (8, 12), (4, 4)]


def controls(sizes: list[tuple[int, int]]) -> list[list[Tensor]]:
    draw = torch.Generator().manual_seed(9)
    return [[torch.randn(4, height, width, generator=draw)] for height, width in sizes]


def as_the_pipeline_calls(model: torch.nn.Module, batch, control: list[list[Tensor]]) -> list[Tensor]:
    """One row at a time, with ids and order of ``FluxKontextPipeline.__call__`` and ``prepare_latents``."""
    outs = []
    for latent, sigma, text, (picture,) in zip(batch.noisy, batch.sigma, batch.text, control, strict=True):
        packed, ids = [], []
        for number, part in enumerate((latent, picture)):
            channels, height, width = part.shape
            packed.append(FluxKontextPipeline._pack_latents(part[None], 1, channels, height, width))
            own = FluxKontextPipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32)
            own[..., 0] = number
            ids.append(own)
        out = model(
            hidden_states=torch.cat(packed, dim=1),
            encoder_hidden_states=text["prompt_embeds"][None],
            pooled_projections=text["pooled"][None],
            timestep=sigma[None],
            img_ids=torch.cat(ids, dim=0),
            txt_ids=torch.zeros(text["prompt_embeds"].shape[0], 3),
            guidance=torch.tensor([2.5]),
            return_dict=False,
        )[0]
        out = out[:, : packed[0].shape[1]]
        outs.append(FluxKontextPipeline._unpack_latents(out, latent.shape[1] * 8, latent.shape[2] * 8, 8)[0])
    return outs


@pytest.mark.parametrize("shapes", ["native", "static"])
def test_equals_the_pipelines_call_in_output_and_gradients(shapes: str) -> None:
    batch, control = make_batch(SIZES), controls(CONTROLS)
    runtime = ShapeRuntime() if shapes == "native" else ShapeRuntime("static", 64, text_length=TEXT)
    runtime.pad_fill = 1e6 if shapes == "static" else 0.0
    ours, theirs = denoiser_with_lora(), denoiser_with_lora()
    mine = predict(ours, batch.noisy, batch.sigma, batch.text, 2.5, runtime, control=control)
    wanted = as_the_pipeline_calls(theirs, batch, control)
    for got, want, latent in zip(mine, wanted, batch.noisy, strict=True):
        assert got.shape == latent.shape and relative(got, want) < 1e-5
    sum(x.square().sum() for x in mine).backward()
    sum(x.square().sum() for x in wanted).backward()
    grads = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        if parameter.requires_grad:
            assert relative(parameter.grad, grads[name].grad) < 1e-5, name


def test_the_control_picture_is_seen() -> None:
    batch, model = make_batch([SIZES[0]]), denoiser_with_lora()
    with torch.no_grad():
        said = [
            predict(model, batch.noisy, batch.sigma, batch.text, 2.5, ShapeRuntime(), control=control)[0]
            for control in (None, controls([(8, 8)]), controls([(8, 12)]))
        ]
    assert relative(said[0], said[1]) > 1e-3 and relative(said[1], said[2]) > 1e-3
