"""The garbage collector runs seldom while something is compiled, and at its usual pace at every other time."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from backend.compile.telemetry import Telemetry


def seen_by(backend_fails: bool) -> int:
    """Compile a function; objects that the collector waits for meanwhile."""
    inside: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        inside.append(gc.get_threshold()[0])
        if backend_fails:
            raise RuntimeError("no backend")
        return graph.forward

    def work(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    compiled = torch.compile(work, backend=backend)
    if backend_fails:
        with pytest.raises(RuntimeError, match="no backend"):
            compiled(torch.ones(2))
    else:
        compiled(torch.ones(2))
    return inside[0]


@pytest.mark.parametrize("fails", [False, True])
def test_it_waits_while_a_graph_is_made_and_goes_on_behind_it(fails: bool) -> None:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    telemetry = Telemetry().start()
    try:
        assert seen_by(fails) >= 100 * 700
        assert gc.get_threshold() == (700, 10, 10)
        telemetry.stop()
        assert seen_by(fails) == 700
    finally:
        telemetry.stop()
        gc.set_threshold(*before)
