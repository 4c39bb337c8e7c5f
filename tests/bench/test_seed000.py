"""The protocol of seed 000: its settings, and a recompile limit that validation reaches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench.record import COLUMNS
from backend.bench.table import render
from backend.bench.variants import VARIANTS, Spec
from backend.bench.worker import measure


def test_protocol_of_seed000_has_its_settings() -> None:
    options = bench._parser().parse_args(["--protocol", "seed000", "--size", "flux"])
    specs = bench.specs_of(options)
    assert [spec.variant for spec in specs][:4] == ["eager", "fallback", "static:flash2", "static:fa4"]
    assert {(s.rank, s.learning_rate, s.batch, s.seed, s.checkpointing) for s in specs} == {(32, 5e-5, 2, 42, True)}
    assert all(spec.steps + 17 == 182 and spec.validate for spec in specs)
    rows = [dict.fromkeys(COLUMNS, "") | {"variant": s.variant, "ok": "1", "total_s": "671"} for s in specs]
    table = render(rows, "seed000")
    assert "| total time | 11:11 |" in table and "compile, static tokens, FlashAttention 4" in table
    options = bench._parser().parse_args(["--protocol", "seed000", "--variants", "eager, static:flash2"])
    assert bench.specs_of(options) == [specs[0], specs[2]]
    options.variants = "dynamic"
    with pytest.raises(ValueError, match="--variants has dynamic; the protocol seed000 has eager, fallback"):
        bench.specs_of(options)


def test_a_limit_that_validation_reaches_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setitem(VARIANTS, "fallback", replace(VARIANTS["fallback"], limit=3))
    row = measure(Spec("fallback", size="tiny", steps=1, backend="eager", validate=True))
    # 3 sizes are trained with 3 graphs a class; without gradients there is no room for more
    assert (row["graphs"], row["planned_graphs"]) == (6, 6)
    assert row["limit_hits"] > 0
