"""Builds the subject of Qwen-Image's graph tests."""

from __future__ import annotations

from backend.models.family_classes import load_family
from tests.tiny.block_graphs import Subject
from tests.tiny.qwen_forward import make_batch, model_with_lora, ours

block_lists = load_family("qwen_image").block_lists
predict = load_family("qwen_image").predict
GRAPH_LENGTHS = [6, 16, 9, 12, 15, 30, 33, 60]
SUBJECT = Subject(model_with_lora, [r".*attn\.to_k"], block_lists, predict, make_batch, ours, GRAPH_LENGTHS, room=64)
