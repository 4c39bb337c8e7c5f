"""Wan 2.2 5B (wan22_5b): its VAE and files, and that one timestep a token is Wan's forward where all are one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan, WanImageToVideoPipeline, WanPipeline
from torch import Tensor, nn

from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.families.wan.small_facts import FACTS
from backend.models.common.load_options import LoadOptions
from backend.models.common.tensor_sources import open_part
from backend.models.common.weight_loading import load_part
from backend.models.family_classes import load_family
from backend.shapes.shape_runtime import ShapeRuntime
from tests.tiny import originals
from tests.tiny.anima import _tiny
from tests.tiny.block_graphs import BUCKETS, Subject, planned_graphs_are_observed
from tests.tiny.forward import Batch, gradients
from tests.tiny.shapes import assert_equal_runs, relative
from tests.tiny.wan import autoencoder, large_autoencoder, make_tiny_denoiser, published
from tests.tiny.wan_forward import make_batch, model_with_lora, ours
from tests.tiny.wan_vae_names import in_makers_names

CPU = LoadOptions(torch.float32, torch.device("cpu"))
CODE = load_family("wan22_5b")
EVERY_LAYER = [r".*(attn\d\.to_.*|net\..*|linear_\d|time_proj|proj_out)"]


@pytest.mark.parametrize("mode", ["off", "static"])
def test_wan22_5b_equals_diffusers_call_with_a_timestep_a_token(mode: str) -> None:
    """As `WanPipeline` calls it with ``expand_timesteps``: (B, S) timesteps and a modulation of four dimensions."""
    batch = make_batch([(2, 8, 8), (3, 4, 8)], [9, 40])
    model, outs = model_with_lora(), []
    for latent, sigma, text in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        words = text["prompt_embeds"]
        tokens = latent[0, :, ::2, ::2].numel()
        outs.append(
            model(
                hidden_states=latent[None],
                timestep=(sigma * 1000).expand(1, tokens),
                encoder_hidden_states=F.pad(words, (0, 0, 0, 512 - words.shape[0]))[None],
                return_dict=False,
            )[0][0]
        )
    wanted = [x.detach() for x in outs], gradients(model, outs)
    output = ours(model_with_lora(), batch, ShapeRuntime(mode, 40, None, 512))
    assert all(relative(got, want) < 1e-5 for got, want in zip(output[0], wanted[0], strict=True))
    assert_equal_runs(output, wanted, 5e-4)


FROM_PICTURE = load_family("wan22_5b_i2v")


def from_picture(model: nn.Module, batch: Batch, shapes: ShapeRuntime) -> tuple[list[Tensor], dict[str, Tensor]]:
    """What is predicted behind the first frame, or for all of a picture alone, and the gradients of that."""
    made = FROM_PICTURE.predict(model, batch.noisy, batch.sigma, batch.text, None, shapes)
    made = [out[:, 1:] if "start" in row else out for out, row in zip(made, batch.text, strict=True)]
    return [out.detach() for out in made], gradients(model, made)


def batch_from_picture(sizes: list[tuple[int, ...]], lengths: list[int]) -> Batch:
    batch = make_batch(sizes, lengths)
    for latent, row in zip(batch.noisy, batch.text, strict=True):
        if latent.shape[1] > 1:
            row["start"] = torch.randn(latent[:, :1].shape, generator=torch.Generator().manual_seed(7))
    return batch


@pytest.mark.parametrize("mode", ["off", "static"])
def test_wan22_5b_i2v_equals_diffusers_call_with_a_clean_first_frame(mode: str) -> None:
    """As `WanImageToVideoPipeline` calls it: the picture's latent in place of the first frame, at a timestep of 0."""
    batch = batch_from_picture([(2, 8, 8), (3, 4, 8), (1, 6, 10)], [9, 40, 3])
    model, outs = model_with_lora(EVERY_LAYER), []
    for latent, sigma, row in zip(batch.noisy, batch.sigma, batch.text, strict=True):
        words, known = row["prompt_embeds"], latent.shape[1] > 1
        shown = torch.cat([row["start"], latent[:, 1:]], dim=1) if known else latent
        times = torch.full(latent[0, :, ::2, ::2].shape, float(sigma * 1000))
        times[: int(known)] = 0
        made = model(
            hidden_states=shown[None],
            timestep=times.flatten()[None],
            encoder_hidden_states=F.pad(words, (0, 0, 0, 512 - words.shape[0]))[None],
            return_dict=False,
        )[0][0]
        outs.append(made[:, int(known) :])
    wanted = [x.detach() for x in outs], gradients(model, outs)
    output = from_picture(model_with_lora(EVERY_LAYER), batch, ShapeRuntime(mode, 40, None, 512))
    assert all(relative(got, want) < 1e-5 for got, want in zip(output[0], wanted[0], strict=True))
    assert_equal_runs(output, wanted, 5e-4)


def test_the_first_frame_adds_nothing_to_the_loss_and_is_where_samples_end() -> None:
    batch, model = batch_from_picture([(3, 8, 8)], [5]), make_tiny_denoiser()
    noise, start = torch.randn(batch.noisy[0].shape), batch.text[0]["start"]
    clean = torch.cat([start, batch.noisy[0][:, 1:]], dim=1)
    for sigma in (0.02, 0.5, 1.0):
        noisy = (1 - sigma) * clean + sigma * noise
        (made,) = FROM_PICTURE.predict(model, [noisy], torch.tensor([sigma]), batch.text, None, ShapeRuntime())
        assert (made[:, :1] - (noise - clean)[:, :1]).abs().max() < 1e-3
        torch.testing.assert_close((noisy - sigma * made)[:, :1], start, atol=1e-5, rtol=1e-5)


