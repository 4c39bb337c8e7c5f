"""Two processes train together: to the bits of one that accumulates, from a state of it, until one is killed."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from backend.base.errors import Failed
from backend.config.schema import Config
from backend.config.toml_io import dump
from backend.runs.control import Control
from backend.runs.folder import Run
from backend.runs.state_folder import newest_state
from backend.training.between_steps import BetweenSteps
from backend.training.expected_memory import FILE
from backend.training.ranks.group import Ranks
from tests.tiny.training import config, events, lora_of, rows, same, state_of, train_here

CPU = torch.device("cpu")
FORK = "fork" if "fork" in multiprocessing.get_all_start_methods() else None


def settings(base: Path, images: Path, where: Path, processes: int) -> Config:
    """Two batches a step, over the border of an epoch (7 pictures), with all that is drawn or kept besides weights."""
    return config(
        base, images, where,
        network={"network_dropout": 0.3, "module_dropout": 0.1},
        dataset={"caption_dropout_rate": 0.3},
        timesteps={"stratified": True},
        training={"max_train_steps": 6, "num_processes": processes, "ema": True,
                  "gradient_accumulation_steps": 2 // processes},
        saving={"save_every_n_steps": 2},
    )  # fmt: skip


def other_process() -> psutil.Process:
    (other,) = [each for each in psutil.Process().children() if "backend.training.ranks" in each.cmdline()]
    return other


def position(run: Run) -> dict[str, Any]:
    state = newest_state(run.state_dir)
    assert state is not None
    values = json.loads((state / "position.json").read_text())["position"]
    return {name: value for name, value in values.items() if name != "seconds"}


def test_two_processes_are_one_that_accumulates(
    tiny_flux: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder.joinpath("picture_7.png").unlink()
    one, two = (settings(tiny_flux, image_folder, tmp_path, processes) for processes in (1, 2))
    after_step = BetweenSteps.after_step
    straight, killed = Run.create(one), []

    def end(self: BetweenSteps, ended: range) -> None:
        after_step(self, ended)
        if self.position().step == 4 and straight.status().active:
            Control(straight).request("stop")
        elif self.position().step == 4:
            other_process().kill()
            killed.append(time.monotonic())

    monkeypatch.setattr(BetweenSteps, "after_step", end)
    _, code = train_here(one, straight)
    assert code == 0 and events(straight, "stopped")[0]["step"] == 4, events(straight, "error")

    run = Run(shutil.copytree(straight.path, straight.path.with_name("two")))
    shutil.rmtree(run.state_dir / "step-00000004")
    dump(two, run.config_path, whole=True)
    _, code = train_here(two, run, resume=True)
    seconds = time.monotonic() - killed[0]
    (error,) = events(run, "error")
    assert code == 1 and "Process 1" in error["text"] and "log.rank1.txt" in error["text"], error
    assert "The LoRA of step 4 is kept" in error["text"] and seconds < 20, (error, seconds)
    assert not psutil.Process().children(recursive=True)
    assert "Process 1 of 2 is ready" in (run.path / "log.rank1.txt").read_text()
    assert FILE not in (run.path / "log.rank1.txt").read_text()
    assert events(run, "resumed")[-1]["step"] == 2
    assert any("by 1 process when" in each["text"] for each in events(run, "warning"))

    assert run.status().resumable and position(run) == position(straight)
    assert same(*(lora_of(each, "tiny-step00000004.safetensors") for each in (run, straight)))
    # a step seeds the generators that `rng` holds
    assert same(*({**state_of(each), "rng": None} for each in (run, straight)))
    for column in ("step", "loss", "loss_smooth", "lr", "grad_norm", "epoch"):
        assert [row[column] for row in rows(run)] == [row[column] for row in rows(straight)], column


def exchange(ranks: Ranks, store: str, words: list[str]) -> list[Any]:
    """What a process sees of some exchanges. words: what it trains, and how it computes."""
    ranks.join(store, CPU, *words, check=lambda: None)
    weights = [nn.Parameter(torch.full((3,), float(ranks.rank))) for _ in range(3)]
    weights[0].grad = torch.full((3,), 2.0 * ranks.rank)
    if not ranks.is_first:
        weights[1].grad = torch.ones(3)
    ranks.average(weights)
    seen: list[Any] = [None if weight.grad is None else weight.grad.tolist() for weight in weights]
    seen += [ranks.compare(weights), ranks.compare(weights), weights[0].tolist()]
    for stop, ended in ((False, False), (ranks.is_first, False), (False, ranks.is_first)):
        ranks.agree(stop, ended)
        seen.append((ranks.stop, ranks.ended))
    ranks.leave()
    return seen


def other(store: str, words: list[str], answer: Any) -> None:
    try:
        answer.send(exchange(Ranks(rank=1, count=2), store, words))
    except Failed as failed:
        answer.send(str(failed))


@pytest.mark.skipif(FORK is None, reason="the other process is a copy of this one")
def test_gradients_weights_and_decisions_are_the_same_in_all(tmp_path: Path) -> None:
    def both(name: str, *words: str) -> tuple[Any, Any]:
        """words: of the other process, where they differ from this one's."""
        context = multiprocessing.get_context(FORK)
        mine, theirs = context.Pipe()
        own = ["foxes", "on cuda in bfloat16"]
        process = context.Process(target=other, args=(str(tmp_path / name), [*words, *own[len(words) :]], theirs))
        process.start()
        try:
            first = exchange(Ranks(count=2), str(tmp_path / name), own)
        except Failed as failed:
            first = str(failed)
        second = mine.recv() if mine.poll(20) else None
        process.join()
        return first, second

    first, second = both("same")
    # the second process alone reached one weight, and none of them the last
    assert first[:3] == second[:3] == [[1.0] * 3, [0.5] * 3, None]
    assert first[3:] == second[3:] == [False, True, [0.0] * 3, (False, False), (True, False), (False, True)]
    assert "other pictures or another base model" in both("images", "wolves")[0]
    text = both("gpus", "foxes", "on cpu in float32")[0]
    assert "Process 1 computes on cpu in float32, and process 0 on cuda in bfloat16." in text
    assert "CUDA_VISIBLE_DEVICES" in text
