"""Settings that break each rule of a run with several processes."""

from __future__ import annotations

from tests.tiny.rule_values import Values

_TWO: Values = {"training.num_processes": 2}

PROCESS_ROWS: list[tuple[Values, str, str]] = [
    ({**_TWO, "compile.compile_backend": "cudagraphs"}, "compile.compile_backend", "several processes (2)"),
    ({**_TWO, "memory.blocks_to_swap": 3}, "training.num_processes", "a copy of the 3"),
    (
        {**_TWO, "training.kind": "full", "optimizer.fused_backward": True},
        "training.num_processes",
        "2 processes take the mean",
    ),
]
