"""Transformers compiled block by block: planned graphs are the observed ones, numbers those of eager blocks.

FLUX's are in tests/compile/test_graphs.py, those of the UNets in tests/models/sdxl/test_graphs.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.tiny.block_graphs import BUCKETS, compiled_and_checkpointed_equal_eager, planned_graphs_are_observed
from tests.tiny.graph_subjects import SUBJECTS

FAMILIES = ("anima", "qwen_image", "sd3", "wan", "hunyuan_video")
# Captions beside the picture's tokens, and captions on a way of their own. Static graphs of every family, a graph a
# caption bucket and those without gradients are counted in whole runs: `graphs` in proofs.toml.
TRIMMED = ("qwen_image", "wan")
# Open sizes without gradients: the same blocks are traced as with them, here for one family.
VALIDATED = "qwen_image"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("family", "mode", "dynamic", "style"),
    [
        *((family, "static", "false", "sink") for family in TRIMMED),
        *((family, "dynamic", "auto", "mask") for family in FAMILIES),
    ],
)
def test_graphs_equal_the_plan_over_eight_sizes_and_captions(family: str, mode: str, dynamic: str, style: str) -> None:
    buckets = BUCKETS if mode == "dynamic" else BUCKETS[-1:]
    validated = mode == "dynamic" and family == VALIDATED
    planned_graphs_are_observed(SUBJECTS[family], mode, dynamic, buckets, style, validated)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_and_checkpointed_equal_eager(family: str) -> None:
    compiled_and_checkpointed_equal_eager(SUBJECTS[family])
