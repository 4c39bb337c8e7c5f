"""Models that take turns, and a VAE in tiles: the same numbers, and the memory really given up meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from backend.families.files.base_model import BaseModelFiles
from backend.memory import exclusive_device, sample_decoder
from backend.memory.exclusive_device import offloaded
from backend.memory.sample_decoder import SampleDecoder, tile
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from tests.tiny.training import config, events, rows, train_here

code = load_family("flux")

CPU = torch.device("cpu")
DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo" / "base"


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64)).requires_grad_(False).eval()
    made.trained = nn.Parameter(torch.ones(3))
    return made


def test_frozen_weights_leave_and_come_back_bit_by_bit() -> None:
    made = model()
    x = torch.randn(4, 64)
    before, state = made(x), {name: value.clone() for name, value in made.state_dict().items()}
    objects = {name: id(value) for name, value in made.named_parameters()}
    with offloaded(made, CPU):
        assert made[0].weight.untyped_storage().nbytes() == 0 and made[1].running_mean.untyped_storage().nbytes() == 0
        assert torch.equal(made.trained, torch.ones(3)), "what is trained stays"
    assert torch.equal(made(x), before)
    assert all(torch.equal(value, state[name]) for name, value in made.state_dict().items())
    assert {name: id(value) for name, value in made.named_parameters()} == objects


def test_weights_come_back_after_an_error_too() -> None:
    made = model()
    before = made[0].weight.clone()
    with pytest.raises(ValueError), offloaded(made, CPU):
        raise ValueError
    assert torch.equal(made[0].weight, before)


def test_weights_wait_for_a_gpu_that_somebody_fills_and_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made, waits = model(), []
    before = made[0].weight.clone()
    fill = exclusive_device._fill

    class Full:
        """A storage that has room at the third try."""

        def __init__(self, storage: torch.UntypedStorage) -> None:
            self.storage = storage

        def resize_(self, size: int) -> None:
            if len(waits) < 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self.storage.resize_(size)

    monkeypatch.setattr(exclusive_device, "_fill", lambda storage, *rest: fill(Full(storage), *rest))  # type: ignore[arg-type]
    monkeypatch.setattr(exclusive_device.time, "sleep", waits.append)
    away = exclusive_device.leave(made, CPU)
    with pytest.raises(torch.OutOfMemoryError):
        away.come_back()
    assert not waits
    away.come_back(60.0)
    assert len(waits) == 2 and torch.equal(made[0].weight, before)


def test_a_compiled_block_notices_nothing() -> None:
    made = model()
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    made[0].forward = torch.compile(made[0].forward, backend=backend)
    x = torch.randn(4, 64)
    before = made[0](x)
    with offloaded(made, CPU):
        pass
    assert torch.equal(made[0](x), before) and len(graphs) == 1


@pytest.fixture(scope="module")
def vae() -> Any:
    return code.load_vae(BaseModelFiles(DEMO), LoadOptions(torch.float32, CPU))


def smooth(side: int) -> torch.Tensor:
    """A picture (1, 3, side, side) in [-1, 1] without noise, as photographs have it."""
    torch.manual_seed(1)
    return torch.nn.functional.interpolate(torch.rand(1, 3, 6, 6) * 1.6 - 0.8, (side, side), mode="bicubic")


def test_tiles_give_the_whole_picture_within_a_tolerance(vae: Any) -> None:
    picture = smooth(192)
    whole = vae.encode(picture)
    decoded = vae.decode(whole)
    calls: list[int] = []
    hook = vae.vae.decoder.register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[-1]))
    tile(vae.vae, 96)
    try:
        tiled = vae.encode(picture)
        again = vae.decode(whole)
    finally:
        vae.vae.disable_tiling()
        hook.remove()
    assert len(calls) > 1 and max(calls) <= 96 // 8, "decoded in tiles of that side"
    assert (tiled - whole).abs().mean() < 0.15 * whole.std()
    assert (again - decoded).abs().mean() < 0.05 * (decoded.max() - decoded.min())


def test_a_video_vae_is_tiled_by_its_own_names() -> None:
    from diffusers import AutoencoderKLQwenImage

    other = AutoencoderKLQwenImage(base_dim=8, z_dim=4, dim_mult=[1, 1], num_res_blocks=1, temperal_downsample=[False],
                                   latents_mean=[0.0] * 4, latents_std=[1.0] * 4)  # fmt: skip
    tile(other, 64)
    assert other.use_tiling and other.tile_sample_min_height == 64 and other.tile_sample_stride_width == 48


def test_a_full_card_is_met_by_tiles_and_at_last_by_the_cpu(vae: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Small:
        """The VAE on a card that holds no more than `most` pixels of a latent's side."""

        def __init__(self, most: int) -> None:
            self.vae, self.most, self.cpu, self.dtype = vae.vae, most, False, vae.dtype
            self.vae.disable_tiling()
            self.vae.tile_sample_min_size, self.vae.tile_latent_min_size = 256, 32

        def to(self, device: Any) -> Any:
            self.cpu = str(device) == "cpu"
            return self

        def decode(self, latent: torch.Tensor) -> torch.Tensor:
            side = 64 if self.vae.use_tiling else latent.shape[-1]
            if not self.cpu and side > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
            return vae.decode(latent)

    latent = vae.encode(smooth(96))[0]
    meta = torch.device("meta")
    tiles = SampleDecoder(lambda: Small(64), model(), meta, may_leave=False)
    tiles._vae = Small(8)
    with tiles.on_device():
        assert tiles.decode(latent).shape == (3, 96, 96)
    assert tiles.tiled and "it is decoded on the CPU" in caplog.text
    enough = SampleDecoder(lambda: Small(64), model(), meta, may_tile=False)
    with enough.on_device():
        enough.decode(latent)
    assert not enough.tiled
    vae.vae.disable_tiling()


