"""Masks, shuffled tags and mirrored images in a run: from their files to the loss, and over a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from backend.base.errors import Refused
from backend.config.schema import Config, with_values
from backend.dataset.buckets import Bucket, Fit
from backend.dataset.items import Item, Scan
from backend.dataset.masks import MaskRule
from backend.dataset.scan import scan_dataset
from backend.dataset.thumbnails import reply_to
from backend.latents.cache import pixels_of
from backend.latents.masks import MaskCache
from backend.latents.store import LatentCache, TextCache
from backend.objectives.base import Distance
from backend.objectives.flow_matching import FlowMatching
from backend.plan.make_plan import plan_for
from backend.runs.folder import Run
from backend.runs.picture_table import read_table
from backend.training.data_digests import data_digests
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, same, train_here

TAGS = "1girl, solo, red hair, hat, sky, smile"


def left_half(path: Path, size: tuple[int, int]) -> None:
    """A mask that shows the left half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mask = Image.new("L", size)
    ImageDraw.Draw(mask).rectangle((0, 0, size[0] // 2 - 1, size[1]), fill=255)
    mask.save(path)


def settings(base: Path, where: Path, **changes: dict[str, Any]) -> Config:
    """Two tagged pictures, the first of which has a mask."""
    images = draw_pictures(where / "images", ((64, 64), (96, 64)))
    for number in range(2):
        (images / f"picture_{number}.txt").write_text(f"{TAGS}, {number}")
    left_half(where / "masks" / "picture_0.png", (64, 64))
    sections: dict[str, dict[str, Any]] = {
        "dataset": {"folders": [{"path": str(images), "mask_path": str(where / "masks")}]},
        "captions": {
            "shuffle_caption": True, "keep_tokens": 1, "caption_tag_dropout_rate": 0.2, "caption_variants": 3
        },
        "masks": {"unmasked_weight": 0.1, "unmasked_probability": 0.3},
        "augmentation": {"flip_aug": True},
        "validation": {"picture_losses": True, "validation_sigmas": [0.4]},
        "optimizer": {"lr_scheduler": "constant", "lr_warmup": 0.0, "learning_rate": 0.01},
    }  # fmt: skip
    for section, values in changes.items():
        sections[section] = {**sections.get(section, {}), **values}
    return config(base, images, where, **sections)


def test_a_tagged_folder_with_masks_trains_and_resumes_to_the_same_bits(tiny_flux: Path, tmp_path: Path) -> None:
    def trained(steps: int, **more: Any) -> Config:
        return settings(tiny_flux, tmp_path, training={"max_train_steps": steps}, **more)

    straight, code = train_here(trained(6))
    assert code == 0, events(straight, "error")
    half, code = train_here(trained(3))
    half.config_path.write_text(half.config_path.read_text().replace("max_train_steps = 3", "max_train_steps = 6"))
    _, code = train_here(trained(6), half, resume=True)
    assert code == 0, events(half, "error")
    assert [row["loss"] for row in rows(half)] == [row["loss"] for row in rows(straight)]
    assert same(lora_of(half, Path(events(half, "done")[-1]["lora"]).name), lora_of(straight))
    assert not any("changed since" in event["text"] for event in events(half, "warning"))
    words = " ".join(event["text"] for event in events(straight) if event.get("text"))
    assert "1 of 2 images without a mask" in words
    # each of them is in the loss: that of the first steps without one of them is another
    for section in ("captions", "masks", "augmentation"):
        usual = Config().model_dump()[section] | ({"unmasked_weight": 1.0} if section == "masks" else {})
        other, code = train_here(trained(3, **{section: usual}))
        assert code == 0 and [row["loss"] for row in rows(other)] != [row["loss"] for row in rows(straight)][:3]
        if section == "masks":
            whole = at_start(other)
    # images are measured by their masks, and what rows are padded with counts nothing
    unpadded, code = train_here(trained(1, compile={"compile": False, "shape_mode": "off"}))
    assert code == 0 and plan_for(trained(1), scan_dataset(trained(1))).chosen.padding > 0
    assert at_start(straight) == pytest.approx(at_start(unpadded), rel=1e-4)
    assert at_start(straight)["picture_0.png"] != pytest.approx(whole["picture_0.png"], rel=1e-3)
    assert at_start(straight)["picture_1.png"] == whole["picture_1.png"]


def test_what_a_resume_warns_of_is_told_apart(tiny_flux: Path, tmp_path: Path) -> None:
    def digests(cfg: Config) -> dict[str, str]:
        return data_digests(cfg, plan_for(cfg, scan_dataset(cfg)))

    cfg = settings(tiny_flux, tmp_path)
    before = digests(cfg)

    def changed(**values: Any) -> set[str]:
        now = digests(with_values(cfg, {name.replace("__", "."): value for name, value in values.items()}))
        return {name for name in before if before[name] != now[name]}

    assert list(before) == ["images", "captions", "masks", "augmentation"] and not changed()
    assert changed(training__seed=9, optimizer__learning_rate=0.02) == set()
    assert changed(augmentation__image_variants=7) == changed(augmentation__flip_aug=False) == {"augmentation"}
    assert changed(masks__unmasked_weight=0.2) == {"masks"}
    assert changed(captions__keep_tokens=2) == changed(dataset__caption_dropout_rate=0.5) == {"captions"}
    left_half(tmp_path / "masks" / "picture_0.png", (128, 128))
    assert changed() == {"masks"}
    (tmp_path / "images" / "picture_1.txt").write_text("another")
    assert changed() == {"masks", "captions"}
    Image.new("RGB", (96, 64), "red").save(tmp_path / "images" / "picture_1.png")
    assert changed() == {"masks", "captions", "images"}
    cfg.dataset.folders[0].mask_path = None
    assert digests(cfg)["masks"] == ""


def at_start(run: Run) -> dict[str, float]:
    """The loss of each image before the first step."""
    table = read_table(run)
    assert table is not None
    return {Path(picture.path).name: losses["start"] or 0.0 for picture, losses in table.losses.items()}


def test_the_plan_says_how_masks_count_and_what_versions_of_images_cost(tiny_flux: Path, tmp_path: Path) -> None:
    cfg = settings(tiny_flux, tmp_path)
    plan = plan_for(cfg, scan_dataset(cfg))
    words = {finding.kind: finding.text for finding in plan.findings}
    assert "1 image has a mask" in words["masks"] and "0.1" in words["masks"] and "30 %" in words["masks"]
    assert "4 latents of 2 images" in words["image_variants"]
    assert "losses of images go by their masks" in words["masks"]


def test_a_mask_is_drawn_over_the_thumbnail(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), (0, 0, 255)).save(tmp_path / "a.png")
    left_half(tmp_path / "m.png", (128, 128))
    request = {"path": str(tmp_path / "a.png"), "to": str(tmp_path / "t.jpg"), "px": 32}
    request |= {"mask": str(tmp_path / "m.png")}
    assert reply_to(request) == {"fault": None}
    small = Image.open(tmp_path / "t.jpg")
    (left, right) = (small.getpixel((x, 16)) for x in (4, 28))
    assert isinstance(left, tuple) and isinstance(right, tuple)
    assert small.size == (32, 32) and left[2] > 220 and left[0] < 30 and right[0] > 100 and right[2] < 130
    assert "m2.png" in reply_to({**request, "mask": str(tmp_path / "m2.png")})["fault"]


def look(where: Path, row: dict[str, Any], **sections: dict[str, Any]) -> tuple[Config, Scan]:
    data = {"dataset": {"folders": [{"path": str(where / "i"), **row}], "cache_dir": str(where / "c"),
                        "resolution": 64, "min_bucket_size": 32}, **sections}  # fmt: skip
    cfg = Config.model_validate(data)
    return cfg, scan_dataset(cfg).train


def cache_of(where: Path, **rule: Any) -> MaskCache:
    return MaskCache(where / "c", 8, MaskRule(**rule), seed=1)


def test_masks_are_found_by_name_and_by_transparency_and_wrong_ones_are_named(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "in/c", "d", "e")):
        path = tmp_path / "i" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (number, 90, 20)).save(path)
    clear = Image.new("RGBA", (64, 64), (9, 9, 9, 255))
    clear.paste((9, 9, 9, 0), (0, 0, 32, 64))
    clear.save(tmp_path / "i" / "clear.png")
    left_half(tmp_path / "m" / "a.png", (128, 128))
    left_half(tmp_path / "m" / "in" / "c-masklabel.png", (64, 64))
    left_half(tmp_path / "m" / "d.png", (64, 96))
    (tmp_path / "m" / "e.png").write_bytes(b"no picture")
    _, scan = look(tmp_path, {"mask_path": str(tmp_path / "m")}, masks={"alpha_mask": True})
    masks = {item.path.stem: item.mask for item in scan.items}
    assert {name: mask and mask.path and mask.path.name for name, mask in masks.items()} == {
        "a": "a.png", "b": None, "c": "c-masklabel.png", "clear": None
    }  # fmt: skip
    assert masks["clear"] is not None and masks["clear"].key == "alpha" and masks["b"] is None
    assert [Item.from_dict(item.to_dict()) for item in scan.items] == list(scan.items)
    words = {finding.kind: finding.text for finding in scan.findings}
    assert "1 of 6 images without a mask: b.png" in words["no_mask"]
    assert "2 masks" in words["bad_mask"] and "64 x 96 px" in words["bad_mask"] and "not an image" in words["bad_mask"]
    _, scan = look(tmp_path, {"mask_path": str(tmp_path / "m")})
    assert "2 of 6 images without a mask: b.png, clear.png" in {f.kind: f.text for f in scan.findings}["no_mask"]
    assert "faint_mask" not in {f.kind for f in scan.findings}
    # counted from 0 to 1, not to 255: by memory too, and a black mask is another matter
    (tmp_path / "m" / "d.png").unlink()
    for name, value in (("d", 1), ("b", 0)):
        Image.new("L", (64, 64), 0).save(tmp_path / "m" / f"{name}.png")
        with Image.open(tmp_path / "m" / f"{name}.png") as mask:
            mask.paste(value, (0, 0, 32, 64))
            mask.save(tmp_path / "m" / f"{name}.png")
    for _ in range(2):
        _, scan = look(tmp_path, {"mask_path": str(tmp_path / "m")})
        assert [f.text for f in scan.findings if f.kind == "faint_mask"] == [
            "1 mask saved with values of 0 and 1 in place of 0 and 255: d.png"
        ]
    (tmp_path / "m" / "b.png").unlink()
    measured = [{"path": str(tmp_path / "i" / "in"), "name": "own", "mask_path": str(tmp_path / "m" / "in")}]
    cfg, _ = look(tmp_path, {}, validation={"validation_folders": measured})
    assert [item.mask is not None for item in scan_dataset(cfg).validation["own"].items] == [True]
    # a folder of masks above the images leaves no image out
    assert len(look(tmp_path, {"mask_path": str(tmp_path)})[1].items) == 6
    # next to the images, as OneTrainer has them
    left_half(tmp_path / "i" / "b-masklabel.png", (64, 64))
    _, scan = look(tmp_path, {"mask_path": str(tmp_path / "i")})
    assert [item.path.stem for item in scan.items if item.mask] == ["b"] and len(scan.items) == 6
    # and no image where masks are not asked for
    _, scan = look(tmp_path, {})
    assert len(scan.items) == 6 and scan.ignored == {"masks of images (-masklabel)": 1}


