"""The caches of latents and texts, filled by the real tiny FLUX encoders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from backend.base.errors import Refused
from backend.config.schema import Config
from backend.dataset.buckets import Fit, bucket_table
from backend.dataset.images import open_image
from backend.dataset.items import Item
from backend.dataset.scan import scan, scan_dataset
from backend.dataset.scan_state import FolderSpec
from backend.families.flux.facts import FACTS
from backend.latents import cache as caching
from backend.latents import store
from backend.latents.cache import LatentCache, TextCache, build_latents, build_text, pixels_of
from backend.latents.wanted import wanted_text
from backend.models.common.load_options import LoadOptions
from backend.models.family_classes import load_family
from backend.plan.make_plan import make_plan
from tests.tiny.pictures import BLUE, RED, picture, with_caption

code = load_family("flux")

CPU = torch.device("cpu")


@dataclass
class Counted:
    """Loads an encoder and counts how often."""

    load: Callable[[], object]
    calls: int = 0

    def __call__(self) -> object:
        self.calls += 1
        return self.load()


@pytest.fixture
def vae(tiny_flux: Path) -> Counted:
    return Counted(lambda: code.load_vae(tiny_flux, LoadOptions(torch.float32, CPU)))


@pytest.fixture
def encoders(tiny_flux: Path) -> Counted:
    return Counted(lambda: code.load_text(tiny_flux, LoadOptions(torch.float32, CPU)))


def latents(folder: Path, **changes: object) -> LatentCache:
    values = {"vae": "a vae", "dtype": torch.float32, "transparency": "white", **changes}
    return LatentCache(folder, **values)  # type: ignore[arg-type]


@pytest.fixture
def pairs(tmp_path: Path, tiny_flux: Path) -> list[tuple[Item, Fit]]:
    """Three pictures, one of them transparent, with their buckets."""
    with_caption(picture(tmp_path / "i" / "a.png", (64, 64), RED))
    # noise: another filter, or a cut at another place, gives other pixels
    Image.effect_noise((96, 70), 80).convert("RGB").save(tmp_path / "i" / "b.png")
    with_caption(tmp_path / "i" / "b.png")
    Image.new("RGBA", (64, 96), (0, 255, 0, 0)).save(tmp_path / "i" / "c.png")
    table = bucket_table(64, 16, 128, 16, FACTS.geometry(tiny_flux))
    return [(item, table.assign(item.width, item.height)) for item in scan([FolderSpec(tmp_path / "i")]).items]


def test_latents_are_those_of_the_encoder(tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]) -> None:
    cache = latents(tmp_path / "c")
    assert build_latents(cache, pairs, vae) == 3
    encoder = vae.load()
    for item, fit in pairs:
        pixels = open_image(item.path).resize((fit.bucket.width, fit.bucket.height), Image.Resampling.LANCZOS, fit.box)
        expected = torch.tensor(np.asarray(pixels)).permute(2, 0, 1).float() / 127.5 - 1
        assert torch.equal(pixels_of(item, fit, "white"), expected)
        latent = cache.load(item, fit)
        assert latent.dtype == torch.float32
        assert torch.equal(latent, encoder.encode(expected[None])[0])
        assert latent.shape[1] * 2 ** (len(encoder.vae.config.block_out_channels) - 1) == fit.bucket.height


def test_second_start_loads_no_encoder(tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]) -> None:
    assert build_latents(latents(tmp_path / "c"), pairs, vae) == 3
    assert build_latents(latents(tmp_path / "c"), pairs, vae) == 0
    assert vae.calls == 1


def test_d13_every_input_is_part_of_the_key(pairs: list[tuple[Item, Fit]], tmp_path: Path, tiny_flux: Path) -> None:
    item, fit = pairs[2]
    assert item.has_alpha
    usual = latents(tmp_path).path(item, fit)
    other_bucket = bucket_table(128, 16, 256, 16, FACTS.geometry(tiny_flux)).assign(item.width, item.height)
    files = {
        latents(tmp_path).path(replace(item, key="0" * 64), fit),
        latents(tmp_path).path(item, other_bucket),
        latents(tmp_path).path(item, replace(fit, box=(1.0, 0.0, 64.0, 96.0))),
        latents(tmp_path, vae="another vae").path(item, fit),
        latents(tmp_path, dtype=torch.float16).path(item, fit),
        latents(tmp_path, dtype=torch.bfloat16).path(item, fit),
        latents(tmp_path, transparency="black").path(item, fit),
    }
    assert len(files) == 7 and usual not in files
    # Name, folder, caption and repeats of a picture are no inputs of its latent.
    moved = replace(item, path=Path("/elsewhere/x.png"), caption="other", repeats=9)
    assert latents(tmp_path).path(moved, fit) == usual
    # The backing colour is none either where nothing is transparent.
    solid = pairs[0]
    assert latents(tmp_path, transparency="black").path(*solid) == latents(tmp_path).path(*solid)


def test_d13_changed_picture_and_backing_are_encoded_anew(
    tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]
) -> None:
    build_latents(latents(tmp_path / "c"), pairs, vae)
    picture(pairs[0][0].path, (64, 64), BLUE)
    (item,) = [i for i in scan([FolderSpec(tmp_path / "i")]).items if i.path == pairs[0][0].path]
    assert build_latents(latents(tmp_path / "c"), [(item, pairs[0][1]), *pairs[1:]], vae) == 1
    black = latents(tmp_path / "c", transparency="black")
    assert build_latents(black, pairs[1:], vae) == 1
    assert not torch.equal(black.load(*pairs[2]), latents(tmp_path / "c").load(*pairs[2]))


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def damage_zeros(path: Path) -> None:
    """What a power cut leaves: the right length, zeros at the end."""
    data = path.read_bytes()
    path.write_bytes(data[:-200] + bytes(200))


def damage_text(path: Path) -> None:
    path.write_bytes(b"<html>not found</html>")


DAMAGES = [damage_cut, damage_zeros, damage_text, lambda path: path.write_bytes(b"")]


@pytest.mark.parametrize("damage", DAMAGES)
def test_d14_damaged_file_is_made_anew(
    tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]], damage: Callable[[Path], None]
) -> None:
    cache = latents(tmp_path / "c")
    build_latents(cache, pairs, vae)
    good = cache.load(*pairs[1])
    damage(cache.path(*pairs[1]))
    assert build_latents(latents(tmp_path / "c"), pairs, vae) == 1
    assert torch.equal(latents(tmp_path / "c").load(*pairs[1]), good)


@pytest.mark.parametrize("damage", [damage_cut, damage_text])
def test_huge_caches_are_checked_at_their_ends(
    tmp_path: Path,
    vae: Counted,
    pairs: list[tuple[Item, Fit]],
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build_latents(latents(tmp_path / "c"), pairs, vae)
    monkeypatch.setattr(store, "_CHECK_BYTES", 0)
    damage(latents(tmp_path / "c").path(*pairs[0]))
    assert build_latents(latents(tmp_path / "c"), pairs, vae) == 1


def test_damage_in_the_middle_of_a_run_is_named(tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]) -> None:
    build_latents(latents(tmp_path / "c"), pairs, vae)
    cache = latents(tmp_path / "c")
    damage_zeros(cache.path(*pairs[0]))
    with pytest.raises(Refused, match=r"a\.png is damaged.*Start the run again"):
        cache.load(*pairs[0])
    assert build_latents(cache, pairs, vae) == 1
    cache.path(*pairs[0]).unlink()
    with pytest.raises(Refused, match=r"a\.png can't be read"):
        latents(tmp_path / "c").load(*pairs[0])


def overflowing(tiny_flux: Path, factor: float, dtype: torch.dtype) -> Counted:
    """The real VAE whose first sums leave the range of float16 (`factor` 3e4) or are NaN everywhere."""

    def load() -> object:
        stack = code.load_vae(tiny_flux, LoadOptions(torch.float32, CPU))
        with torch.no_grad():
            stack.vae.encoder.conv_in.weight.fill_(factor)
        return stack.to(dtype=dtype)

    return Counted(load)


def test_n2_nan_latent_is_made_again_in_float32(
    tmp_path: Path, tiny_flux: Path, pairs: list[tuple[Item, Fit]], caplog: pytest.LogCaptureFixture
) -> None:
    stack = overflowing(tiny_flux, 3e4, torch.float16).load()
    pixels = pixels_of(*pairs[0], "white")[None]
    assert not torch.isfinite(stack.encode(pixels)).all()
    cache = latents(tmp_path / "c", dtype=torch.float16)
    assert build_latents(cache, pairs, lambda: stack) == 3
    assert stack.dtype == torch.float16
    assert torch.equal(cache.load(*pairs[0]), stack.to(dtype=torch.float32).encode(pixels)[0])
    assert "made again in float32" in caplog.text


def test_n2_picture_without_finite_values_is_named(
    tmp_path: Path, tiny_flux: Path, pairs: list[tuple[Item, Fit]]
) -> None:
    vae = overflowing(tiny_flux, float("nan"), torch.float32)
    with pytest.raises(Refused) as refused:
        build_latents(latents(tmp_path / "c"), pairs, vae)
    assert [problem.text for problem in refused.value.problems] == [
        f"The VAE gives no finite values for {item.path}, not even in float32" for item, _ in pairs
    ]
    assert not list((tmp_path / "c").rglob("*.safetensors"))


def test_pictures_that_changed_or_vanished_since_the_scan_are_named_and_the_rest_kept(
    tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]
) -> None:
    picture(pairs[0][0].path, (64, 64), BLUE)
    pairs[1][0].path.unlink()
    with pytest.raises(Refused) as refused:
        build_latents(latents(tmp_path / "c"), pairs, vae)
    first, second = (problem.text for problem in refused.value.problems)
    assert "a.png has changed since it was scanned" in first and "b.png can't be read" in second
    assert latents(tmp_path / "c").load(*pairs[2]).isfinite().all()


def test_stop_between_pictures_keeps_what_is_done(tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]) -> None:
    class Stop(Exception):
        pass

    def progress(done: int, total: int) -> None:
        assert total == 3
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        build_latents(latents(tmp_path / "c"), pairs, vae, progress)
    calls: list[tuple[int, int]] = []
    assert build_latents(latents(tmp_path / "c"), pairs, vae, lambda *at: calls.append(at)) == 1
    assert calls == [(0, 1), (1, 1)]


def test_full_disk_is_said_before_it_happens(
    tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "free_bytes", lambda folder: 1000)
    with pytest.raises(Refused, match=r"3 pictures needs about .*, and 5.0 MB are left free.*; 1.0 KB are.* cache_dir"):
        build_latents(latents(tmp_path / "c"), pairs, vae)
    # a small cache needs no large reserve
    monkeypatch.setattr(caching, "free_bytes", lambda folder: 21_000_000)
    assert build_latents(latents(tmp_path / "c"), pairs, vae) == 3


def test_texts_are_those_of_the_encoders(tmp_path: Path, encoders: Counted) -> None:
    cache = TextCache(tmp_path, "encoders", torch.float32)
    wanted = [("a red ring", 32), ("", 32), ("猫 ❤", 32), ("a red ring", 16)]
    assert build_text(cache, wanted, encoders) == 4
    assert build_text(TextCache(tmp_path, "encoders", torch.float32), wanted, encoders) == 0
    assert encoders.calls == 1
    stack = encoders.load()
    for caption, length in wanted:
        (expected,) = stack.encode([caption], length)
        encoding = cache.load(caption, length)
        assert encoding.keys() == expected.keys()
        assert all(torch.equal(encoding[name], expected[name]) for name in expected)
        assert encoding["prompt_embeds"].shape[0] == length


def test_d13_d15_text_key_holds_caption_length_encoders_and_dtype(tmp_path: Path) -> None:
    usual = TextCache(tmp_path, "encoders", torch.bfloat16)
    files = {
        usual.path("a cat", 512),
        usual.path("a cat ", 512),
        usual.path("a cat", 256),
        TextCache(tmp_path, "others", torch.bfloat16).path("a cat", 512),
        TextCache(tmp_path, "encoders", torch.float16).path("a cat", 512),
    }
    assert len(files) == 5


def test_bfloat16_comes_back_as_it_was(tmp_path: Path) -> None:
    cache = TextCache(tmp_path, "encoders", torch.bfloat16)
    tensors = {"prompt_embeds": torch.randn(5, 7).to(torch.bfloat16), "length": torch.tensor(3)}
    cache.write(cache.path("a", 5), tensors)
    encoding = TextCache(tmp_path, "encoders", torch.bfloat16).load("a", 5)
    assert all(
        torch.equal(encoding[name], tensors[name]) and encoding[name].dtype == tensors[name].dtype for name in tensors
    )


def test_text_without_finite_values_is_refused(tmp_path: Path, tiny_flux: Path) -> None:
    def broken() -> object:
        stack = code.load_text(tiny_flux, LoadOptions(torch.float32, CPU))
        with torch.no_grad():
            stack.t5.shared.weight.fill_(float("nan"))
        return stack

    with pytest.raises(Refused, match=r"prompt_embeds.*'a cat'.*weight_dtype"):
        build_text(TextCache(tmp_path, "e", torch.float32), [("a cat", 16)], broken)


def test_wanted_texts_are_captions_the_empty_one_and_prompts(tmp_path: Path) -> None:
    with_caption(picture(tmp_path / "i" / "a.png"), "a cat")
    prompts = [
        {"prompt": "a cat", "negative_prompt": "blur", "true_cfg_scale": 2.0},
        {"prompt": "a dog", "text_length": 64},
    ]
    cfg = Config.model_validate(
        {
            "dataset": {"folders": [{"path": str(tmp_path / "i")}], "cache_dir": str(tmp_path / "c")},
            "sampling": {"prompts": prompts},
        }
    )
    plan = make_plan(cfg, scan_dataset(cfg), FACTS.default_geometry, FACTS)
    assert wanted_text(cfg, plan) == [
        (caption, length, ()) for caption, length in (("", 512), ("a cat", 512), ("blur", 512), ("a dog", 64), ("", 64))
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_caption_read_with_two_pictures_is_two_texts(tmp_path: Path, dropout: float) -> None:
    """And its key without one is what it always was, so that nothing of other families is encoded again."""
    for name, colour in (("a", RED), ("b", BLUE)):
        with_caption(picture(tmp_path / "i" / f"{name}.png", (64, 64)), "a cat")
        picture(tmp_path / "before" / f"{name}.png", (64, 64), colour)
    prompt = {"prompt": "a dog", "control_image": str(tmp_path / "before" / "a.png")}
    rows = [{"path": str(tmp_path / "i"), "control_path": str(tmp_path / "before")}]
    cfg = Config.model_validate(
        {
            "dataset": {"folders": rows, "cache_dir": str(tmp_path / "c"), "caption_dropout_rate": dropout},
            "sampling": {"prompts": [prompt | {"width": size} for size in (512, 768)]},
        }
    )
    inputs = (cfg, scan_dataset(cfg), FACTS.default_geometry, FACTS)
    wanted = wanted_text(cfg, make_plan(*inputs, picture_tokens=lambda width, height: 4))
    pairs = [(words.caption, item.path.stem, fit.bucket.width) for words in wanted for item, fit in words.controls]
    drawn = [(text, "a", width) for width in (512, 768) for text in ("a dog", "")]
    trained = [(text, name, 1024) for text in ("", "a cat") for name in "ab" if text or dropout]
    assert pairs == trained + drawn
    cache = TextCache(tmp_path, "encoders", torch.bfloat16)
    assert len({cache.path(*words) for words in wanted}) == len(wanted)
    assert {words.controls for words in wanted_text(cfg, make_plan(*inputs))} == {()}
    assert cache.path("a cat", 512).stem == "3264ddf8853557bcdf07ba0d426aa2ce53eabb00"


def test_copied_cache_folder_still_serves(tmp_path: Path, vae: Counted, pairs: list[tuple[Item, Fit]]) -> None:
    build_latents(latents(tmp_path / "c"), pairs, vae)
    shutil.move(tmp_path / "c", tmp_path / "d")
    assert build_latents(latents(tmp_path / "d"), pairs, vae) == 0
