"""The loader: any batch by its place, the same whatever was asked before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.config.schema import Config
from backend.dataset.scan import scan_dataset
from backend.families.flux.facts import FACTS
from backend.families.spec import Geometry
from backend.latents.cache import LatentCache, TextCache
from backend.latents.loader import Batch, Loader
from backend.latents.wanted import wanted_latents, wanted_text
from backend.plan.make_plan import make_plan
from backend.plan.plan import Plan
from tests.tiny.pictures import picture, with_caption

TINY = Geometry(downscale=8, patch=2, latent_channels=4)
SIZES = [(64, 64), (96, 64), (64, 96), (64, 64), (128, 64), (64, 64), (96, 64), (64, 96), (64, 64)]


def words(caption: str) -> int:
    return len(caption.split()) + 1


class World:
    """Nine captioned pictures and their caches; every latent and text tells which picture or caption it is of."""

    def __init__(self, folder: Path, **settings: dict[str, object]) -> None:
        for number, size in enumerate(SIZES):
            caption = " ".join(["word"] * (number * 3)) + f" {number}"
            with_caption(picture(folder / "i" / f"{number}.png", size, (number, 0, 0)), caption)
        dataset = {
            "folders": [{"path": str(folder / "i")}],
            "resolution": 64,
            "min_bucket_size": 16,
            "cache_dir": str(folder / "c"),
            **settings.pop("dataset", {}),
        }
        cfg = Config.model_validate({"dataset": dataset, "model": {"text_length": 32}, **settings})
        self.plan = make_plan(cfg, scan_dataset(cfg), TINY, FACTS, words)
        self.latents = LatentCache(folder / "c", "vae", torch.float32, "white")
        self.text = TextCache(folder / "c", "encoders", torch.float32)
        for item, fit in wanted_latents(self.plan):
            shape = (4, fit.bucket.height // 8, fit.bucket.width // 8)
            self.latents.write(self.latents.path(item, fit), {"latent": torch.full(shape, float(item.path.stem))})
        self.codes = {caption: float(code) for code, (caption, *_) in enumerate(wanted_text(cfg, self.plan))}
        for caption, length, _ in wanted_text(cfg, self.plan):
            tensors = {"prompt_embeds": torch.full((length, 2), self.codes[caption]), "pooled": torch.zeros(3)}
            self.text.write(self.text.path(caption, length), tensors)

    def loader(self, workers: int = 0) -> Loader:
        return Loader(plan=self.plan, latents=self.latents, text=self.text, workers=workers)

    def all(self, workers: int, epochs: int = 3) -> list[Batch]:
        with self.loader(workers) as loader:
            return [loader.batch(e, i) for e in range(epochs) for i in range(loader.batches_per_epoch)]


def same(one: Batch, other: Batch) -> bool:
    equal = all(torch.equal(a, b) for a, b in zip(one.latents, other.latents, strict=True))
    texts = zip(one.text, other.text, strict=True)
    equal &= all(a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in texts)
    return equal and (one.keys, one.index, one.epoch) == (other.keys, other.index, other.epoch)


def check_rows(world: World, plan: Plan, batch: Batch) -> None:
    """Latent, text and key of each row belong to the plan's item."""
    rows = plan.batches(batch.epoch)[batch.index]
    for row, (index, latent, text, key) in enumerate(zip(rows, batch.latents, batch.text, batch.keys, strict=True)):
        item, fit = plan.items[index], plan.fits[index]
        assert key == item.key and latent[0, 0, 0] == float(item.path.stem)
        assert latent.shape == (4, fit.bucket.height // 8, fit.bucket.width // 8) and latent.dtype == torch.float32
        caption = plan.caption(batch.epoch, batch.index, row, index)
        assert text["prompt_embeds"][0, 0] == world.codes[caption]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_rows_are_the_plans(tmp_path: Path, workers: int) -> None:
    world = World(tmp_path, dataset={"batch_size": 2, "caption_dropout_rate": 0.4})
    batches = world.all(workers)
    assert [(b.epoch, b.index) for b in batches] == [(e, i) for e in range(3) for i in range(4)]
    for batch in batches:
        check_rows(world, world.plan, batch)
    dropped = sum(text["prompt_embeds"][0, 0] == world.codes[""] for batch in batches for text in batch.text)
    assert 0 < dropped < 24
    assert "length" not in batches[0].text[0]


def test_any_batch_can_be_asked_for_at_any_time(tmp_path: Path) -> None:
    world = World(tmp_path, dataset={"batch_size": 2, "caption_dropout_rate": 0.4})
    straight = world.all(0)
    for workers in (0, 2):
        with world.loader(workers) as loader:
            # A resume in the middle of an epoch, a jump back, the same once more.
            for place in (6, 7, 8, 2, 2, 11, 0):
                assert same(loader.batch(*divmod(place, 4)), straight[place])


def test_waits_are_measured(tmp_path: Path) -> None:
    loader = World(tmp_path).loader()
    loader.batch(0, 0)
    first = loader.last_wait
    loader.batch(0, 1)
    assert first > 0 and loader.total_wait == pytest.approx(first + loader.last_wait)


def test_place_beyond_the_epoch_is_an_error(tmp_path: Path) -> None:
    loader = World(tmp_path).loader()
    with pytest.raises(IndexError, match="9 batches"):
        loader.batch(0, 9)


def test_trimmed_captions_have_one_length_a_batch(tmp_path: Path) -> None:
    world = World(
        tmp_path,
        dataset={"batch_size": 2, "caption_dropout_rate": 0.3},
        compile={"caption_buckets": [4, 16]},
    )
    lengths = set()
    for batch in world.all(0):
        rows = world.plan.batches(batch.epoch)[batch.index]
        captions = [world.plan.caption(batch.epoch, batch.index, row, index) for row, index in enumerate(rows)]
        expected = max(next((b for b in (4, 16) if b >= words(caption)), 32) for caption in captions)
        assert [int(text["length"]) for text in batch.text] == [expected] * 2
        lengths.add(expected)
    assert lengths == {16, 32} or lengths == {4, 16, 32}
    assert {shape.text_tokens for shape in world.plan.graphs.training} >= lengths


def test_validation_is_in_order_one_by_one_with_captions(tmp_path: Path) -> None:
    world = World(tmp_path, dataset={"validation_split": 0.3, "caption_dropout_rate": 1.0})
    loader = world.loader()
    for _ in range(2):
        batches = list(loader.validation("held out"))
        assert [batch.keys for batch in batches] == [[item.key] for item in world.plan.validation["held out"]]
        for batch, item in zip(batches, world.plan.validation["held out"], strict=True):
            assert batch.latents[0][0, 0, 0] == float(item.path.stem)
            assert batch.text[0]["prompt_embeds"][0, 0] == world.codes[item.caption]


def test_repeats_are_seen_as_often(tmp_path: Path) -> None:
    world = World(tmp_path, dataset={"folders": [{"path": str(tmp_path / "i"), "num_repeats": 3}]})
    keys = [key for batch in world.all(0, epochs=1) for key in batch.keys]
    assert len(keys) == 27 and all(keys.count(key) == 3 for key in set(keys))
