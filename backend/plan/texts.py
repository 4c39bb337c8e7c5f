"""Counts the text tokens of a caption that reach the model, without torch: the family's length, or a caption bucket."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.families.files.base_model import BaseModelFiles
from backend.families.files.headers import read_json
from backend.families.spec import FamilyFacts, PictureTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from backend.config.schema import Config

log = logging.getLogger(__name__)

CountTokens = Callable[[str], int]

CHUNK = 75
"""Tokens of a caption that CLIP reads at once, between its start and end token."""


@dataclass(frozen=True)
class TextPlan:
    """Text lengths of a run, in tokens.

    length: what captions are padded or cut to; fixed: whatever a prompt asks for. buckets, count: lengths that they are
    trimmed to, and what counts the real tokens of a caption; None for no trimming, which also happens where the
    tokenizer can't be asked. before: tokens in front of these, always all there. picture: counts those of a control
    picture that is read with the caption; None for families whose text encoder sees none.
    """

    length: int
    buckets: tuple[int, ...] | None = None
    count: CountTokens | None = None
    fixed: bool = False
    before: int = 0
    picture: PictureTokens | None = None

    @property
    def reads_control(self) -> bool:
        """Whether a caption is encoded together with its control picture."""
        return self.picture is not None

    def reading(self, rows: Iterable[Iterable[tuple[int, int]]]) -> TextPlan:
        """The same with room in front for the control pictures of that one of `rows`, sizes in px, that takes most."""
        if self.picture is None:
            return self
        return replace(self, before=max((sum(self.picture(*size) for size in row) for row in rows), default=0))

    @property
    def tokens(self) -> int:
        """Tokens that reach the denoiser's blocks where nothing is trimmed."""
        return self.before + self.length

    def asked(self, length: int | None) -> int:
        """Tokens that a prompt which asks for `length` is encoded to; None takes the run's."""
        return (None if self.fixed else length) or self.length

    def fit(self, caption: str, length: int | None = None) -> int:
        """Tokens that reach the blocks of `caption` encoded at `length` (None: the run's).

        Those before it, and the smallest bucket that holds it.
        """
        length = self.asked(length)
        if self.buckets is None or self.count is None:
            return self.before + length
        real = self.count(caption)
        return self.before + min(length, next((bucket for bucket in self.buckets if bucket >= real), length))


def text_length_of(cfg: Config, facts: FamilyFacts) -> int:
    """Text tokens of a row; where CLIP reads them in chunks, with one start and one end token around all of these."""
    if "max_token_length" in facts.options:
        return facts.text_length + cfg.dataset.max_token_length - CHUNK
    if facts.fixed_text_length:
        return facts.text_length
    return cfg.model.text_length or facts.text_length


def token_counter(base: BaseModelFiles | Path, facts: FamilyFacts) -> CountTokens | None:
    """Counts the real tokens of a caption with the model's own tokenizer; None where there is none to read.

    It is read from tokenizer.json, or for CLIP and Qwen from vocab.json and merges.txt, which some models have alone.
    The tokenizer is the last of the family's: the one of the sequence, not of a pooled vector.
    """
    parts = [part for part in facts.parts if part.name.startswith("tokenizer")]
    place = BaseModelFiles.at(base).place(parts[-1]) if parts else None
    try:
        tokenizer = None if place is None else _tokenizer(place.path)
    except Exception as error:  # noqa: BLE001 - the Rust library raises bare Exception for a broken file
        log.warning("the tokenizer in %s can't be read: %s", place.path if place else "", error)
        return None
    if tokenizer is None:
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


def _tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer in `folder`; None where its files are missing. Whatever is wrong with them is raised."""
    # Only here: it is no small import.
    from tokenizers import Tokenizer

    whole, vocabulary, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if whole.is_file():
        return Tokenizer.from_file(str(whole))
    if not (vocabulary.is_file() and merges.is_file()):
        return None
    special = _special_tokens(folder / "tokenizer_config.json")
    return _qwen(vocabulary, merges, special) if "<|im_start|>" in special else _clip(vocabulary, merges)


def _special_tokens(config: Path) -> list[str]:
    """The tokens that tokenizer_config.json adds to the vocabulary, in their order."""
    added = read_json(config).get("added_tokens_decoder", {}) if config.is_file() else {}
    return [added[number]["content"] for number in sorted(added, key=int)]


def _qwen(vocabulary: Path, merges: Path, special: list[str]) -> Tokenizer:
    """Qwen2's byte pairs (transformers ``Qwen2Tokenizer``): words with the blank before them, digits one by one."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(*models.BPE.read_file(str(vocabulary), str(merges))))
    tokenizer.normalizer = normalizers.NFC()
    words = Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), by_bytes])
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


def _clip(vocabulary: Path, merges: Path) -> Tokenizer:
    """CLIP's byte pairs with its start and end token (openai/CLIP ``simple_tokenizer.py``)."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

    pairs = models.BPE.read_file(str(vocabulary), str(merges))
    tokenizer = Tokenizer(models.BPE(*pairs, continuing_subword_prefix="", end_of_word_suffix="</w>"))
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = Regex(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+")
    split = pre_tokenizers.Split(words, "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ends = [(name, pairs[0][name]) for name in ("<|endoftext|>", "<|startoftext|>")]
    tokenizer.post_processor = processors.RobertaProcessing(*ends, trim_offsets=False, add_prefix_space=False)
    return tokenizer
