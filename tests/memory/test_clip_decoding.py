"""VAEs that work on many frames at a time are tiled in smaller tiles, and are decoded with alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.config.schema import Config
from backend.families.files.base_model import BaseModelFiles
from backend.families.table import family
from backend.memory.sample_decoder import tile
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.memory.estimate import TILE_PX, tile_px, vae_bytes
from backend.plan.memory.parts import read_parts
from backend.plan.memory.settings import memory_settings

CPU = LoadOptions(torch.float32, torch.device("cpu"))


def test_tiles_of_many_frames_are_smaller(tiny_hunyuan_video: Path, tiny_wan: Path) -> None:
    sides = {}
    for base, name in ((tiny_hunyuan_video, "hunyuan_video"), (tiny_wan, "wan")):
        vae = load_family(name).load_vae(BaseModelFiles.at(base), CPU).vae
        tile(vae)
        rule = family(name).video
        assert rule is not None and rule.vae_frames is not None
        sides[name] = vae.tile_sample_min_height
        assert sides[name] == tile_px(rule.vae_frames)
    assert sides == {"hunyuan_video": TILE_PX // 2, "wan": TILE_PX}


def test_a_tile_is_counted_with_all_its_frames(tiny_hunyuan_video: Path) -> None:
    cfg = Config()
    cfg.model.family = "hunyuan_video"
    parts = read_parts(family("hunyuan_video"), BaseModelFiles.at(tiny_hunyuan_video))
    assert parts is not None
    tiled = replace(memory_settings(cfg, True), tiled_encode=True)
    pixels = 17 * 1280 * 720
    one, many = (vae_bytes(parts, tiled, pixels, False, frames)["pictures"] for frames in (1, 17))
    rest = pixels * 3 * 4
    assert (many - rest) / (one - rest) == pytest.approx(17 / 4)


def test_what_sees_the_start_is_gone_while_samples_are_decoded(tiny_wan_i2v: Path, tiny_framepack: Path) -> None:
    for base, name in ((tiny_wan_i2v, "wan_i2v"), (tiny_framepack, "framepack")):
        code = load_family(name)
        stack = code.load_vae(BaseModelFiles.at(base), CPU)
        assert stack.vision is not None
        stack = stack.for_decoding().to("cpu", torch.float32)
        assert stack.vision is None
        geometry = code.facts.geometry(BaseModelFiles.at(base))
        side = 2 * geometry.pixels_per_token
        frames = max(5, code.facts.video.least)
        pixels = stack.decode(torch.zeros(1, *geometry.latent_shape(side, side, frames)))
        assert pixels.shape == (1, 3, frames, side, side)
