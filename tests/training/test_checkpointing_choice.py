"""What checkpointing keeps of a video model: chosen by the memory that is left, told, and kept over a resume."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config import presets
from backend.config.checkpointing import checkpointing_of, may_keep_attention
from backend.config.schema import Config, with_values
from backend.plan.memory.changes import LESS_VRAM
from backend.plan.memory.machine import Gpu
from backend.plan.memory.nearest import Search
from backend.plan.memory.plan import memory_plan
from backend.plan.memory.report import headline
from backend.plan.memory.settings import MemorySettings, memory_settings
from backend.plan.memory.work import RunWork
from backend.runs.control import Control
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.training import prepare
from backend.training.checkpointing_choice import with_checkpointing
from backend.training.expected_memory import ExpectedMemory
from backend.training.inputs import Inputs
from backend.training.requests import Requests, StopRequested
from backend.training.run_context import RunContext
from tests.tiny.event_lines import event_lines
from tests.tiny.full_size import full_size
from tests.tiny.training import family_config

KIND = "memory.checkpointing_kind"


@dataclass(frozen=True, kw_only=True)
class Start:
    """No more of a run's inputs than the choice reads."""

    cfg: Config
    resolved_memory: MemorySettings | None
    expected: None = None


@pytest.fixture
def wan(tmp_path: Path) -> Config:
    loaded = presets.load(presets.find("wan-1.3b-16gb")).config
    assert loaded is not None
    paths = {f"model.{key}": path for key, path in full_size("wan-1.3b", tmp_path).items()}
    return with_values(loaded, paths | {"training.gradient_checkpointing": True, KIND: "auto"})


def test_auto_keeps_attention_where_there_is_room_and_says_so(wan: Config) -> None:
    def planned(gigabytes: float, **values: Any) -> tuple[str, str, int]:
        plan = memory_plan(
            with_values(wan, {name.replace("__", "."): v for name, v in values.items()}), vram_gb=gigabytes
        )
        assert plan is not None and plan[0].settings is not None
        return plan[0].settings.way.checkpointing, headline(plan[0]), plan[0].peak.total

    kind, text, large = planned(48)
    assert kind == "attention" and "Attention's results are kept" in text
    assert (kind, large) == (planned(48, memory__checkpointing_kind="attention")[0], large)
    edge = large / 0.85 / 2**30
    assert planned(edge + 0.1)[0] == "attention"
    kind, text, small = planned(edge - 0.1)
    assert kind == "graph" and small < large and "Attention" not in text
    for set_by_a_person in ({"compile__compile": False}, {"memory__activation_memory_budget": 0.5}):
        assert planned(48, **set_by_a_person)[0] != "attention"
    assert planned(48, memory__checkpointing_kind="block")[0] == "block"
    assert not may_keep_attention(with_values(wan, {"model.family": "flux"})), "attention is little of an image"
    offered = [change.values for make in LESS_VRAM for change in make(wan, None)]
    assert {KIND: "block"} in offered, "what auto would not choose again"


def test_a_run_is_prepared_with_the_choice(
    tiny_wan: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the room of a GPU that is only named; what loads the model reads the settings with the choice."""

    def of(cfg: Config, work: RunWork, device: torch.device) -> ExpectedMemory:
        search = Search(cfg, work, Gpu("a large one", 48 << 30, 48 << 30, real=False))
        estimate = search.after({})
        assert estimate is not None
        return ExpectedMemory(search=search, estimate=estimate)

    def encode(inputs: Inputs, *rest: object) -> None:
        seen.append((inputs.cfg.memory.checkpointing_kind, checkpointing_of(inputs.cfg)))
        raise StopRequested

    seen: list[Any] = []
    monkeypatch.setattr(ExpectedMemory, "of", of)
    monkeypatch.setattr(prepare, "encode", encode)
    compiled = {"compile": True, "compile_backend": "aot_eager_decomp_partition", "compile_cache_dir": str(tmp_path)}
    checkpointed = {"training": {"gradient_checkpointing": True}}
    cfg = family_config("wan", tiny_wan, image_folder, tmp_path, compile=compiled, **checkpointed)
    run = Run.create(cfg)
    with pytest.raises(StopRequested), ExitStack() as stack:
        prepare.prepare(run, cfg, EventWriter(run), Requests(Control(run)), False, stack)
    assert seen == [("attention", "attention")] and run.record()["checkpointing"] == "attention"


def test_a_resume_keeps_what_the_run_began_with(wan: Config, tmp_path: Path) -> None:
    run = Run.create_empty(tmp_path, "toy")
    context = RunContext(run=run, events=EventWriter(run), requests=None, stack=ExitStack(), started=0.0)
    usual = memory_settings(wan, on_gpu=True)

    def kind_of(fits: bool, resumed: bool, cfg: Config = wan) -> str:
        start: Any = Start(cfg=cfg, resolved_memory=usual.keeping_attention() if fits else usual)
        return with_checkpointing(context, start, resumed).cfg.memory.checkpointing_kind

    assert kind_of(fits=True, resumed=True) == "auto", "begun before there was a choice"
    assert kind_of(fits=True, resumed=False) == "attention" == run.record()["checkpointing"]
    assert kind_of(fits=True, resumed=True) == "attention" and not event_lines(run)
    assert kind_of(fits=False, resumed=True) == "attention"
    (warning,) = event_lines(run)
    assert "less memory is free now" in warning["text"] and "checkpointing_kind to block" in warning["remedy"]
    assert kind_of(fits=False, resumed=True, cfg=with_values(wan, {KIND: "block"})) == "block", "settings come first"
    assert kind_of(fits=False, resumed=False) == "auto" and run.record()["checkpointing"] == "graph"
    assert kind_of(fits=True, resumed=True) == "auto"
