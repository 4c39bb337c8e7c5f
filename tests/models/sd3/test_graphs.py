"""SD3 compiled block by block: planned graphs are the observed ones over 8 sizes and 8 captions, in each class."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backend.families.sd3.facts import FACTS
from backend.models.family_classes import load_family
from tests.tiny.block_graphs import (
    BUCKETS,
    Subject,
    compiled_and_checkpointed_equal_eager,
    planned_graphs_are_observed,
)
from tests.tiny.sd3_forward import make_batch, model_with_lora, ours

block_lists = load_family("sd3").block_lists
predict = load_family("sd3").predict

LENGTHS = [6, 16, 9, 12, 15, 30, 33, 60]
CLASSES = tuple(each.name for each in FACTS.block_classes)
FEW = [r".*attn2?\.to_k"]
SUBJECT = Subject(
    lambda targets=FEW: model_with_lora(targets), FEW, block_lists, predict, make_batch, ours, LENGTHS, 64, CLASSES
)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("mode", "dynamic", "buckets", "style"),
    [("static", "false", None, "sink"), ("dynamic", "auto", BUCKETS, "mask")],
)
def test_graphs_equal_the_plan_over_eight_sizes_and_captions(
    mode: str, dynamic: str, buckets: tuple[int, ...] | None, style: str
) -> None:
    planned_graphs_are_observed(SUBJECT, mode, dynamic, buckets, style)


def test_compiled_and_checkpointed_equal_eager() -> None:
    compiled_and_checkpointed_equal_eager(SUBJECT)
