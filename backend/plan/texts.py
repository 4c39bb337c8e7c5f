"""How many text tokens a caption takes to the model, without torch: the family's length, or a caption bucket."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from backend.models.base import Base
from backend.models.spec import FamilyFacts

log = logging.getLogger(__name__)

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class TextPlan:
    """Text lengths of a run, in tokens.

    length: what captions are padded or cut to; fixed: whatever a prompt asks for. buckets, count: lengths that they are
    trimmed to, and what counts the real tokens of a caption; None for no trimming, which also happens where the
    tokenizer can't be asked.
    """

    length: int
    buckets: tuple[int, ...] | None = None
    count: CountTokens | None = None
    fixed: bool = False

    def fit(self, caption: str, length: int | None = None) -> int:
        """Tokens that stay of `caption` encoded at `length` (None: the run's): the smallest bucket that holds it."""
        length = (None if self.fixed else length) or self.length
        if self.buckets is None or self.count is None:
            return length
        real = self.count(caption)
        return min(length, next((bucket for bucket in self.buckets if bucket >= real), length))


def token_counter(base: Base | Path, facts: FamilyFacts) -> CountTokens | None:
    """Counts the real tokens of a caption with the model's own tokenizer.json; None where there is none to read.

    The tokenizer is the last of the family's: the one of the sequence, not of a pooled vector.
    """
    parts = [part for part in facts.parts if part.name.startswith("tokenizer")]
    place = Base.at(base).place(parts[-1]) if parts else None
    file = None if place is None else place.path / "tokenizer.json"
    if file is None or not file.is_file():
        return None
    # Only here: caption buckets alone need it, and it is no small import.
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - the Rust library raises bare Exception for a broken file
        log.warning("%s can't be read: %s", file, error)
        return None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    known: dict[str, int] = {}

    def count(caption: str) -> int:
        if caption not in known:
            whole = tokenizer.encode(facts.caption_template.replace("{}", caption)).ids
            known[caption] = max(1, len(whole) - facts.template_tokens)
        return known[caption]

    return count
