"""DreamBooth: regularization images in a run, from their folder to the loss that is theirs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from backend.config.schema import Config
from backend.dataset.items import Item
from backend.dataset.scan import scan_dataset
from backend.plan.make_plan import plan_for
from backend.plan.training_sample import training_sample
from backend.runs.picture_table import read_table
from tests.conftest import draw_pictures
from tests.tiny.training import config, rows, train_here


def folders(where: Path) -> list[dict[str, Any]]:
    """Two pictures of the subject, and two of its class in a folder as kohya names it, one of them with a caption."""
    draw_pictures(where / "images", ((64, 64), (64, 64)))
    drawn = draw_pictures(where / "drawn", ((64, 64),) * 4)
    inside = where / "reg" / "3_small dog"
    inside.mkdir(parents=True)
    for number in (2, 3):
        shutil.copy(drawn / f"picture_{number}.png", inside)
    (inside / "picture_3.txt").write_text("an old dog")
    return [{"path": str(where / "images")}, {"path": str(where / "reg"), "is_reg": True}]


def test_regularization_images_have_their_class_for_a_caption_and_a_weight(tiny_flux: Path, tmp_path: Path) -> None:
    """No trigger word, none held out, counted by the plan; prior_loss_weight scales their share of the loss alone."""
    options = {"folders": folders(tmp_path), "trigger_word": "ohwx", "batch_size": 4}

    def settings(weight: float, validation: dict[str, Any] | None = None, **dataset: Any) -> Config:
        return config(
            tiny_flux,
            tmp_path / "images",
            tmp_path,
            dataset={**options, **dataset},
            validation=validation or {},
            loss={"prior_loss_weight": weight},
            training={"max_train_steps": 1},
        )

    compared = settings(1.0, {"validate_training_images": 9}, validation_split=0.4)
    scan = scan_dataset(compared)
    regular = [item for item in scan.train.items if item.is_reg]
    assert [(item.caption, item.repeats) for item in regular] == [("small dog", 3), ("an old dog", 3)]
    assert all(item.caption.startswith("ohwx") for item in scan.train.items if not item.is_reg)
    # the words of the folder are a caption
    assert not [each for each in scan.train.findings if each.kind == "missing_caption"]
    assert [Item.from_dict(item.to_dict()) for item in regular] == regular
    (held,) = scan.validation.values()
    assert [item.is_reg for item in held.items] == [False]
    assert [scan.train.items[number].is_reg for number in training_sample(compared, scan)] == [False]
    losses = {}
    for weight in (1.0, 0.5, 0.0):
        measured = {"picture_losses": True, "validation_sigmas": [0.05]} if not weight else {}
        run, code = train_here(settings(weight, measured))
        assert code == 0
        losses[weight] = rows(run)[0]["loss"]
    table = read_table(run)
    assert table is not None and {Path(each.path).parent.name for each in table.losses} == {"images"}
    assert losses[0.0] < losses[0.5] < losses[1.0]
    assert losses[0.5] == pytest.approx((losses[0.0] + losses[1.0]) / 2, rel=1e-5)
    plan = plan_for(settings(0.5), scan_dataset(settings(0.5)))
    finding = next(each for each in plan.findings if each.kind == "regularization")
    assert "6 regularization images and 2 others" in finding.text and "0.5 times" in finding.text
