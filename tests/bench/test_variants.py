"""Every option of a measurement is told apart, and a variant may have options of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench.groups import groups
from backend.bench.record import COLUMNS, Record
from backend.bench.variants import OPTIONS, Spec, requested
from backend.bench.work import build
from backend.lora.fused_layers import is_fused
from backend.memory.activation_offload import ActivationOffload
from tests.tiny.bench_rows import answer


def test_options_after_a_plus_are_the_variants_own() -> None:
    flags = ["--size=tiny", "--variants=eager+rank=4,static:sdpa+cuda_graphs+lora_dtype=bf16+profile+warm_up=off"]
    eager, static = bench.specs_of(bench._parser().parse_args([*flags, "--checkpointing=on"]))
    assert (eager.variant, eager.rank, eager.cuda_graphs, eager.profile) == ("eager", 4, False, False)
    assert (static.variant, static.rank, static.lora_dtype) == ("static:sdpa", 32, "bf16")
    assert static.cuda_graphs and static.profile and not static.warm_up
    assert requested("eager+layers=2-4+memory_budget=0.5")[1] == {"layers": (2, 4), "memory_budget": 0.5}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eager+speed", "changes 'speed', which is no option; known: profile, layers"),
        ("eager+rank=wide", "rank is 'wide'; it must be a number"),
        ("eager+cuda_graphs=maybe", "cuda_graphs is 'maybe'; it must be on or off"),
        ("eager+lora_dtype=fp8", "lora_dtype is 'fp8'; it must be one of fp32, bf16"),
        ("fast", "unknown variant 'fast'"),
    ],
)
def test_options_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        requested(text)


def test_every_option_is_a_flag_a_column_and_tells_rows_apart(tmp_path: Path) -> None:
    """So that a row measured with another option is never taken for one that is there already."""
    record = Record.open(tmp_path / "r", "compile", [])
    record.add(Spec("eager"), 0, answer(0.2))
    other = {"layers": (2, 2), "captions": (64, 128), "memory_budget": 0.5, "lora_dtype": "bf16", "autocast": False}
    flags = ["--layers", "2,2", "--captions", "64,128", "--memory-budget", "0.5", "--lora-dtype", "bf16"]
    flags += ["--autocast", "off", "--fused-lora", "--rank", "8", "--batch", "2", "--steps", "200", "--seed", "1"]
    flags += ["--learning-rate", "0.001", "--backend", "eager", "--compile-mode", "max-autotune-no-cudagraphs"]
    flags += ["--swap", "2", "--swap-ring", "3", "--disable-linear", "on", "--cuda-graphs"]
    flags += ["--base-quantization", "fp8", "--base-compute", "int8", "--base-products", "fast"]
    flags += ["--full", "adafactor", "--warm-up", "off"]
    options = bench.specs_of(bench._parser().parse_args([*flags, "--variants", "eager", "--checkpointing", "on"]))[0]
    # which models of pictures refuse
    options = replace(options, clips="832x480x49")
    assert all(getattr(options, name) == value for name, value in other.items())
    for name in OPTIONS:
        changed = replace(Spec("eager"), **{name: getattr(options, name)})
        assert getattr(options, name) != OPTIONS[name].default, name
        assert record.has(Spec("eager"), 0) and not record.has(changed, 0), name
        record.add(changed, 0, answer(0.1))
        assert record.has(changed, 0), name
    assert len(groups(record.rows)) == 1 + len(OPTIONS) == len(groups(Record.open(tmp_path / "r", "compile", []).rows))
    named = {group.name() for group in groups(record.rows)}
    assert {"eager", "eager (captions 64, 128)", "eager (memory budget 0.5)", "eager (layers 2, 2)"} <= named
    usual = bench._parser().parse_args(["--layers", "4,8", "--variants", "eager", "--checkpointing", "on"])
    assert bench.specs_of(usual) == [Spec("eager")]


def test_products_are_measured_side_by_side() -> None:
    flags = ["--variants", "eager", "--checkpointing", "on", "--products"]
    specs = bench.specs_of(bench._parser().parse_args([*flags, "bf16, fp8:fast,int8"]))
    assert [(spec.base_compute, spec.base_products) for spec in specs] == [
        ("bf16", "small"), ("fp8", "fast"), ("int8", "small"),
    ]  # fmt: skip
    assert len({bench._short(spec) for spec in specs}) == 3, "each has a compile cache of its own"
    for wrong in ("nf4", "fp8:faster", "bf16:fast"):
        with pytest.raises(ValueError, match=wrong):
            bench.specs_of(bench._parser().parse_args([*flags, wrong]))


def test_kinds_of_checkpointing_and_fused_lora_reach_the_work() -> None:
    options = bench._parser().parse_args(
        ["--size", "tiny", "--variants", "eager", "--checkpointing", "on,off,offload, selective", "--fused-lora"]
    )
    specs = bench.specs_of(options)
    assert [(s.checkpointing, s.checkpointing_kind) for s in specs] == [
        (True, ""),
        (False, ""),
        (True, "offload"),
        (True, "selective"),
    ]
    model, lora = build(specs[2], torch.device("cpu"))
    assert isinstance(model._gradient_checkpointing_func, ActivationOffload)
    assert all(is_fused(layer) for layer in lora.layers.values())
    rows = [dict.fromkeys(COLUMNS, "") | {"checkpointing_kind": s.checkpointing_kind} for s in specs]
    assert len(groups(rows)) == 3 and groups(rows)[1].settings() == "checkpointing offload"