def test_a_sample_that_overflows_fp16_is_decoded_in_float32(tiny_sdxl: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As SDXL's own VAE does. Norms bring sums of that size back, so that float32 gives a picture."""
    stack = load_family("sdxl").load_vae(tiny_sdxl, LoadOptions(torch.float32, CPU)).to(dtype=torch.float16)
    stack.vae.decoder.conv_in.weight.data.mul_(3e4)
    latent = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(1)) * 4
    assert not torch.isfinite(stack.decode(latent[None])).all()
    decoder = SampleDecoder(lambda: stack, model(), CPU)
    with decoder.on_device():
        pictures = [decoder.decode(latent) for _ in range(2)]
        assert not torch.isfinite(decoder.decode(latent * torch.nan)).any()
    wanted = stack.to(dtype=torch.float32).decode(latent[None])[0]
    assert torch.equal(pictures[0], wanted) and torch.isfinite(wanted).all()
    assert torch.equal(*pictures) and caplog.text.count("works in float32") == 1


def test_a_run_by_turns_and_in_tiles_draws_the_same_pictures(
    tiny_flux: Path, image_folder: Path, tmp_path: Path
) -> None:
    import numpy as np
    from PIL import Image

    prompts = [{"prompt": words, "width": 64, "height": 64, "steps": 2, "seed": 3} for words in ("a cat", "a dog")]
    sampling = {"prompts": prompts, "sample_at_end": True, "sample_at_start": False}
    drawn = []
    for turns in ("off", "on"):
        cfg = config(tiny_flux, image_folder, tmp_path, sampling=sampling, training={"max_train_steps": 2},
                     memory={"offload_by_turns": turns, "vae_tiling": turns})  # fmt: skip
        run, code_ = train_here(cfg)
        assert code_ == 0, events(run, "error")
        assert len(events(run, "sample")) == 2 and len(rows(run)) == 2
        drawn.append([np.array(Image.open(sample.path)) for sample in run.samples()])
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) > len(list(image_folder.glob("*.png")))
    assert all(np.abs(a.astype(int) - b).mean() < 8 for a, b in zip(*drawn, strict=True))


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("turns", [False, True])
def test_the_decoder_does_what_it_is_told(monkeypatch: pytest.MonkeyPatch, turns: bool, tiled: bool) -> None:
    """On a device other than the CPU the denoiser leaves it with turns alone, and the VAE has tiles with tiled."""
    own = code.load_vae(BaseModelFiles(DEMO), LoadOptions(torch.float32, CPU))
    made, left = model(), []

    @contextmanager
    def leaving(denoiser: nn.Module, device: torch.device) -> Iterator[None]:
        with offloaded(denoiser, CPU):
            left.append(denoiser[0].weight.untyped_storage().nbytes() == 0)
            yield

    monkeypatch.setattr(sample_decoder, "offloaded", leaving)
    # without a GPU every part stays where it is
    monkeypatch.setattr(type(own), "to", lambda self, *arguments, **named: self)
    turned = SampleDecoder(lambda: own, made, torch.device("meta"), exclusive=turns, tiled=tiled)
    with turned.on_device():
        picture = turned.decode(own.encode(smooth(96))[0])
    assert picture.shape == (3, 96, 96) and left == [True] * turns
    assert own.vae.use_tiling == tiled and made[0].weight.untyped_storage().nbytes() > 0
