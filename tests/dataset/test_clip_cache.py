"""Clips in the cache: the pixels of each window, Wan's latents of them, extra tensors of a family, and lost files."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from backend.base.errors import Refused
from backend.config.schema import Config
from backend.dataset.buckets import Fit, bucket_table
from backend.dataset.items import Item, Scan
from backend.dataset.scan import scan, scan_dataset
from backend.dataset.scan_state import FolderSpec
from backend.dataset.windows import ClipRule
from backend.families.flux.facts import FACTS as FLUX
from backend.families.wan.facts import FACTS as WAN
from backend.latents.cache import LatentCache, TextCache, build_latents, pixels_of
from backend.latents.identity import vae_identity
from backend.latents.loader import Loader
from backend.latents.wanted import wanted_latents, wanted_text
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.make_plan import make_plan
from tests.tiny.clips import grey_of, write_clip

CPU = torch.device("cpu")
RULE = ClipRule(lengths=(9,), rate=16.0, geometry=WAN.default_geometry, extraction="chunk")
Pairs = list[tuple[Item, Fit]]


def pairs_of(scanned_set: Scan) -> Pairs:
    table = bucket_table(64, 16, 128, 16, WAN.default_geometry)
    return [(item, table.assign(item.width, item.height, item.frames)) for item in scanned_set.items]


def scanned(folder: Path) -> Pairs:
    return pairs_of(scan([FolderSpec(folder, clips=RULE)]))


@pytest.fixture
def pairs(tmp_path: Path) -> Pairs:
    """Two windows of one clip, one of another, and a picture."""
    write_clip(tmp_path / "i" / "long.mp4", 20)
    write_clip(tmp_path / "i" / "other.mp4", 9, size=(96, 48))
    Image.new("RGB", (64, 64), (9, 99, 199)).save(tmp_path / "i" / "still.png")
    return scanned(tmp_path / "i")


def cache_in(folder: Path, **changes: Any) -> LatentCache:
    values: dict[str, Any] = {"vae": "a vae", "dtype": torch.float32, "transparency": "white", **changes}
    return LatentCache(folder, **values)


def greys(pixels: Tensor) -> list[float]:
    return [(float(frame.mean()) + 1) * 127.5 for frame in pixels.unbind(1)]


def test_pixels_of_a_window_are_its_frames_in_order(pairs: Pairs) -> None:
    assert [item.window and (item.window.start, item.window.frames) for item, _ in pairs] == [
        (0.0, 9), (0.5625, 9), (0.0, 9), None
    ]  # fmt: skip
    for (item, fit), first in zip(pairs[:2], (0, 9), strict=True):
        pixels = pixels_of(item, fit, "white")
        assert pixels.shape == (3, 9, fit.bucket.height, fit.bucket.width) and pixels.dtype == torch.float32
        assert greys(pixels) == pytest.approx([grey_of(first + k) for k in range(9)], abs=3)
    assert pixels_of(*pairs[3], "white").shape == (3, 64, 64)


@pytest.mark.parametrize("more", [{}, {"rotation": 90}, {"sample_aspect_ratio": Fraction(4, 3)}])
def test_the_box_is_cut_from_the_clip_as_it_is_seen(more: dict[str, Any], tmp_path: Path) -> None:
    picture = Image.new("RGB", (96, 48))
    picture.paste((255, 255, 255), (0, 0, 96, 24))
    write_clip(tmp_path / "a.mp4", 9, size=(96, 48), pictures=[picture] * 9, **more)
    (item, fit), *_ = pairs_of(scan([FolderSpec(tmp_path, clips=RULE)]))
    assert (item.width, item.height) == {0: (96, 48), 1: (48, 96)}["rotation" in more] or item.width == 128
    pixels = pixels_of(item, fit, "white")[0, 4]
    halves = (pixels[:, : fit.bucket.width // 2 - 2], pixels[:, fit.bucket.width // 2 + 2 :])
    if "rotation" not in more:
        halves = (pixels[: fit.bucket.height // 2 - 2], pixels[fit.bucket.height // 2 + 2 :])
    # counter-clockwise: what was above is on the left
    assert halves[0].mean() > 0.9 and halves[1].mean() < -0.9


def test_latents_are_those_of_wans_encoder_and_each_window_has_a_file(
    tmp_path: Path, tiny_wan: Path, pairs: Pairs
) -> None:
    stack = load_family("wan").load_vae(tiny_wan, LoadOptions(torch.float32, CPU))
    cache, calls = cache_in(tmp_path / "c"), []
    assert build_latents(cache, pairs, lambda: stack, lambda *at: calls.append(at)) == 4
    assert calls[-1] == (4, 4) and len({cache.path(*pair) for pair in pairs}) == 4
    for item, fit in pairs:
        latent = cache.load(item, fit)
        shape = WAN.geometry(tiny_wan).latent_shape(*fit.bucket.size, item.frames)
        assert latent.shape == shape and latent.dtype == torch.float32
        assert torch.equal(latent, stack.encode(pixels_of(item, fit, "white")[None])[0])
    assert build_latents(cache_in(tmp_path / "c"), pairs, lambda: stack) == 0


def test_the_key_of_a_picture_is_what_it_was_before_there_were_clips(tmp_path: Path, pairs: Pairs) -> None:
    cache, (item, fit) = cache_in(tmp_path), pairs[3]
    old = {
        "picture": item.key, "size": [64, 64], "box": [0.0, 0.0, 64.0, 64.0], "transparency": None, "loader": 2,
        "vae": "a vae", "dtype": "torch.float32",
    }  # fmt: skip
    assert cache.path(item, fit) == cache.file_of(old)


def test_a_stop_between_clips_keeps_those_that_are_done(tmp_path: Path, tiny_wan: Path, pairs: Pairs) -> None:
    stack = load_family("wan").load_vae(tiny_wan, LoadOptions(torch.float32, CPU))

    class Stopped(Exception):
        pass

    def progress(done: int, total: int) -> None:
        if done == 2:
            raise Stopped

    with pytest.raises(Stopped):
        build_latents(cache_in(tmp_path / "c"), pairs, lambda: stack, progress)
    assert build_latents(cache_in(tmp_path / "c"), pairs, lambda: stack) == 2


def test_a_clip_that_changed_or_broke_after_the_scan_is_named(tmp_path: Path, tiny_wan: Path, pairs: Pairs) -> None:
    stack = load_family("wan").load_vae(tiny_wan, LoadOptions(torch.float32, CPU))
    write_clip(tmp_path / "i" / "long.mp4", 21)
    (tmp_path / "i" / "other.mp4").unlink()
    with pytest.raises(Refused) as error:
        build_latents(cache_in(tmp_path / "c"), pairs, lambda: stack)
    message = " ".join(problem.text for problem in error.value.problems)
    assert "long.mp4 has changed" in message and "other.mp4 can't be read" in message


class Starting:
    """A VAE of a family that starts clips from a picture: it keeps more than the latent."""

    dtype = torch.float32

    def encode_row(self, pixels: Tensor) -> dict[str, Tensor]:
        frames = pixels if pixels.ndim == 4 else pixels[:, None]
        mean = frames.mean(dim=(0, 2, 3))
        return {"latent": mean.reshape(1, -1, 1, 1), "start": mean[:1].half(), "image_embeds": torch.ones(3, 2)}

    def to(self, device: Any = None, dtype: Any = None) -> Starting:
        return self


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_family_keeps_besides_the_latent_comes_with_the_text(tmp_path: Path, pairs: Pairs, workers: int) -> None:
    data = {"folders": [{"path": str(tmp_path / "i")}], "resolution": 64, "min_bucket_size": 16}
    values = {"model": {"family": "wan", "text_length": 64}, "dataset": {**data, "validation_split": 0.4}}
    cfg = Config.model_validate({**values, "video": {"target_frames": [9], "frame_extraction": "chunk"}})
    plan = make_plan(cfg, scan_dataset(cfg, cache_dir=tmp_path / "s"), WAN.default_geometry, WAN)
    latents, text = cache_in(tmp_path / "c"), TextCache(tmp_path / "c", "encoders", torch.float32)
    build_latents(latents, wanted_latents(plan), Starting)
    for caption, length, _ in wanted_text(cfg, plan):
        text.write(text.path(caption, length), {"prompt_embeds": torch.zeros(length, 2)})
    with Loader(plan=plan, latents=latents, text=text, workers=workers) as loader:
        batches = [loader.batch(0, index) for index in range(loader.batches_per_epoch)]
        batches += list(loader.validation("held out"))
    assert len(batches) >= 4
    for batch in batches:
        for latent, conditioning in zip(batch.latents, batch.text, strict=True):
            assert conditioning.keys() >= {"prompt_embeds", "start", "image_embeds"} and "latent" not in conditioning
            assert conditioning["start"].dtype == torch.float16
            assert float(conditioning["start"]) == pytest.approx(float(latent[0, 0, 0, 0]), abs=2e-3)


def test_families_that_start_from_a_picture_have_files_of_their_own(
    tiny_wan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from backend.families.table import FAMILIES

    assert WAN.video is not None
    starting = type(WAN).based_on(WAN, name="starting", video=replace(WAN.video, starts=True))
    monkeypatch.setitem(FAMILIES, "starting", starting)
    names = [
        vae_identity(Config.model_validate({"model": {"family": family, "base_model": str(tiny_wan)}}))
        for family in ("wan", "starting")
    ]
    assert len(set(names)) == 2


def test_pixels_of_a_clip_are_read_a_frame_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more pictures are alive than one, whatever the length of the clip."""
    import backend.latents.cache as module

    write_clip(tmp_path / "a.mp4", 41)
    rule = ClipRule(lengths=(41,), rate=16.0, geometry=WAN.default_geometry)
    (item, fit), *_ = pairs_of(scan([FolderSpec(tmp_path, clips=rule)]))
    alive, most = set(), [0]
    plain = module.read_frames

    class Followed(Image.Image):
        def __del__(self) -> None:
            alive.discard(id(self))

    def followed(*args: Any) -> Any:
        for frame in plain(*args):
            copy = Image.fromarray(np.asarray(frame))
            copy.__class__ = Followed
            alive.add(id(copy))
            most[0] = max(most[0], len(alive))
            del frame
            yield copy
            del copy

    monkeypatch.setattr(module, "read_frames", followed)
    assert pixels_of(item, fit, "white").shape[1] == 41 and most[0] <= 2


def test_a_family_of_pictures_is_as_before(tmp_path: Path) -> None:
    assert FLUX.default_geometry.latent_shape(64, 64) == (16, 8, 8)
    write_clip(tmp_path / "a.mp4", 9)
    result = scan([FolderSpec(tmp_path)])
    assert not result.items and result.findings[0].kind == "no_pictures"
