"""The attention probe: real routes measured on a CPU, exactness before speed, and an answer that stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.shapes import attention_probe
from backend.shapes.attention_probe import AttentionForm, candidates, fastest_route, winner
from backend.shapes.attention_routes import MaskedSdpa, Route, sink_route

CPU = torch.device("cpu")
FORM = AttentionForm(batch=1, tokens=300, heads=1, width=16, dtype=torch.float32, padded=True, backend="aot_eager")


class WrongAttention(MaskedSdpa):
    """Fast, and not attention."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return q + k + v


class BrokenAttention(MaskedSdpa):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        raise ImportError("libcudart.so.12: cannot open shared object file\nmore of it")


class FullMemory(MaskedSdpa):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        raise torch.OutOfMemoryError("none left")


def routes() -> dict[str, Route]:
    return {
        "sdpa": MaskedSdpa(),
        "sink": sink_route("sink", "aten", "torch's flash kernel for CPUs"),
        "wrong": WrongAttention(),
        "broken": BrokenAttention(),
    }


def test_exact_routes_are_measured_and_the_answer_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fastest_route(CPU, FORM, tmp_path, routes(), {"fa4": "needs an NVIDIA GPU"})
    assert not first.cached and set(first.milliseconds) == {"sdpa", "sink"} and first.route in first.milliseconds
    assert all(each > 0 for each in first.milliseconds.values())
    assert "away from SDPA's" in first.left_out["wrong"] and first.left_out["fa4"] == "needs an NVIDIA GPU"
    assert first.left_out["broken"] == "it fails here (ImportError: libcudart.so.12: cannot open shared object file)"
    # The file decides, whatever a second measurement would say: near sizes share it, others don't.
    file = tmp_path / attention_probe.FILE
    ((key, entry),) = json.loads(file.read_text()).items()
    assert key.startswith("1 x 512 tokens, 1 heads of 16, float32, padded")
    other = ({"sdpa", "sink"} - {first.route}).pop()
    file.write_text(json.dumps({key: entry | {"route": other}}))
    again = fastest_route(CPU, FORM, tmp_path, routes())
    assert again.cached and again.route == other and again.milliseconds == first.milliseconds
    for damaged in ({"route": 3}, entry | {"milliseconds": {"sdpa": "fast"}}):
        file.write_text(json.dumps({key: damaged}))
        assert attention_probe._read(tmp_path) == {}, "a damaged entry is measured again"
    assert not fastest_route(CPU, FORM, tmp_path, routes()).cached
    with pytest.raises(ValueError, match="too little of the GPU's memory is free"):
        fastest_route(CPU, FORM, tmp_path, {"sdpa": MaskedSdpa(), "full": FullMemory()})
    with monkeypatch.context() as patch:
        patch.setattr(attention_probe, "_inputs", lambda *_: FullMemory().attend(*[None] * 4))
        with pytest.raises(ValueError, match="too little of the GPU's memory is free"):
            fastest_route(CPU, FORM, None, {"sdpa": MaskedSdpa()})
    assert list(json.loads(file.read_text())) == [key], "what ran out of memory is no answer"
    with pytest.raises(ValueError, match="no attention route computes here: broken: it fails here"):
        fastest_route(CPU, FORM, None, {"broken": BrokenAttention()})


def test_a_failure_holds_for_its_versions_and_a_late_route_gets_one_more_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[list[str]] = []
    measure = attention_probe._measured

    def counted(device: torch.device, form: AttentionForm, routes: dict[str, Route]) -> Any:
        measured.append(list(routes))
        return measure(device, form, routes)

    monkeypatch.setattr(attention_probe, "_measured", counted)
    form = AttentionForm(batch=1, tokens=300, heads=1, width=16, dtype=torch.float32, padded=True, backend=None)

    def probe(*names: str) -> attention_probe.Measurement:
        return fastest_route(CPU, form, tmp_path, {name: routes()[name] for name in names})

    assert "it fails here" in probe("sdpa", "broken").left_out["broken"] and probe("sdpa", "broken").cached
    version = attention_probe.metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(attention_probe.metadata, "version", lambda name: "99" if name == "torch" else version(name))
        assert not probe("sdpa", "broken").cached, "another version may compute it"
        assert probe("sdpa", "broken").cached
    file = tmp_path / attention_probe.FILE
    before = {key: {**entry, "versions": None} for key, entry in json.loads(file.read_text()).items()}
    file.write_text(json.dumps(before))
    assert not probe("sdpa", "broken").cached, "an entry of before says nothing of its versions"
    measured.clear()
    with monkeypatch.context() as patch:
        patch.setattr(attention_probe, "_MOST_SECONDS", 0.0)
        assert "not measured" in probe("sdpa", "wrong", "sink").left_out["sink"]
    second = probe("sdpa", "wrong", "sink")
    assert not second.cached and set(second.milliseconds) == {"sdpa", "sink"}
    assert "sink" not in second.left_out and "wrong" in second.left_out
    assert probe("sdpa", "wrong", "sink").cached
    file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(attention_probe, "_MOST_SECONDS", 0.0)
        tried = [probe("sdpa", "sink").cached for _ in range(3)]
    assert tried == [False, False, True], "late twice is an answer"


def test_noise_does_not_change_the_usual_choice() -> None:
    assert winner({"fa4": 1.0, "sdpa": 0.99}) == "fa4"
    assert winner({"sdpa": 1.0, "varlen": 0.97, "flex": 0.9}) == "flex"
    assert winner({"sdpa": 1.0, "varlen": 0.97, "flex": 0.98}) == "varlen"


def test_a_class_of_shapes_fits_a_small_card() -> None:
    video = AttentionForm(batch=2, tokens=32760, heads=40, width=128, dtype=torch.bfloat16, padded=False).rounded
    assert (video.batch, video.tokens, video.heads) == (1, 32768, 8)
    flux = AttentionForm(batch=1, tokens=4608, heads=24, width=128, dtype=torch.bfloat16, padded=True).rounded
    assert (flux.batch, flux.tokens, flux.heads) == (1, 4608, 24)


def test_what_cannot_be_had_is_told_by_route() -> None:
    routes, left_out = candidates(CPU, FORM)
    assert list(routes) == ["sdpa"] and set(left_out) == {"fa4", "varlen", "flash2", "flex", "fa3"}
    assert "needs an NVIDIA GPU" in left_out["fa4"]


def test_a_package_that_lacks_its_kernel_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    make = attention_probe.attention_routes.make_route
    monkeypatch.setattr(attention_probe.attention_routes, "route_problem", lambda *_: None)
    monkeypatch.setattr(
        attention_probe.attention_routes,
        "make_route",
        lambda name, *rest: make(name, *rest) if name == "sdpa" else BrokenAttention().attend(*[None] * 4),
    )
    routes, left_out = candidates(CPU, FORM)
    assert list(routes) == ["sdpa"] and left_out["fa4"].startswith("it fails here (ImportError: libcudart")
