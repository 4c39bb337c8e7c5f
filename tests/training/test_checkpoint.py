"""The resume state: exact, whole, and never in the way of the one before."""

from __future__ import annotations

import errno
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.base.errors import DiskFull, Refused
from backend.lora.inject import Lora
from backend.optimizers.build import make_optimizer
from backend.optimizers.schedules import make_scheduler
from backend.runs.state_folder import newest_whole_state
from backend.training.checkpoint import Fingerprint, Position, load_state, save_state
from tests.tiny.lora import inputs, trained

PRINT = Fingerprint(rank=4, alpha=4.0, targets=("a", "b"), optimizer="adamw", data="d1")
USUAL = {"learning_rate": 1e-2, "weight_decay": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}


class Small:
    """A LoRA with optimizer and schedule that can be stepped."""

    def __init__(self) -> None:
        self.model, self.lora = trained(targets=("attn.to_q",))
        self.optimizer = make_optimizer("adamw", self.lora.parameters(), **USUAL)
        self.scheduler = make_scheduler("cosine", self.optimizer, total_steps=10, warmup=2)
        self.parts = {"optimizer": self.optimizer, "scheduler": self.scheduler}

    def backward(self) -> None:
        noise = torch.randn(1) + random.random() + np.random.rand()
        ((self.model(**inputs()).sample * noise.float()) ** 2).mean().backward()

    def step(self) -> None:
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()


def latest_state(folder: Path) -> Path | None:
    """The newest state that is whole."""
    state = newest_whole_state(folder)
    return state and state.path


def same(a: Lora, b: Lora) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True))


def test_a_state_in_the_middle_of_an_accumulation_goes_on_bit_by_bit(tmp_path: Path) -> None:
    straight = Small()
    for number in range(6):
        straight.backward()
        if number % 2:
            straight.step()
        if number == 2:
            save_state(
                tmp_path,
                Position(step=1, micro=1, epoch=3, batch=2, loss_sum=0.25),
                straight.lora,
                straight.parts,
                PRINT,
            )
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    resumed = Small()
    state = latest_state(tmp_path)
    assert state is not None and state.name == "step-00000001+1"
    position = load_state(state, resumed.lora, resumed.parts, PRINT)
    assert position == Position(step=1, micro=1, epoch=3, batch=2, loss_sum=0.25)
    resumed.step_from = 3
    for number in range(3, 6):
        resumed.backward()
        if number % 2:
            resumed.step()
    assert same(straight.lora, resumed.lora)
    assert straight.scheduler.get_last_lr() == resumed.scheduler.get_last_lr()
    for mine, theirs in zip(
        straight.optimizer.state_dict()["state"].values(), resumed.optimizer.state_dict()["state"].values(), strict=True
    ):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_the_newest_two_are_kept_and_nothing_is_overwritten(tmp_path: Path) -> None:
    small = Small()
    first = save_state(tmp_path, Position(step=1), small.lora, small.parts, PRINT)
    again = save_state(tmp_path, Position(step=1), small.lora, small.parts, PRINT)
    assert again != first and first.exists() and latest_state(tmp_path) == again
    second = save_state(tmp_path, Position(step=2), small.lora, small.parts, PRINT)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", again.name, second.name]


@pytest.mark.parametrize("torn", ["", "step-99", "../elsewhere", None])
def test_a_torn_pointer_costs_nothing(tmp_path: Path, torn: str | None) -> None:
    small = Small()
    state = save_state(tmp_path, Position(step=7), small.lora, small.parts, PRINT)
    (tmp_path / "latest").unlink() if torn is None else (tmp_path / "latest").write_text(torn)
    (tmp_path / ".step-00000009.123.part").mkdir()
    (tmp_path / "step-00000008").mkdir()
    assert latest_state(tmp_path) == state
    assert not list(tmp_path.glob(".step-*"))


