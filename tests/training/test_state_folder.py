"""A resume state survives what a disk can do: a power cut at every call, no room, read only, a byte that flips."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from backend.base.errors import DiskFull, Refused, WriteFailed
from backend.optimizers.build import make_optimizer
from backend.runs.state_folder import damage, newest_whole_state, stand_on
from backend.training.checkpoint import Fingerprint, Position, load_state, save_state

PRINT = Fingerprint(rank=4, alpha=4.0, targets=("a",), optimizer="adamw", data="d1")
CALLS = ("open", "fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "link")
WRITES = (errno.ENOSPC, errno.EROFS)


class PowerCut(BaseException):
    """The machine is off: nothing after it reaches the disk."""


class Disk:
    """Every call that changes a file below `folder`, counted; from `call` on they fail as `failure` says.

    A PowerCut also takes what was written and not flushed; an OSError leaves what only removes files working, except
    on a disk that can only be read.
    """

    def __init__(self, folder: Path, call: int | None = None, failure: BaseException | None = None) -> None:
        self.folder, self.call, self.failure = folder, call, failure
        self.calls = 0
        self.flushed: set[int] = set()

    @contextlib.contextmanager
    def attached(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._watched(name, getattr(os, name)))
            patch.setattr(io, "open", self._watched("write", io.open))
            patch.setattr("builtins.open", self._watched("write", open))
            patch.setattr(torch, "save", self._watched("write", torch.save, at=1))
            patch.setattr(safetensors.torch, "save_file", self._watched("write", safetensors.torch.save_file, at=1))
            yield self

    def _watched(self, name: str, real: Callable, at: int = 0) -> Callable:
        def call(*arguments: object, **named: object) -> object:
            if not self._is_ours(name, arguments, at):
                return real(*arguments, **named)
            self.calls += 1
            if self.call is not None and self.calls >= self.call:
                self._fail(name, arguments, at)
            result = real(*arguments, **named)
            if name == "fsync":
                self.flushed.add(os.fstat(arguments[0]).st_ino)
            return result

        return call

    def _is_ours(self, name: str, arguments: tuple, at: int) -> bool:
        if name == "fsync":
            return True
        return str(arguments[at]).startswith(str(self.folder)) and (name != "open" or not arguments[1] & os.O_DIRECTORY)

    def _fail(self, name: str, arguments: tuple, at: int) -> None:
        if isinstance(self.failure, PowerCut):
            if self.calls == self.call:
                self._lose_what_was_not_flushed()
            raise self.failure
        removes = name in ("unlink", "rmdir") or (name == "open" and not arguments[1] & (os.O_RDWR | os.O_WRONLY))
        reads = name == "write" and at == 0 and "r" in (arguments[1] if len(arguments) > 1 else "r")
        if reads or (removes and self.failure.errno == errno.ENOSPC):
            return
        raise OSError(self.failure.errno, os.strerror(self.failure.errno), str(arguments[at]))

    def _lose_what_was_not_flushed(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.flushed and path.stat().st_ino not in self.before:
                os.truncate(path, path.stat().st_size // 2)

    def saves(self, small: Small, step: int) -> None:
        self.before = {path.stat().st_ino for path in self.folder.rglob("*")}
        with self.attached():
            small.save(self.folder, step)


class Small:
    """A LoRA of one layer with an optimizer; its weights tell the step."""

    def __init__(self) -> None:
        from tests.tiny.lora import trained

        _, self.lora = trained(targets=("attn.to_q",))
        self.optimizer = make_optimizer(
            "adamw", self.lora.parameters(), learning_rate=1e-2, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8
        )
        self.parts = {"optimizer": self.optimizer}
        self._fill(0)
        for parameter in self.lora.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()

    def save(self, folder: Path, step: int) -> Path:
        self._fill(step)
        return save_state(folder, Position(step=step), self.lora, self.parts, PRINT)

    def resume(self, folder: Path) -> int:
        """Resume from the newest whole state; its step."""
        self._fill(-1)
        state = newest_whole_state(folder)
        assert state is not None
        step = load_state(state.path, self.lora, self.parts, PRINT).step
        assert all((parameter == step).all() for parameter in self.lora.parameters())
        stand_on(state.path)
        return step

    def _fill(self, value: float) -> None:
        with torch.no_grad():
            for parameter in self.lora.parameters():
                parameter.fill_(value)


@pytest.fixture(scope="module")
def small() -> Small:
    return Small()


@pytest.fixture
def states(small: Small, tmp_path: Path) -> Path:
    """Two generations, as in the middle of a run."""
    for step in (1, 2):
        small.save(tmp_path / "state", step)
    return tmp_path / "state"


def each_call(small: Small, states: Path, tmp_path: Path, failure: BaseException) -> Iterator[tuple[Path, bool]]:
    """A copy of the states after the save of step 3 met `failure` at its first call, its second, and so on."""
    count = Disk(shutil.copytree(states, tmp_path / "count"))
    count.saves(small, 3)
    assert count.calls > 30, "the calls of a save are counted"
    for call in range(1, count.calls + 1):
        folder = shutil.copytree(states, tmp_path / f"{call}")
        raised = False
        try:
            Disk(folder, call, failure).saves(small, 3)
        except (PowerCut, WriteFailed):
            raised = True
        yield folder, raised


def test_a_power_cut_at_every_call_of_a_save_leaves_a_whole_state(small: Small, states: Path, tmp_path: Path) -> None:
    seen = set()
    for folder, raised in each_call(small, states, tmp_path, PowerCut()):
        assert raised
        seen.add(step := small.resume(folder))
        # and the run saves as before
        assert small.save(folder, 4) and small.resume(folder) == 4, step
        assert len(list(folder.glob("step-*"))) == 2 and not list(folder.glob("*.part"))
    assert seen == {2, 3}


@pytest.mark.parametrize("number", WRITES)
def test_a_full_or_read_only_disk_at_every_call_is_told_and_leaves_a_whole_state(
    number: int, small: Small, states: Path, tmp_path: Path
) -> None:
    count = 0
    for folder, raised in each_call(small, states, tmp_path, OSError(number, "")):
        count += raised
        assert small.resume(folder) == (2 if raised else 3)
        if number == errno.ENOSPC:
            assert not list(folder.rglob(".*.part")), "what was begun is removed"
    assert count > 15


def test_without_room_for_a_third_state_the_older_one_goes(
    small: Small, states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.save

    def save(data: object, path: Path) -> None:
        if len(list(states.glob("step-*"))) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(data, path)

    monkeypatch.setattr(torch, "save", save)
    small.save(states, 3)
    assert small.resume(states) == 3 and len(list(states.glob("step-*"))) == 2
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    with pytest.raises(DiskFull):
        small.save(states, 4)
    assert small.resume(states) == 3


@pytest.mark.parametrize(
    "name", ["lora.safetensors", "optimizer.pt", "rng.pt", "position.json", "manifest.json", "latest"]
)
def test_a_flipped_byte_and_a_lost_end_are_told_and_the_older_state_is_taken(
    name: str, small: Small, states: Path
) -> None:
    path = states / name if name == "latest" else states / "step-00000002" / name
    data = path.read_bytes()
    for broken in (data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :], data[:-9]):
        path.write_bytes(broken)
        newest = newest_whole_state(states)
        assert newest is not None
        if name == "latest":
            assert newest.path.name == "step-00000002" and not newest.damaged
        else:
            assert newest.path.name == "step-00000001" and name in newest.damaged[path.parent]
    path.unlink()
    assert newest_whole_state(states).path.name == ("step-00000002" if name == "latest" else "step-00000001")
    if name != "latest":
        # the next save keeps the one that was resumed from, and not the damaged one
        assert small.resume(states) == 1
        small.save(states, 2)
        assert sorted(state.name[:13] for state in states.glob("step-*")) == ["step-00000001", "step-00000002"]
        assert all(damage(state) is None for state in states.glob("step-*")) and small.resume(states) == 2


def test_with_every_state_damaged_each_is_named(states: Path) -> None:
    for state in states.glob("step-*"):
        (state / "optimizer.pt").write_bytes(b"")
    with pytest.raises(Refused, match=r"step-00000002.*step-00000001.*network_weights"):
        newest_whole_state(states)


def test_states_of_before_there_were_manifests_resume_and_give_way(small: Small, states: Path) -> None:
    shutil.rmtree(states / "step-00000001")
    old = states / "step-00000002"
    (old / "manifest.json").unlink()
    text = (old / "position.json").read_text()
    (old / "position.json").write_text(text.replace(',\n "manifest": true', ""))
    assert "manifest" not in (old / "position.json").read_text() and small.resume(states) == 2
    small.save(states, 3)
    assert old.is_dir() and small.resume(states) == 3
    small.save(states, 4)
    assert not old.is_dir() and small.resume(states) == 4
