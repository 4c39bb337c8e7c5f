"""Captions as they come: kept one by one, continued after a break, given way to a training run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image

from backend.base.errors import Failed
from backend.captioning.captioner import Captioner
from backend.captioning.work import TrainingRuns, caption_images
from backend.dataset.caption_changes import CaptionChange
from backend.runs.captioning.folder import ResultFolder, newest
from backend.runs.captioning.model_folder import read_model
from backend.runs.captioning.proposals import Proposal, new_caption, proposals
from backend.runs.captioning.request import CaptionOptions, CaptionRequest, Target
from backend.runs.process import ProcessId
from tests.gui.conftest import make_run
from tests.tiny.captioners import picture
from tests.tiny.runs import set_fields


@pytest.fixture(scope="module")
def captioner(model_of: Callable[[str], Path]) -> Captioner:
    folder = model_of("blip")
    return Captioner(read_model(folder), CaptionOptions(model=str(folder), device="cpu", max_tokens=6, beams=1))


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Five images, of which the second can't be read."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(5):
        picture(40, 30, number).save(folder / f"{number}.png")
    (folder / "1.png").write_bytes(b"no image")
    return sorted(folder.glob("*.png"))


def request(images: Sequence[Path], **options: str) -> CaptionRequest:
    targets = tuple(Target(path, path.with_suffix(".txt")) for path in images)
    return CaptionRequest(options=CaptionOptions(model="m", **options), targets=targets)


class SmallMemory:
    """The model on a GPU without room for more than one image at once."""

    def __init__(self, captioner: Captioner) -> None:
        self.captioner, self.device = captioner, captioner.device
        self.sizes: list[int] = []

    def describe(self, images: Sequence[Image.Image]) -> list[str]:
        self.sizes.append(len(images))
        if len(images) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.captioner.describe(images)


def test_a_request_that_was_cut_off_continues_and_names_what_can_not_be_read(
    captioner: Captioner, images: list[Path], tmp_path: Path
) -> None:
    asked, at_once = request(images), ResultFolder(tmp_path / "at-once")
    at_once.path.mkdir()
    steps = list(caption_images(images, captioner, at_once, batch=2))
    assert [step.done for step in steps] == [2, 4, 5] and steps[-1].seconds_left == 0
    whole = dict(at_once.results())
    assert "not an image" in whole[str(images[1])].error
    assert all(whole[str(path)].text for path in images if path != images[1])

    root = tmp_path / "captions"
    broken_off = ResultFolder(root / ("0" * 16))
    broken_off.begin(asked)
    work = caption_images(images, captioner, broken_off, batch=2)
    next(work)
    work.close()
    with open(broken_off.results_path, "ab") as file:
        file.write(b'{"image": "half a li')
    again = newest(root)
    assert again is not None and again.request() == asked
    # the unreadable one is tried again
    assert again.missing(asked) == images[1:]
    small, notes = SmallMemory(captioner), list[str]()
    list(caption_images(again.missing(asked), small, again, batch=4, note=notes.append))
    assert small.sizes == [3, 1, 2, 1, 1] and len(notes) == 2
    assert {path: row.text for path, row in again.results().items()} == {p: r.text for p, r in whole.items()}
    assert ResultFolder(again.path).results() == again.results()

    picture(40, 30, 9).save(images[0])
    assert again.missing(asked) == images[:2]


def test_it_gives_way_to_a_training_run(captioner: Captioner, images: list[Path], tmp_path: Path) -> None:
    folder, run = ResultFolder(tmp_path), make_run(tmp_path / "runs")
    training = TrainingRuns(runs=lambda: [run], gpus="", clock=iter(range(0, 100, 5)).__next__)
    work = caption_images(images, captioner, folder, batch=2, training=training)
    next(work)
    set_fields(run.record_path, state=None, gpus="", **ProcessId.of(os.getpid()).to_record())
    with pytest.raises(Failed, match=f"{run.name} has started"):
        next(work)
    assert len(folder.results()) == 2


def test_new_captions_stand_beside_the_old_ones(captioner: Captioner, images: list[Path], tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    list(caption_images(images, captioner, folder, batch=4))
    texts = {path: row.text for path, row in folder.results().items()}
    first, _, third, *_ = images
    first.with_suffix(".txt").write_text("old words,", "utf-8")

    def offered(**options: str) -> dict[Path, CaptionChange]:
        made = proposals(request(images, **options), folder)
        return {each.target.image: each.change for each in made if isinstance(each, Proposal)}

    assert {*offered()} == set(images[2:])
    added = offered(existing="append", prefix="art of ", trigger="zyx")
    assert added[first].before == "old words," and added[first].after == f"zyx, old words, art of {texts[str(first)]}"
    assert added[third] == CaptionChange(third.with_suffix(".txt"), None, f"zyx, art of {texts[str(third)]}")
    # once it is written, the same request changes nothing more
    options = CaptionOptions(model="m", existing="append", prefix="art of ", trigger="zyx")
    assert new_caption(texts[str(first)], added[first].after, options) == added[first].after
    folder.choose({str(third): {"text": " by hand "}, str(first): {"left": True}})
    made = [each for each in proposals(request(images, existing="replace"), folder) if isinstance(each, Proposal)]
    assert [(each.new, each.edited) for each in made if each.target.image == third] == [("by hand", True)]
    assert [each.target.image for each in made if each.left] == [first]
