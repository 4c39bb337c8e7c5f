"""The protocol of seed 000: its settings, and a row in which the recompile limit is really hit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.bench import __main__ as bench
from backend.bench.record import COLUMNS
from backend.bench.table import render
from backend.bench.variants import Spec
from backend.bench.worker import measure


def test_protocol_of_seed000_has_its_settings() -> None:
    options = bench._parser().parse_args(["--protocol", "seed000", "--size", "flux"])
    specs = bench.specs_of(options)
    assert [spec.variant for spec in specs][:5] == ["eager", "fallback", "limit:3", "static:flash2", "static:fa4"]
    assert {(s.rank, s.learning_rate, s.batch, s.seed, s.checkpointing) for s in specs} == {(32, 5e-5, 2, 42, True)}
    assert all(spec.steps + 17 == 182 and spec.validate for spec in specs)
    rows = [dict.fromkeys(COLUMNS, "") | {"variant": s.variant, "ok": "1", "total_s": "671"} for s in specs]
    table = render(rows, "seed000")
    assert "| total time | 11:11 |" in table and "compile, static tokens, FlashAttention 4" in table
    options = bench._parser().parse_args(["--protocol", "seed000", "--variants", "eager, static:flash2"])
    assert bench.specs_of(options) == [specs[0], specs[3]]
    options.variants = "dynamic"
    with pytest.raises(ValueError, match="--variants has dynamic; the protocol seed000 has eager, fallback"):
        bench.specs_of(options)


def test_the_row_beyond_the_recompile_limit_hits_it() -> None:
    torch._dynamo.reset()
    spec = Spec("limit:3", size="tiny", steps=1, backend="eager", validate=True)
    row = measure(spec)
    # three token counts are trained with three graphs a class; the same without gradients find no room
    assert row["limit_hits"] > 0 and row["graphs"] == row["planned_graphs"] == 2 * 3
    torch._dynamo.reset()
    assert row["losses"] == pytest.approx(measure(replace(spec, variant="eager"))["losses"], rel=1e-4)
