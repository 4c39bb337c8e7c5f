"""Whole runs on a quantised base: what is loaded, what is saved, caches kept apart, and what is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config.schema import Config
from backend.config.sections.memory import MemorySection
from backend.memory import quantization_support
from backend.runs.folder import Run
from tests.conftest import draw_pictures
from tests.tiny.training import config, events, lora_of, rows, train_here

MEMORY = [
    {"base_quantization": "fp8"},
    {"base_compute": "fp8", "base_products": "fast"},
    {"base_compute": "int8", "text_encoder_quantization": "int8"},
    {"base_quantization": "nf4", "text_encoder_quantization": "nf4"},
]


def run_of(tiny_flux: Path, images: Path, where: Path, memory: dict[str, Any], steps: int = 4) -> Run:
    cfg = config(
        tiny_flux, images, where, memory=memory, optimizer={"learning_rate": 1e-3},
        training={"max_train_steps": steps}, network={"targets_include": ["attn.to_q", "proj_mlp", "ff.net.2"]},
    )  # fmt: skip
    run, code = train_here(cfg)
    assert code == 0, events(run, "error")
    return run


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def plain(tiny_flux: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tiny_flux, images, tmp_path_factory.mktemp("plain"), {})


@pytest.mark.parametrize("memory", MEMORY, ids=lambda memory: " ".join(memory.values()))
def test_a_run_on_a_quantised_base_is_near_the_plain_one(
    tiny_flux: Path, images: Path, tmp_path: Path, plain: Run, memory: dict[str, Any]
) -> None:
    run = run_of(tiny_flux, images, tmp_path, memory)
    ours, theirs = ([row["loss"] for row in rows(one)] for one in (run, plain))
    far = 0.06 if "nf4" in memory.values() else 0.02
    assert ours == pytest.approx(theirs, rel=far) and ours != theirs
    files = lora_of(run)
    assert files.keys() == lora_of(plain).keys()
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in files.values())


def test_captions_of_quantised_encoders_are_kept_apart(tiny_flux: Path, images: Path, tmp_path: Path) -> None:
    def kept(kind: str) -> int:
        run_of(tiny_flux, images, tmp_path, {"text_encoder_quantization": kind}, steps=1)
        return sum(1 for path in (tmp_path / "cache").rglob("*.safetensors"))

    first = kept("none")
    second = kept("int8")
    assert second > first and kept("none") == second == kept("int8")


def test_what_the_machine_lacks_is_named_with_the_mend(
    tiny_flux: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec

    def lacking(name: str, *more: Any) -> Any:
        return None if name == "bitsandbytes" else find_spec(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", lacking)
    cfg = config(tiny_flux, images, tmp_path, memory={"base_quantization": "nf4", "text_encoder_quantization": "nf4"})
    run, code = train_here(cfg)
    (error,) = events(run, "error")
    assert code != 0 and "bitsandbytes" in str(error) and "int8" in str(error)


@pytest.mark.parametrize(("compute", "capability", "words"), [
    ("int8", (7, 5), "Ampere"), ("fp8", (8, 6), "Ada"), ("int8", (8, 0), ""), ("fp8", (8, 9), ""), ("fp8", (9, 0), ""),
])  # fmt: skip
def test_cards_without_8_bit_products_are_refused(
    monkeypatch: pytest.MonkeyPatch, compute: str, capability: tuple[int, int], words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "the card")
    problems = quantization_support.problems(MemorySection(base_compute=compute), torch.device("cuda"))
    assert [p.path for p in problems] == (["memory.base_compute"] if words else [])
    assert all(words in p.text and "bf16" in p.remedy for p in problems)


@pytest.mark.parametrize(("capability", "version", "kind", "warned"), [
    ((8, 6), "2.11.0+cu130", "fp8", 1), ((8, 6), "2.13.0", "fp8", 0), ((8, 9), "2.11.0", "fp8", 0),
    ((8, 6), "2.11.0", "int8", 0),
])  # fmt: skip
def test_fp8_that_an_older_card_can_not_compile_is_told(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], version: str, kind: str, warned: int
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA GeForce RTX 3060")
    cfg = Config.model_validate({"memory": {"base_quantization": kind}, "compile": {"compile": True}})
    warnings = quantization_support.fp8_compile_warnings(cfg, torch.device("cuda"))
    assert len(warnings) == warned and all("RTX 3060" in p.text and "int8" in p.remedy for p in warnings)
