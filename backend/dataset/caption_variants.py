"""Makes versions of a caption: wildcards, shuffled and dropped tags; and draws the one that an image is trained with.

A version follows from its number, the texts and the rule alone, not from the seed of a run: so the cache of encoded
captions serves runs of every seed. The seed draws which version is used when.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backend.dataset.captions import holds, is_dropped, with_trigger
from backend.dataset.items import Item

if TYPE_CHECKING:
    from backend.config.sections.captions import CaptionsSection

Draw = Callable[[], float]
"""The next number in [0, 1)."""

_CHOICE = re.compile(r"\{([^{}]*)\}")
_BRACES = re.compile(r"\{\{|\{|\}+")
# Braces that stay, while the others are worked on: characters that no text has.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionRule:
    """What may be changed in a caption; the fields have the names of the settings in [captions].

    fresh: each time is a new version, since text encoders are trained and captions are not cached.
    """

    shuffle_caption: bool = False
    keep_tokens: int = 0
    keep_tokens_separator: str | None = None
    caption_separator: str = ","
    secondary_separator: str | None = None
    caption_tag_dropout_rate: float = 0.0
    enable_wildcard: bool = False
    caption_variants: int = 8
    fresh: bool = False

    @classmethod
    def of(cls, section: CaptionsSection, fresh: bool = False) -> CaptionRule:
        """The rule that the settings say."""
        names = [name for name in cls.__dataclass_fields__ if name != "fresh"]
        return cls(**{name: getattr(section, name) for name in names}, fresh=fresh)

    def plain(self, text: str) -> str:
        """The caption that is measured and shown: tags in their order, of wildcards the first words, no separators."""
        return self._finished(text, None)

    def changes(self, text: str) -> bool:
        """Whether versions of `text` differ from each other."""
        if self.enable_wildcard and any("|" in choice for choice in _CHOICE.findall(_hidden(text))):
            return True
        _, loose, _ = self._parts(text)
        return bool(loose and self.caption_tag_dropout_rate > 0) or bool(len(loose) > 1 and self.shuffle_caption)

    def count(self, texts: Sequence[str]) -> int:
        """How many versions an image with these captions has."""
        if not any(map(self.changes, texts)):
            return max(1, len(texts))
        return max(self.caption_variants, len(texts))

    def version(self, texts: Sequence[str], number: int, trigger: str | None = None) -> str:
        """Version `number` (from 0) of an image's captions `texts`, which take turns.

        trigger: tags with this word come first and stay.
        """
        text = texts[number % len(texts)]
        digest = hashlib.blake2b(f"caption version:{number}:{text}".encode("utf-8", "surrogatepass"), digest_size=8)
        return self._finished(text, random.Random(int.from_bytes(digest.digest(), "big")).random, trigger)

    def _finished(self, text: str, draw: Draw | None, trigger: str | None = None) -> str:
        """`text` with all that is drawn; without `draw` as it stands. trigger: as `version` has it."""
        if self.enable_wildcard:
            text = _chosen(text, draw)
        first, loose, last = self._parts(text)
        if trigger:
            pinned = [tag for tag in loose if holds(tag, trigger)]
            first, loose = [*pinned, *first], [tag for tag in loose if tag not in pinned]
        if draw is not None and self.shuffle_caption:
            keys = [draw() for _ in loose]
            loose = [loose[place] for place in sorted(range(len(loose)), key=keys.__getitem__)]
        if draw is not None and self.caption_tag_dropout_rate > 0:
            loose = [tag for tag in loose if draw() >= self.caption_tag_dropout_rate]
        if not self._splits(text):
            return text
        between = self.caption_separator if self.caption_separator.isspace() else f"{self.caption_separator.strip()} "
        joined = between.join([*first, *loose, *last])
        return joined if self.secondary_separator is None else joined.replace(self.secondary_separator, between)

    def _splits(self, text: str) -> bool:
        """Whether the text is taken apart at all; else it stays as it is written."""
        marks = (self.keep_tokens_separator, self.secondary_separator)
        return (
            self.shuffle_caption
            or self.caption_tag_dropout_rate > 0
            or any(mark is not None and mark in text for mark in marks)
        )

    def _parts(self, text: str) -> tuple[list[str], list[str], list[str]]:
        """Tags that stay in front, tags that may move and go, tags that stay at the end."""
        mark = self.keep_tokens_separator
        if mark is not None and mark in text:
            first, _, rest = text.partition(mark)
            loose, _, last = rest.partition(mark)
            return self._tags(first), self._tags(loose), self._tags(last.replace(mark, self.caption_separator))
        tags = self._tags(text)
        return tags[: self.keep_tokens], tags[self.keep_tokens :], []

    def _tags(self, text: str) -> list[str]:
        return [tag for tag in (part.strip() for part in text.split(self.caption_separator)) if tag]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionDraw:
    """Which caption an image is trained with at each time. seed: of the run. dropout: rate, and every how many epochs
    one is without captions."""

    rule: CaptionRule = CaptionRule()
    seed: int = 0
    dropout: tuple[float, int | None] = (0.0, None)

    @property
    def drops(self) -> bool:
        """Whether some images are trained without their caption."""
        rate, every = self.dropout
        return rate > 0 or every is not None

    def caption(self, item: Item, epoch: int, place: int) -> str:
        """What `item` is trained with in row `place` of `epoch`, both from 0: a version of its captions, "" if dropped.

        The answer follows from the arguments alone, so that a resumed run trains the same captions.
        """
        rate, every = self.dropout
        if is_dropped(item.key, self.seed, epoch, place, rate, every):
            return ""
        if not item.texts:
            return item.caption
        digest = hashlib.blake2b(f"version:{self.seed}:{epoch}:{place}:{item.key}".encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "big")
        return self._version(item, number if self.rule.fresh else number % self.rule.count(item.texts))

    def captions(self, item: Item) -> list[str]:
        """All that `item` may be trained with besides the empty caption, each once; meaningless where all are fresh."""
        if not item.texts:
            return [item.caption]
        numbers = range(self.rule.count(item.texts))
        return list(dict.fromkeys(self._version(item, number) for number in numbers))

    def _version(self, item: Item, number: int) -> str:
        return with_trigger(self.rule.version(item.texts, number, item.trigger), item.trigger)


def _hidden(text: str) -> str:
    """`text` with other characters for its braces that stay.

    What a }} closes follows from what is open: {{ makes it a brace that stays, two choices close one after the other.
    """
    opened: list[str] = []

    def hide(match: re.Match[str]) -> str:
        braces = match[0]
        if braces.startswith("{"):
            opened.append(braces)
            return _OPEN if len(braces) == 2 else braces
        hidden, left = "", len(braces)
        while left:
            pair = left > 1 and (not opened or opened[-1] == "{{")
            if opened and (pair or opened[-1] == "{"):
                opened.pop()
            hidden += _CLOSE if pair else "}"
            left -= 2 if pair else 1
        return hidden

    return _BRACES.sub(hide, text)


def _chosen(text: str, draw: Draw | None) -> str:
    """`text` with one of the words of each pair of braces, inner ones first."""

    def choose(match: re.Match[str]) -> str:
        words = match[1].split("|")
        return words[0 if draw is None else int(draw() * len(words))]

    text, count = _hidden(text), 1
    while count:
        text, count = _CHOICE.subn(choose, text)
    # {red | blue} leaves a space more than it should
    return " ".join(text.replace(_OPEN, "{").replace(_CLOSE, "}").split())
