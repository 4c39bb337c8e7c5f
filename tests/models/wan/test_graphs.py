"""Wan compiled block by block: planned graphs are the observed ones over 8 sizes and 8 captions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from backend.models.family_classes import load_family
from tests.tiny.block_graphs import (
    BUCKETS,
    Subject,
    compiled_and_checkpointed_equal_eager,
    planned_graphs_are_observed,
)
from tests.tiny.wan_forward import make_batch, model_with_lora, ours

block_lists = load_family("wan").block_lists
predict = load_family("wan").predict

LENGTHS = [3, 16, 9, 12, 15, 30, 33, 60]
SUBJECT = Subject(model_with_lora, [r".*attn\d\.to_k"], block_lists, predict, make_batch, ours, LENGTHS, room=512)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("mode", "dynamic", "buckets", "style"),
    [
        ("static", "false", BUCKETS, "mask"),
        ("static", "false", BUCKETS, "sink"),
        ("static", "false", None, "mask"),
        ("dynamic", "auto", BUCKETS, "mask"),
    ],
)
def test_graphs_equal_the_plan_over_eight_sizes_and_captions(
    mode: str, dynamic: str, buckets: tuple[int, ...] | None, style: str
) -> None:
    planned_graphs_are_observed(SUBJECT, mode, dynamic, buckets, style)


def test_compiled_and_checkpointed_equal_eager() -> None:
    compiled_and_checkpointed_equal_eager(SUBJECT)
