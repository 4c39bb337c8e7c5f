"""A run's attention route: as set, kept across a resume, measured with auto, and always told."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from backend.base.errors import Refused
from backend.config.schema import Config, with_values
from backend.families.table import family
from backend.plan.graphs import Shape
from backend.runs import record
from backend.runs.events import EventWriter
from backend.runs.folder import Run
from backend.shapes import attention_probe, attention_routes
from backend.shapes.attention_routes import MaskedSdpa, sink_route
from backend.training import attention_choice
from backend.training.attention_choice import FEWEST_STEPS, attention_form, choose_attention, heads_of
from backend.training.run_context import RunContext
from tests.tiny.event_lines import event_lines
from tests.tiny.shapes import denoiser_with_lora

CPU = torch.device("cpu")


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    run = Run.create_empty(tmp_path, "toy")
    return RunContext(run=run, events=EventWriter(run), requests=None, stack=ExitStack(), started=0.0)


def inputs_of(steps: int = FEWEST_STEPS, **values: Any) -> Any:
    """A plan of one static shape, and no more of a run's inputs than the choice reads."""
    cfg = with_values(Config(), {"compile.compile_backend": "aot_eager"} | values)
    graphs = SimpleNamespace(training=(Shape(256, 32, 1), Shape(200, 32, 1)))
    plan = SimpleNamespace(
        graphs=graphs, caption_buckets=None, static_token_counts=(), steps=SimpleNamespace(steps=steps)
    )
    return SimpleNamespace(cfg=cfg, device=CPU, plan=plan, family=family("flux"))


def told(context: RunContext) -> dict[str, Any]:
    return event_lines(context.run)[-1]


def test_the_fastest_of_two_real_routes_is_taken_and_kept(
    context: RunContext, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a GPU: measured once, then read from the cache's folder, then from the run's own record."""
    routes = {"sdpa": MaskedSdpa(), "fa3": sink_route("fa3", "aten", "torch's flash kernel for CPUs")}
    monkeypatch.setattr(attention_probe, "candidates", lambda device, form: (routes, {"fa4": "is not installed"}))
    monkeypatch.setattr(attention_choice, "_why_unmeasured", lambda inputs, form, resumed: "")
    monkeypatch.setattr(attention_routes, "make_route", lambda name, device, dtype: routes[name])
    monkeypatch.setattr(attention_routes, "route_problem", lambda name, device, dtype: None)
    monkeypatch.setattr(attention_probe, "winner", lambda times: "fa3")
    model, inputs = denoiser_with_lora(), inputs_of()
    route = choose_attention(context, inputs, model, torch.float32, tmp_path, resumed=False)
    assert route is routes["fa3"] and context.run.record()["attention"] == "fa3"
    event = told(context)
    assert (event["route"], event["how"], set(event["milliseconds"])) == ("fa3", "measured", {"sdpa", "fa3"})
    assert event["form"].startswith("1 x 512 tokens") and event["left_out"] == {"fa4": "is not installed"}
    monkeypatch.setattr(attention_probe, "_measured", lambda *_: pytest.fail("measured again"))
    assert choose_attention(context, inputs, model, torch.float32, tmp_path, resumed=False) is routes["fa3"]
    assert told(context)["how"] == "remembered"
    (tmp_path / attention_probe.FILE).unlink()
    assert choose_attention(context, inputs, model, torch.float32, tmp_path, resumed=True) is routes["fa3"]
    assert (told(context)["how"], told(context)["milliseconds"]) == ("kept", None)


def test_what_was_trained_with_and_is_gone_is_told(context: RunContext) -> None:
    record.update(context.run.record_path, lambda fields: {**fields, "attention": "fa4"})
    route = choose_attention(context, inputs_of(), denoiser_with_lora(), torch.float32, None, resumed=True)
    assert route.name == "sdpa" == context.run.record()["attention"]
    warning = event_lines(context.run)[0]
    assert "trained with fa4 attention, which cannot be used now: fa4 attention needs an NVIDIA GPU" in warning["text"]


def test_a_route_that_is_set_is_taken_or_refused(context: RunContext) -> None:
    model = denoiser_with_lora()
    values = {"compile.attention": "sdpa"}
    assert choose_attention(context, inputs_of(**values), model, torch.float32, None, resumed=False).name == "sdpa"
    assert told(context)["how"] == "set"
    with pytest.raises(Refused, match="varlen attention needs an NVIDIA GPU"):
        choose_attention(context, inputs_of(**{"compile.attention": "varlen"}), model, torch.float32, None, False)


@pytest.mark.parametrize(
    ("steps", "values", "resumed", "why"),
    [
        (FEWEST_STEPS, {}, False, ""),
        (FEWEST_STEPS - 1, {}, False, "too few"),
        (FEWEST_STEPS, {"training.deterministic": True}, False, "deterministic"),
        (FEWEST_STEPS, {}, True, "continues is not measured"),
    ],
)
def test_when_nothing_is_measured(steps: int, values: dict[str, Any], resumed: bool, why: str) -> None:
    inputs = inputs_of(steps, **values)
    form = attention_form(inputs, denoiser_with_lora(), torch.bfloat16)
    assert form is not None and (form.batch, form.tokens, form.padded, form.fixed) == (1, 288, True, True)
    assert (form.heads, form.width) == heads_of(denoiser_with_lora())
    assert "cpu" in attention_choice._why_unmeasured(inputs, form, resumed)
    on_gpu = SimpleNamespace(**{**vars(inputs), "device": torch.device("cuda")})
    reason = attention_choice._why_unmeasured(on_gpu, form, resumed)
    assert why in reason and bool(why) == bool(reason)
    assert replace(form, fixed=False).words != form.words


@pytest.mark.parametrize(
    ("values", "padded", "fixed"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"compile.compile_dynamic": "false"}, False, True),
        ({"compile.shape_mode": "exact_buckets"}, False, True),
        ({"compile.shape_mode": "dynamic", "compile.compile_dynamic": "false"}, False, False),
        ({"compile.compile": False}, False, True),
    ],
)
def test_what_is_measured_has_the_graphs_of_the_run(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], padded: bool, fixed: bool
) -> None:
    """Where the runtime readies its route for open sizes, flex is SDPA without padding, and is not timed as flex."""
    monkeypatch.setattr(attention_choice, "may_pad", lambda cfg, plan: padded)
    form = attention_form(inputs_of(**values), denoiser_with_lora(), torch.bfloat16)
    assert form is not None and (form.padded, form.fixed) == (padded, fixed)
