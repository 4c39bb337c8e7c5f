"""Makes new captions of what a model said, beside the old ones, and the changes of files that they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.base.errors import Refused
from backend.dataset.caption_changes import CaptionChange
from backend.dataset.captions import with_trigger
from backend.runs.captioning.folder import Result, ResultFolder
from backend.runs.captioning.request import CaptionOptions, CaptionRequest, Target
from backend.runs.captioning.targets import has_words, old_captions

_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A new caption. old: what the file holds, None without one. left: a person left it out. edited: by a person."""

    target: Target
    old: str | None
    new: str
    left: bool = False
    edited: bool = False

    @property
    def change(self) -> CaptionChange:
        """The change of the file that it is."""
        return CaptionChange(self.target.file, self.old, self.new, self.target.entry)


def tidy(text: str) -> str:
    """What a model said on one line, since each line of a caption file may be a caption."""
    return _SPACES.sub(" ", text).strip()


def new_caption(words: str, old: str | None, options: CaptionOptions) -> str:
    """The caption to write: prefix and suffix around what the model said, after the old caption where it stays."""
    text = f"{options.prefix}{tidy(words)}{options.suffix}".strip()
    kept = (old or "").strip()
    if options.existing == "append" and kept:
        # appended a second time it would stand there twice
        text = kept if kept.endswith(text) else f"{kept.rstrip(' ,')}, {text}"
    # as training does it: "cat" is not in "category"
    return with_trigger(text, options.trigger)


def proposals(
    request: CaptionRequest,
    folder: ResultFolder,
    old: Callable[[Sequence[Target]], Mapping[Target, str | None | Refused]] = old_captions,
) -> Iterator[Proposal | Refused]:
    """The new captions that differ from the old ones, in the order of the images; a refusal where a file is broken.

    Images with a caption give none where they are to be left. old: reads captions, as `old_captions`.
    """
    results, choices = folder.results(), folder.choices()
    ready = {each: results[str(each.image)] for each in request.targets if str(each.image) in results}
    ready = {each: result for each, result in ready.items() if not result.error}
    captions = old([*ready])
    for target, result in ready.items():
        caption = captions[target]
        if isinstance(caption, Refused):
            yield caption
            continue
        proposal = _proposal(target, caption, result, request.options, choices.get(str(target.image), {}))
        if proposal is not None:
            yield proposal


def _proposal(
    target: Target, old: str | None, result: Result, options: CaptionOptions, choice: Mapping[str, Any]
) -> Proposal | None:
    if options.existing == "leave" and has_words(old):
        return None
    text = choice.get("text")
    edited = isinstance(text, str)
    new = text.strip() if isinstance(text, str) else new_caption(result.text, old, options)
    if new == (old or "").strip():
        return None
    return Proposal(target=target, old=old, new=new, left=choice.get("left") is True, edited=edited)