@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_a_full_disk_is_told_wherever_it_shows(tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Small()
    state = save_state(tmp_path, Position(step=1), small.lora, small.parts, PRINT)
    real = getattr(os, call)

    def full(path: object, *more: object, **named: object) -> object:
        if "step-00000002" in Path(str(path)).name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *more, **named)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DiskFull, match="step-00000002"):
        save_state(tmp_path, Position(step=2), small.lora, small.parts, PRINT)
    assert latest_state(tmp_path) == state
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", state.name]


def test_a_full_disk_leaves_the_state_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Small()
    state = save_state(tmp_path, Position(step=1), small.lora, small.parts, PRINT)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(DiskFull):
        save_state(tmp_path, Position(step=2), small.lora, small.parts, PRINT)
    assert latest_state(tmp_path) == state
    assert sorted(p.name for p in tmp_path.iterdir()) == ["latest", state.name]


def test_what_does_not_belong_together_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = Small()
    state = save_state(tmp_path, Position(), small.lora, small.parts, PRINT)
    for other, words in (
        (Fingerprint(rank=8, alpha=4.0, targets=("a", "b"), optimizer="adamw", data="d1"), "network_dim"),
        (Fingerprint(rank=4, alpha=8.0, targets=("a", "b"), optimizer="adamw", data="d1"), "network_alpha"),
        (Fingerprint(rank=4, alpha=4.0, targets=("a",), optimizer="adamw", data="d1"), "targets"),
        (Fingerprint(rank=4, alpha=4.0, targets=("a", "b"), optimizer="sgd", data="d1"), "optimizer"),
        (
            Fingerprint(rank=4, alpha=4.0, targets=("a", "b"), optimizer="adamw", data="d1", loraplus="on"),
            "loraplus_lr_ratio .off, now on",
        ),
    ):
        with pytest.raises(Refused, match=words):
            load_state(state, small.lora, small.parts, other)
    load_state(
        state,
        small.lora,
        small.parts,
        Fingerprint(rank=4, alpha=4.0, targets=("a", "b"), optimizer="adamw", data="other pictures"),
    )
    assert "images, captions or masks changed" in caplog.text and "kept as" not in caplog.text
    parts = {"images": "1", "captions": "1", "masks": "", "augmentation": ""}
    with_parts = save_state(tmp_path / "new", Position(), small.lora, small.parts, replace(PRINT, parts=parts))
    for changed, words in (
        ({}, ""),
        ({"masks": "2"}, "The masks of the training images changed since"),
        ({"captions": "2", "masks": "2", "augmentation": "2"}, "The captions, masks and augmentation of the training"),
        ({"images": "2", "captions": "2"}, "The training images and captions changed since"),
    ):
        caplog.clear()
        now = replace(PRINT, data="d2" if changed else "d1", parts=parts | changed)
        load_state(with_parts, small.lora, small.parts, now)
        assert words in caplog.text if words else not caplog.text
    load_state(
        state,
        small.lora,
        small.parts,
        Fingerprint(rank=4, alpha=4.0, targets=("a", "b"), optimizer="adamw", data="d1", base="int8 int8"),
    )
    assert "kept as none, multiplied in bf16 when the run stopped, and is kept as int8, multiplied" in caplog.text
    # a state of before there were manifests and LoRA+ resumes too, of a run without LoRA+
    (state / "manifest.json").unlink()
    words = json.loads((state / "position.json").read_text())
    assert words["fingerprint"].pop("loraplus") == "off" and words.pop("manifest")
    (state / "position.json").write_text(json.dumps(words))
    assert latest_state(tmp_path) == state
    load_state(state, small.lora, small.parts, PRINT)
    (state / "lora.safetensors").write_bytes(b"half")
    with pytest.raises(Refused, match="can't be used"):
        load_state(state, small.lora, small.parts, PRINT)
    (state / "position.json").write_text("{")
    with pytest.raises(Refused, match="can't be read"):
        load_state(state, small.lora, small.parts, PRINT)