def test_a_mask_is_cut_and_mirrored_as_its_image_and_weighs_the_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The left half of a picture and of its mask is white: what counts is what is white, however it is cut."""
    (tmp_path / "i").mkdir()
    white = Image.new("RGB", (160, 64))
    white.paste((255, 255, 255), (0, 0, 80, 64))
    white.save(tmp_path / "i" / "a.png")
    left_half(tmp_path / "m" / "a.png", (320, 128))
    changes = {"flip_aug": True, "random_crop": True, "color_jitter": 0.1, "image_variants": 6}
    cfg, scan = look(
        tmp_path, {"mask_path": str(tmp_path / "m")}, augmentation=changes, compile={"shape_mode": "off"}
    )  # fmt: skip
    cfg.dataset.max_bucket_size = 96
    plan = plan_for(cfg, scan_dataset(cfg))
    (item,), (plain,) = plan.items, plan.fits
    fits = plan.images.fits(item, plain)
    assert len(fits) == 6 and {fit.flip for fit in fits} == {False, True} and len({fit.box for fit in fits}) > 3
    cache = cache_of(tmp_path, unmasked_weight=0.25)
    assert cache.build([(item, fit) for fit in fits]) == 6 and cache.build([(item, fit) for fit in fits]) == 0
    colours = set()
    for fit in fits:
        weights = cache.weights(item, fit)
        assert weights is not None and float(weights.mean()) == pytest.approx(1)
        pixels = pixels_of(item, fit, "white")
        colours.add(round(float(pixels.max()), 3))
        height, width = weights.shape
        bright = (pixels.mean(0) > 0).float().reshape(height, 8, width, 8).mean((1, 3))
        assert torch.corrcoef(torch.stack([bright.flatten(), weights.flatten()]))[0, 1] > 0.99
    assert len(colours) > 1
    plainly = cache_of(tmp_path, unmasked_weight=0.25, normalize_masked_area_loss=False).weights(item, plain)
    assert plainly is not None and plainly.min() == 0.25 and plainly.max() == 1
    at_times = cache_of(tmp_path, unmasked_probability=0.5)
    left_out = [at_times.weights(item, plain, (epoch, 0)) is None for epoch in range(60)]
    assert 15 < sum(left_out) < 45 and at_times.weights(item, plain) is not None
    # a lost file is made again; an all black mask is refused by name, where the rest counts for nothing
    cache.path(item, plain).unlink(missing_ok=True)
    assert torch.equal(cache_of(tmp_path).weights(item, plain), cache_of(tmp_path).weights(item, plain))
    Image.new("L", (160, 64)).save(tmp_path / "m" / "a.png")
    _, scan = look(tmp_path, {"mask_path": str(tmp_path / "m")})
    with pytest.raises(Refused, match=r"a\.png.*shows nothing"):
        cache_of(tmp_path).build([(scan.items[0], plain)])
    # the files say so in their headers; those of before are read
    steps, read = [], []
    again, black = cache_of(tmp_path), (scan.items[0], plain)
    monkeypatch.setattr(again, "missing", lambda paths: [])
    monkeypatch.setattr(again, "read", lambda path: read.append(path) or MaskCache.read(again, path))
    assert again.build([(item, fit) for fit in fits], lambda *at: steps.append(at)) == 0
    with pytest.raises(Refused, match="shows nothing"):
        again.build([black])
    assert steps[0] == (0, 6) and steps[-1] == (6, 6) and not read
    again.write(again.path(*black), again.read(again.path(*black)))
    with pytest.raises(Refused, match="shows nothing"):
        again.build([black])
    assert len(read) == 2
    assert cache_of(tmp_path, unmasked_weight=0.1).build([(scan.items[0], plain)]) == 0


@pytest.mark.parametrize("kind", ["l2", "huber", "smooth_l1"])
def test_what_weighs_nothing_changes_no_loss_and_has_no_gradient(kind: str) -> None:
    source = torch.Generator().manual_seed(3)
    predicted = [torch.randn(4, 2, 6, 8, generator=source, requires_grad=True) for _ in range(2)]
    target = [torch.randn(4, 2, 6, 8, generator=source) for _ in range(2)]
    levels = torch.tensor([0.3, 0.6])
    weights = torch.zeros(6, 8)
    weights[:, :4] = 2.0
    objective = FlowMatching(distance=Distance(loss_type=kind))
    losses = objective.losses(predicted, target, levels, [weights, None])
    (gradient,) = torch.autograd.grad(losses[0], predicted[0], retain_graph=True)
    assert gradient[..., :4].abs().min() > 0 and not gradient[..., 4:].any()
    halves = [[each[..., :4] for each in tensors] for tensors in (predicted, target)]
    assert float(losses[0]) == pytest.approx(float(objective.losses(*halves, levels)[0]), rel=1e-5)
    assert losses[1] == objective.losses(predicted, target, levels)[1]


def test_versions_of_images_leave_old_cache_files_and_other_settings_alone(tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(tmp_path / "i" / "a.png")
    cfg, _ = look(tmp_path, {}, augmentation={"random_crop": True})
    plan = plan_for(cfg, scan_dataset(cfg))
    # nothing is cropped of it, so there is nothing to choose
    assert plan.images.fits(plan.items[0], plan.fits[0]) == [plan.fits[0]]
    assert {plan.fit(epoch, 0, 0, 0) for epoch in range(9)} == {plan.fits[0]}
    # names of files that versions before these settings wrote
    item = Item("ab" * 32, Path("/a/b.png"), 640, 480, "a cat", has_alpha=True)
    fit = Fit(Bucket(64, 48, 12), (1.0, 2.0, 600.5, 480.0), 0.1, 0.05)
    names = [
        LatentCache(tmp_path, "vae", torch.bfloat16, "white").path(item, fit).stem,
        TextCache(tmp_path, "enc", torch.bfloat16).path("a cat", 512).stem,
    ]
    assert names == ["af396c17b188f434b08b11b272d34d062d672c47", "7eb0602b3d3f8708246611bd1b7a0f62338d8abb"]
