"""The loss of each picture at three times of a run: measured once, the same after a resume, and judged by a rule."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.runs.picture_table import FILE, PictureId, PictureTable, read_table, write_table
from backend.runs.picture_verdicts import results_of, verdict_of
from backend.training.picture_losses import PictureLosses
from backend.training.position import Position
from backend.training.requests import Requests
from backend.training.validation import Example, ValidationLoss
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, same, train_here

EACH = {"picture_losses": True, "validation_sigmas": [0.05]}


def with_usual_latents(base: Path, where: Path) -> Path:
    """The tiny FLUX with latents of about unit variance, as real ones have: a loss then tells pictures apart."""
    shutil.copytree(base, where)
    file = where / "vae" / "config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "scaling_factor": 8 * settings["scaling_factor"], "shift_factor": 0.0}))
    return where


def alike_but_one(folder: Path) -> Path:
    """Six pictures that differ in brightness, and one in opposite colours that has their caption."""
    folder.mkdir()
    squares = np.random.default_rng(1).integers(0, 256, (4, 4, 3)).repeat(16, 0).repeat(16, 1)
    shades = {f"alike_{number}": (squares + 4 * number).clip(0, 255) for number in range(6)}
    for name, pixels in (shades | {"wrong": 255 - squares}).items():
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{name}.png")
        (folder / f"{name}.txt").write_text("a red ring")
    return folder


def test_a_picture_with_a_wrong_caption_is_named_among_those_that_were_learnt(tiny_flux: Path, tmp_path: Path) -> None:
    base = with_usual_latents(tiny_flux, tmp_path / "base")
    cfg = config(base, alike_but_one(tmp_path / "images"), tmp_path, validation=EACH, training={"max_train_steps": 16})
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    table = read_table(run)
    assert table is not None and table.steps == {"start": 0, "middle": 8, "end": 16}
    results = {Path(result.picture.path).stem: result for result in results_of(table)}
    verdicts = {name: result.verdict for name, result in results.items()}
    assert verdicts == {**{f"alike_{number}": "learnt" for number in range(6)}, "wrong": "not_learnt"}
    for name, result in results.items():
        start, end = result.losses["start"], result.losses["end"]
        assert start and end and result.fall == pytest.approx((start - end) / start) and result.newest == end, name
    assert results["wrong"].fall < results["alike_0"].fall / 3


def test_a_resumed_run_measures_what_lacks_and_trains_the_same(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(tiny_flux, image_folder, tmp_path, validation=EACH, dataset={"validation_split": 0.25})
    straight, code = train_here(cfg)
    assert code == 0, events(straight, "error")
    table = read_table(straight)
    assert table is not None and {picture.set for picture in table.losses} == {"", "held out"}
    assert len(table.losses) == 8 and all(len(losses) == 3 for losses in table.losses.values())
    looks = []

    def stop(self: Requests) -> bool:
        looks.append(1)
        # eight pictures, three steps, and two of the pictures in the middle
        return len(looks) > 13

    monkeypatch.setattr(Requests, "stop", property(stop))
    monkeypatch.setattr(Requests, "check", lambda self: None)
    run, code = train_here(cfg)
    monkeypatch.undo()
    assert code == 0 and run.status().state == "stopped" and run.status().step == 3
    before = read_table(run)
    assert before is not None and before.steps == {"start": 0}
    assert train_here(cfg, run, resume=True)[1] == 0, events(run, "error")
    assert [(event["step"], event["moment"]) for event in events(run, "picture_losses")] == [
        (0, "start"), (3, "middle"), (6, "end"),
    ]  # fmt: skip
    assert read_table(run) == table
    # measuring changes nothing of the training
    plain, _ = train_here(config(tiny_flux, image_folder, tmp_path, dataset={"validation_split": 0.25}))
    assert same(lora_of(plain), lora_of(straight)) and same(lora_of(run), lora_of(straight))
    assert [row["loss"] for row in rows(plain)] == [row["loss"] for row in rows(straight)]
    assert read_table(plain) is None


def test_each_size_is_measured_in_a_graph_that_the_plan_counts(tiny_flux: Path, tmp_path: Path) -> None:
    """Where each size has a graph of its own, each training size is also one without gradient."""
    images = draw_pictures(tmp_path / "images", ((64, 64), (96, 64)))
    cfg = config(
        tiny_flux, images, tmp_path, validation=EACH, training={"max_train_steps": 4},
        network={"network_dim": 4, "targets_include": ["attn.to_q", "proj_mlp"]},
        compile={"compile": True, "compile_backend": "eager", "shape_mode": "off",
                 "compile_dynamic": "false", "compile_blocks": [{"blocks": "double", "compile": False}]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    (plan,) = events(run, "plan")
    graphs, last = plan["graphs"], rows(run)[-1]
    assert graphs["no_grad"] == graphs["training"] > 1
    assert (last["graphs"], last["recompiles"], last["breaks"]) == (graphs["planned"], 0, 0)
    (cost,) = [finding for finding in plan["findings"] if finding["kind"] == "picture_losses"]
    # 3 times 2 pictures; 4 steps, whose blocks are computed twice and go backward
    assert "6 passes" in cost["text"] and "add 37.5%" in cost["text"] and "count as 4" in cost["text"]


def measuring(run: Run, step: int, micro: int = 0, **more: object) -> tuple[PictureLosses, list[int]]:
    """What measures one picture of a run at a position, and the steps at which it did."""
    measured: list[int] = []

    def measure(examples: object) -> ValidationLoss:
        measured.append(step)
        return ValidationLoss((0.5,))

    return PictureLosses(
        run=run, events=EventWriter(run), requests=Requests(Control(run)), total_steps=10, measures=[measure],
        position=lambda: Position(step=step, micro=micro), pictures=[PictureId("", "key", "a.png")],
        read=lambda: [Example(key="", latent=None, text={})], to_use=nullcontext, how={"seed": 1, **more},  # type: ignore[arg-type]
    ), measured  # fmt: skip


def test_a_run_that_goes_back_forgets_what_it_measured_later(tmp_path: Path) -> None:
    run = Run.create_empty(tmp_path, "run")
    picture = PictureId("", "key", "a.png")
    table = PictureTable({"seed": 1}).with_moment("start", 0, {picture: 2.0}).with_moment("middle", 5, {picture: 1.0})
    write_table(run, table)
    assert read_table(run) == table
    for step, micro, left, times in ((7, 0, 2, 0), (5, 0, 2, 0), (4, 0, 1, 0), (5, 1, 1, 0), (5, 0, 2, 1)):
        each, measured = measuring(run, step, micro)
        each.at_start()
        known = read_table(run)
        assert known is not None and (len(known.steps), len(measured)) == (left, times), step
    # other noise is another measurement
    measuring(run, 10, seed=2)[0].at_end()
    known = read_table(run)
    assert known is not None and known.steps == {"end": 10} and results_of(known)[0].verdict is None
    (run.path / FILE).write_text("{}\n")
    assert read_table(run) is None


def test_each_of_two_experts_measures_all_pictures_in_a_row(tmp_path: Path) -> None:
    """A change of experts moves a whole model. The loss is the mean over the noise levels of both."""
    run, order = Run.create_empty(tmp_path, "run"), []
    each, _ = measuring(run, 10)
    each.pictures = [PictureId("", "a", "a.png"), PictureId("", "b", "b.png")]
    each.read = lambda: [Example(key=name, latent=None, text={}) for name in "ab"]  # type: ignore[arg-type]

    def expert(name: str, *losses: float) -> Callable[[Iterable[Example]], ValidationLoss]:
        def measure(examples: Iterable[Example]) -> ValidationLoss:
            order.extend(name + example.key for example in examples)
            return ValidationLoss(losses)

        return measure

    each.measures = [expert("high ", 0.5), expert("low ", 0.25, 0.0)]
    each.at_end()
    known = read_table(run)
    assert order == ["high a", "high b", "low a", "low b"]
    assert known is not None and [losses["end"] for losses in known.losses.values()] == [0.25, 0.25]


@pytest.mark.parametrize(
    ("fall", "others", "held_out", "verdict"),
    [
        (-0.02, [0.1] * 6, [], "rose"),
        (0.004, [0.004] * 6, [], "not_learnt"),
        (0.03, [0.1] * 6, [], "not_learnt"),
        (0.05, [0.1] * 6, [], "learnt"),
        (0.3, [0.1, 0.11, 0.12, 0.1, 0.09], [], "memorised"),
        # too few pictures to say what is usual
        (0.3, [0.1, 0.11], [], "learnt"),
        (0.12, [0.1, 0.11, 0.12, 0.1, 0.09], [], "learnt"),
        (0.12, [0.1, 0.11, 0.12, 0.1, 0.09], [0.01, 0.05, 0.02], "memorised"),
        (0.12, [0.1, 0.11, 0.12, 0.1, 0.09], [0.01, 0.07, 0.02], "learnt"),
        (0.12, [0.1, 0.11, 0.12, 0.1, 0.09], [0.01, 0.02], "learnt"),
        (0.09, [0.09] * 6, [-0.1, -0.1, -0.1], "learnt"),
    ],
)
def test_the_rule_of_verdicts(fall: float, others: list[float], held_out: list[float], verdict: str) -> None:
    assert verdict_of(fall, [fall, *others], held_out) == verdict
