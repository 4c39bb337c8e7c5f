"""How 8-bit products are computed stays over a resume, whatever memory is free and whatever a measurement says."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config.schema import Config, with_values
from backend.memory import product_ways
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.training.product_choice import with_products
from backend.training.run_context import RunContext
from tests.tiny.event_lines import event_lines


@dataclass(frozen=True, kw_only=True)
class Start:
    """No more of a run's inputs than the choice reads."""

    cfg: Config
    auto_products: str
    device: torch.device = torch.device("cuda")
    product_way: str | None = None


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    run = Run.create_empty(tmp_path, "toy")
    return RunContext(run=run, events=EventWriter(run), requests=None, stack=ExitStack(), started=0.0)


def start(auto: str, **values: Any) -> Any:
    values = {"base_compute": "fp8"} | values
    return Start(cfg=with_values(Config(), {f"memory.{k}": v for k, v in values.items()}), auto_products=auto)


def test_a_resume_keeps_copies_and_kernel(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = ["H200"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpu[0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(product_ways, "fp8_kernel", lambda device: "scaled")
    assert with_products(context, start("fast"), resumed=False).product_way == "fast-scaled"
    assert product_ways.way_of("fp8", "fast-scaled", torch.device("cuda")) == product_ways.WAYS["fp8"]["fast"]
    assert not event_lines(context.run)
    monkeypatch.setattr(product_ways, "fp8_kernel", lambda device: "rowwise")
    assert with_products(context, start("small"), resumed=True).product_way == "fast-scaled"
    (warning,) = event_lines(context.run)
    assert "less memory is free now" in warning["text"] and "base_products to small" in warning["remedy"]
    gpu[0] = "another"
    assert with_products(context, start("fast"), resumed=True).product_way == "fast-rowwise", "its own kernel"
    asked = start("small", base_products="small")
    assert with_products(context, asked, resumed=True).product_way == "small-rowwise", "settings come first"
    assert with_products(context, start("fast"), resumed=True).product_way == "small-rowwise"
    assert with_products(context, start("fast"), resumed=False).product_way == "fast-rowwise", "begun anew"
    assert with_products(context, start("small", base_compute="int8"), resumed=True).product_way == "small"
    assert with_products(context, start("small", base_compute="bf16"), resumed=True).product_way is None