def test_wan22_5b_i2v_graphs_of_open_sizes_equal_the_plan() -> None:
    """The times of each token are as long as the clip: their axis is open too. Static ones: a run has them."""
    subject = Subject(
        model_with_lora, [r".*attn\d\.to_k"], FROM_PICTURE.block_lists, FROM_PICTURE.predict, batch_from_picture,
        from_picture, [3, 16, 9, 12, 15, 30, 33, 60], room=512,
    )  # fmt: skip
    planned_graphs_are_observed(subject, "dynamic", "auto", BUCKETS, "mask")


def test_what_a_clip_starts_from_is_the_pipelines_latent(tiny_wan22_5b: Path) -> None:
    stack = FROM_PICTURE.load_vae(tiny_wan22_5b, CPU)
    clip = torch.rand(3, 5, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    row = stack.encode_row(clip)
    torch.testing.assert_close(row["start"], stack.encode_start(clip[:, 0], 5)["start"])
    pipeline = WanImageToVideoPipeline(
        **WanPipeline.from_pretrained(tiny_wan22_5b, local_files_only=True).components,
        image_encoder=None, image_processor=None, expand_timesteps=True,
    )  # fmt: skip
    _, wanted, _ = pipeline.prepare_latents(clip[None, :, 0], 1, 4, 64, 96, 5, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(row["start"], wanted[0])
    assert stack.encode_row(clip[:, :1]).keys() == {"latent"} and stack.encode_start(clip[:, 0], 1) == {}


def test_latents_of_wan22_5b_are_the_pipelines(tiny_wan22_5b: Path) -> None:
    pipeline = WanPipeline.from_pretrained(tiny_wan22_5b, local_files_only=True)
    stack, geometry = CODE.load_vae(tiny_wan22_5b, CPU), FACTS.geometry(tiny_wan22_5b)
    assert (geometry.downscale, geometry.pixels_per_token, geometry.frame_step) == (16, 32, 4)
    clip = torch.rand(1, 3, 5, 64, 96, generator=torch.Generator().manual_seed(1)) * 2 - 1
    mean, spread = (torch.tensor(pipeline.vae.config[name]) for name in ("latents_mean", "latents_std"))
    with torch.no_grad():
        raw = pipeline.vae.encode(clip).latent_dist.mode()
    latents = stack.encode(clip)
    assert latents.shape == (1, *geometry.latent_shape(96, 64, 5)) == (1, 4, 2, 4, 6)
    torch.testing.assert_close(latents, (raw - mean.view(1, -1, 1, 1, 1)) / spread.view(1, -1, 1, 1, 1))
    assert stack.decode(latents).shape == clip.shape


def test_the_vae_of_wan22_5b_by_its_makers_names(tmp_path: Path) -> None:
    model = _tiny(large_autoencoder, 3)
    names = in_makers_names(model.state_dict())
    assert {
        "encoder.downsamples.1.downsamples.0.residual.2.weight",
        "decoder.upsamples.0.upsamples.3.resample.1.weight",
    } <= names.keys()
    path = originals.write(tmp_path / "wan2.2_vae.safetensors", names)
    part = FACTS.part("vae")
    pieces = BaseModelFiles(tmp_path, {"vae": path}).pieces(part)
    assert {name: piece.source for name, piece in pieces.items()} == dict(
        zip(model.state_dict(), in_makers_names(model.state_dict()), strict=True)
    )
    # at its real number of channels it loads
    with torch.device("meta"):
        real = AutoencoderKLWan.from_config(BaseModelFiles(None).config(part))
    assert sum(p.numel() for p in real.parameters()) == 704_688_668


def test_wan22_5b_and_other_wan_models_are_told_apart(tmp_path: Path, tiny_wan: Path, tiny_wan22_5b: Path) -> None:
    def message_of(name: str, path: Path, **files: Path) -> str:
        return " ".join(p.sentence() for p in family(name).check_base_model(BaseModelFiles(path, files)))

    assert message_of("wan22_5b", tiny_wan22_5b) == ""
    assert "family wan22_5b" in message_of("wan", tiny_wan22_5b) and "family wan." in message_of("wan22_5b", tiny_wan)
    large = originals.write(
        tmp_path / "wan2.2_vae.safetensors", in_makers_names(_tiny(large_autoencoder, 3).state_dict())
    )
    assert "is the VAE of Wan 2.2 5B" in message_of("wan", tiny_wan, vae=large)
    small = originals.write(tmp_path / "vae.safetensors", originals.wan(_tiny(autoencoder, 3).state_dict()))
    assert "the VAE of Wan or Qwen-Image" in message_of("wan22_5b", tiny_wan22_5b, vae=small)
    net = make_tiny_denoiser(2, latent=48, attention_head_dim=128, num_attention_heads=1)
    path = originals.write(tmp_path / "wan2.2_ti2v_5B_fp16.safetensors", published(net.state_dict()))
    vae16 = originals.write(
        tmp_path / "vae16.safetensors", originals.wan(_tiny(lambda: autoencoder(16), 3).state_dict())
    )
    assert "VAE's channels is 16" in message_of("wan", path, vae=vae16)
    config = open_part(BaseModelFiles.at(path), FACTS.denoiser).config()
    assert (config["in_channels"], config["out_channels"], config["num_layers"]) == (48, 48, 2)
    model = load_part(CODE.model, open_part(BaseModelFiles.at(path), FACTS.denoiser), FACTS.denoiser, CPU)
    assert model.state_dict().keys() == net.state_dict().keys()


def test_the_shipped_config_is_wan22_5bs_size() -> None:
    with torch.device("meta"):
        net = CODE.model.from_config(BaseModelFiles(None).config(FACTS.denoiser))
    assert sum(p.numel() for p in net.parameters()) == 4_999_787_712
