"""Builds the subjects of the graph tests: families of static blocks, by name."""

from __future__ import annotations

from typing import Any

from backend.families.table import family
from backend.models.family_classes import load_family
from tests.tiny import anima_forward, hunyuan_forward, qwen_forward, sd3_forward, wan_forward
from tests.tiny.block_graphs import Subject

LENGTHS = [6, 16, 9, 12, 15, 30, 33, 60]


def _subject(name: str, forward: Any, few: str, *, room: int = 64, shortest: int = 6) -> Subject:
    """`few`: a pattern of layers that are quickly traced, in each class of blocks."""
    code, facts = load_family(name), family(name)
    classes = tuple(each.name for each in facts.block_classes)
    guidance = getattr(forward, "GUIDANCE", None)

    def predict(model: Any, noisy: Any, sigma: Any, text: Any, _: Any, shapes: Any) -> Any:
        return code.predict(model, noisy, sigma, text, guidance, shapes)

    lengths = [shortest, *LENGTHS[1:]]
    model, ours = forward.model_with_lora, forward.ours
    return Subject(model, [few], code.block_lists, predict, forward.make_batch, ours, lengths, room, classes)


SUBJECTS = {
    "anima": _subject("anima", anima_forward, r".*attn\d\.to_k", room=512, shortest=3),
    "qwen_image": _subject("qwen_image", qwen_forward, r".*attn\.to_k"),
    "sd3": _subject("sd3", sd3_forward, r".*attn2?\.to_k"),
    "wan": _subject("wan", wan_forward, r".*attn\d\.to_k", room=512, shortest=3),
    "hunyuan_video": _subject("hunyuan_video", hunyuan_forward, r".*blocks\.\d+\.attn\.to_k"),
}
