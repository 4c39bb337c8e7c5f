"""`predict` is diffusers' FLUX: same velocities, same gradients, same schedule, float32 timesteps."""

import pytest
import torch

from backend.models.common.attention import JointAttention
from backend.models.common.tokens import pack_latent, unpack_latent
from backend.models.family_classes import load_family
from backend.models.flux.denoiser import rope_of
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny.flux import make_tiny_denoiser
from tests.tiny.shapes import denoiser_with_lora, make_batch, relative

block_lists = load_family("flux").block_lists
predict = load_family("flux").predict
sampling_sigmas = load_family("flux").sampling_sigmas


def diffusers_forward(model: torch.nn.Module, batch, guidance: float) -> list[torch.Tensor]:
    """One row at a time through FluxTransformer2DModel.forward, with ids and packing as FluxPipeline makes them."""
    from diffusers import FluxPipeline

    outs = []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        channels, height, width = latent.shape
        packed = FluxPipeline._pack_latents(latent[None], 1, channels, height, width)
        ids = FluxPipeline._prepare_latent_image_ids(1, height // 2, width // 2, "cpu", torch.float32)
        out = model(
            hidden_states=packed,
            encoder_hidden_states=text["prompt_embeds"][None],
            pooled_projections=text["pooled"][None],
            timestep=sigma[None],
            img_ids=ids,
            txt_ids=torch.zeros(text["prompt_embeds"].shape[0], 3),
            guidance=torch.tensor([guidance]),
            return_dict=False,
        )[0]
        outs.append(FluxPipeline._unpack_latents(out, height * 8, width * 8, 8)[0])
    return outs


@pytest.mark.parametrize("checkpointing", [False, True])
def test_equals_diffusers_forward_and_gradients(checkpointing: bool) -> None:
    batch = make_batch([(8, 8), (8, 12), (4, 16)])
    ours, theirs = denoiser_with_lora(), denoiser_with_lora()
    if checkpointing:
        ours.enable_gradient_checkpointing()
    mine = predict(ours, batch.noisy, batch.sigma, batch.text, 3.5, ShapeRuntime())
    wanted = diffusers_forward(theirs, batch, 3.5)
    assert all(x.dtype == torch.float32 for x in mine)
    for got, want in zip(mine, wanted, strict=True):
        assert relative(got, want) < 1e-5
    sum(x.square().sum() for x in mine).backward()
    sum(x.square().sum() for x in wanted).backward()
    grads = dict(theirs.named_parameters())
    compared = 0
    for name, parameter in ours.named_parameters():
        if parameter.requires_grad:
            assert relative(parameter.grad, grads[name].grad) < 1e-5, name
            compared += 1
    assert compared > 40


def test_installed_denoiser_still_serves_diffusers() -> None:
    """After `predict` has set its processor, diffusers' own forward gives what it gave before."""
    batch = make_batch([(8, 12)])
    model = denoiser_with_lora()
    before = diffusers_forward(model, batch, 3.5)
    predict(model, batch.noisy, batch.sigma, batch.text, 3.5, ShapeRuntime())
    blocks = [block for blocks in block_lists(model).values() for block in blocks]
    assert len({id(block.attn.processor) for block in blocks}) == 1
    assert isinstance(blocks[0].attn.processor, JointAttention)
    assert relative(diffusers_forward(model, batch, 3.5)[0], before[0]) < 1e-6


def test_guidance_is_asked_for_where_the_model_embeds_it() -> None:
    batch = make_batch([(8, 8)])
    model = make_tiny_denoiser()
    with pytest.raises(ValueError, match="embeds its guidance"):
        predict(model, batch.noisy, batch.sigma, batch.text, None, ShapeRuntime())
    low, high = (predict(model, batch.noisy, batch.sigma, batch.text, g, ShapeRuntime())[0] for g in (1.0, 4.0))
    assert relative(low, high) > 1e-3


def test_timesteps_stay_float32_in_a_bf16_model() -> None:
    """0.7500 and 0.7510 (750 and 751) are the same number in bf16; their embeddings must differ."""
    model = make_tiny_denoiser().to(torch.bfloat16)
    seen = []
    model.time_text_embed.time_proj.register_forward_hook(lambda _m, args, out: seen.append((args[0].clone(), out)))
    batch = make_batch([(8, 8)]).to("cpu", torch.bfloat16)
    for sigma in (0.7500, 0.7510):
        predict(model, batch.noisy, torch.tensor([sigma]), batch.text, 1.0, ShapeRuntime())
    first, second = seen[0], seen[2]
    assert first[0].dtype == torch.float32 and first[0].item() == 750.0
    assert abs(second[0].item() - 751.0) < 1e-3 and not torch.equal(first[1], second[1])


def test_packing_round_trip() -> None:
    latent = torch.randn(4, 6, 10)
    assert torch.equal(unpack_latent(pack_latent(latent), 6, 10), latent)


def test_rope_table_is_the_models_own() -> None:
    model = make_tiny_denoiser()
    ids = torch.randint(0, 20, (2, 24, 3))
    cos, sin = rope_of(model, ids)
    for row in range(2):
        wanted = model.pos_embed(ids[row].float())
        assert torch.equal(cos[row], wanted[0]) and torch.equal(sin[row], wanted[1])


@pytest.mark.parametrize("steps", [1, 4, 28])
@pytest.mark.parametrize("tokens", [16, 1024, 4096])
def test_sampling_sigmas_are_the_pipelines(tiny_flux, steps: int, tokens: int) -> None:
    import numpy as np
    from diffusers import FlowMatchEulerDiscreteScheduler
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift, retrieve_timesteps

    scheduler = FlowMatchEulerDiscreteScheduler.from_pretrained(tiny_flux / "scheduler")
    config = scheduler.config
    mu = calculate_shift(
        tokens, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
    )
    retrieve_timesteps(scheduler, steps, "cpu", sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    levels = sampling_sigmas(steps, tokens, tiny_flux)
    assert len(levels) == steps + 1 and levels[-1] == 0.0 and levels == sorted(levels, reverse=True)
    assert levels == pytest.approx(scheduler.sigmas.tolist(), abs=1e-6)


def test_fixed_shift_schedule(tiny_flux, tmp_path) -> None:
    """FLUX.1-schnell: no dynamic shifting, shift 1, so the sigmas are the plain ones."""
    import json

    config = json.loads((tiny_flux / "scheduler" / "scheduler_config.json").read_text())
    (tmp_path / "scheduler").mkdir()
    config |= {"use_dynamic_shifting": False, "shift": 1.0}
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    assert sampling_sigmas(4, 4096, tmp_path) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])
