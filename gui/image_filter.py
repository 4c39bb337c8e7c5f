"""Filters the images of the page's scan: by status, shape, bucket, caption and tags; and counts their tags."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from backend.dataset.caption_edits import tags_of
from backend.dataset.items import Item
from gui.dataset_scan import PageScan

Status = Literal["", "problem", "no_caption", "never", "validation", "masked", "several", "edited"]
_Text = Annotated[str, Field(max_length=1000)]
# Sides that differ by less are a square's.
_SQUARE = 1.05
# More tags than these are reached by searching.
_MOST_TAGS = 300
_WORDS: dict[str, str] = {
    "problem": "With a problem",
    "no_caption": "Without a caption",
    "never": "Never trained",
    "validation": "For validation",
    "masked": "With a mask",
    "several": "Several captions",
    "edited": "Edited since the scan",
}
_SHAPES = {"landscape": "Landscape", "portrait": "Portrait", "square": "Square"}


class ImageFilter(BaseModel):
    """Which images are shown: those that all of it is true of. text: a part of a caption, in any letter case.

    has, without: tags, letter by letter. bucket: as the page writes it.
    """

    status: Status = ""
    shape: Literal["", "landscape", "portrait", "square"] = ""
    bucket: _Text = ""
    text: _Text = ""
    has: list[_Text] = Field(default_factory=list, max_length=50)
    without: list[_Text] = Field(default_factory=list, max_length=50)


@dataclass(frozen=True, slots=True)
class _Entry:
    text: str
    tags: frozenset[str]
    bucket: str
    shape: str
    states: frozenset[str]


class ImageIndex:
    """What filters compare, of each image of a scan; made again for those that have changed."""

    def __init__(self, scan: PageScan) -> None:
        self._scan = scan
        self._made_of: tuple[int, int] | None = None
        self._items: list[Item] = []
        self._entries: list[_Entry] = []
        # a page asks for images and tags at once, and several tabs may
        self._lock = threading.Lock()

    def matching(self, wanted: ImageFilter) -> list[int] | None:
        """The numbers of the images; None where nothing is filtered."""
        if not any(getattr(wanted, name) for name in ImageFilter.model_fields):
            return None
        text, has, without = wanted.text.casefold(), frozenset(wanted.has), frozenset(wanted.without)
        return [
            number
            for number, entry in enumerate(self._all())
            if (not wanted.status or wanted.status in entry.states)
            and (not wanted.shape or wanted.shape == entry.shape)
            and (not wanted.bucket or wanted.bucket == entry.bucket)
            and text in entry.text
            and has <= entry.tags
            and not without & entry.tags
        ]

    def facets(self) -> dict[str, Any]:
        """What there is to filter by, with counts: statuses, shapes and buckets that some image has."""
        entries = self._all()
        states = Counter(state for entry in entries for state in entry.states)
        shapes = Counter(entry.shape for entry in entries)
        buckets = Counter(entry.bucket for entry in entries if entry.bucket)
        return {
            "status": [[name, words, states[name]] for name, words in _WORDS.items() if states[name]],
            "shape": [[name, words, shapes[name]] for name, words in _SHAPES.items() if shapes[name]],
            "bucket": [[name, name, count] for name, count in sorted(buckets.items(), key=lambda row: -row[1])],
        }

    def tags(self, numbers: Iterable[int] | None, part: str) -> dict[str, Any]:
        """The most frequent tags of these images, those that have `part` in them; with how many there are."""
        entries, wanted = self._all(), part.casefold()
        counts: Counter[str] = Counter()
        for number in range(len(entries)) if numbers is None else numbers:
            counts.update(entries[number].tags)
        rows = [(tag, count) for tag, count in counts.items() if wanted in tag.casefold()]
        rows.sort(key=lambda row: (-row[1], row[0]))
        return {"tags": rows[:_MOST_TAGS], "of": len(rows)}

    def _all(self) -> list[_Entry]:
        with self._lock:
            return self._renewed()

    def _renewed(self) -> list[_Entry]:
        scan = self._scan
        state, items = (scan.number, scan.edition), list(scan.items)
        if self._made_of != state or len(items) != len(self._items):
            self._items, self._entries = [], []
        same = [number < len(self._items) and item is self._items[number] for number, item in enumerate(items)]
        if not all(same) or not items:
            troubled, separator = scan.troubled(), scan.separator
            self._entries = [
                self._entries[number]
                if same[number]
                else _entry(scan, item, troubled, separator, number >= scan.trained)
                for number, item in enumerate(items)
            ]
        self._items, self._made_of = items, state
        return self._entries


def _entry(scan: PageScan, item: Item, troubled: frozenset[str], separator: str, held_out: bool) -> _Entry:
    texts = [text for text in scan.texts_of(item) if text]
    files = (item.path, item.caption_path, item.mask and item.mask.path)
    is_true: dict[str, Callable[[], bool]] = {
        "problem": lambda: any(str(file) in troubled for file in files if file),
        "no_caption": lambda: not scan.says_more(item),
        "never": lambda: scan.is_never_trained(item),
        "validation": lambda: held_out,
        "masked": lambda: item.mask is not None,
        "several": lambda: len(item.texts) > 1,
        "edited": lambda: scan.is_edited(item),
    }
    ratio = item.width / item.height
    shape = "square" if 1 / _SQUARE < ratio < _SQUARE else "landscape" if ratio > 1 else "portrait"
    tags = frozenset(tag for text in texts for tag in tags_of(text, separator))
    states = frozenset(name for name, holds in is_true.items() if holds())
    return _Entry("\n".join(texts).casefold(), tags, scan.bucket(item), shape, states)


def numbers_in(numbers: Sequence[int], count: int) -> list[int]:
    """Those of `numbers` that are images of a scan of `count`, each once."""
    return [number for number in dict.fromkeys(numbers) if 0 <= number < count]
