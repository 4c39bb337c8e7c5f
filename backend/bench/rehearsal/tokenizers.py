"""Builds small tokenizers of the real classes from nothing, as published models hold them, in milliseconds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

# A handful of words so that captions take fewer tokens than letters, as in a real vocabulary.
WORDS = ("a", "the", "of", "on", "in", "with", "photo", "red", "green", "blue", "circle", "square", "star", "cat",
         "dog", "house", "tree", "and", "white", "black", "small", "large")  # fmt: skip
QWEN_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
                "<|video_pad|>")  # fmt: skip
LLAMA_SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<pad>")


def byte_alphabet() -> list[str]:
    """The letters that stand for the 256 bytes in byte-level BPE."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def clip_tokenizer(folder: Path, pad: str | None = None) -> None:
    """Byte-level BPE with `</w>` endings: vocab.json and merges.txt as CLIP has them. pad: its padding, if another."""
    from transformers import CLIPTokenizer

    alphabet = byte_alphabet()
    tokens = alphabet + [letter + "</w>" for letter in alphabet]
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            _merge(parts, tokens, merges)
    # the last token has the highest number, by which CLIP finds the end of a caption
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    vocab = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    padding = {} if pad is None else {"pad_token": pad}
    CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=77, **padding).save_pretrained(folder)


def t5_tokenizer(folder: Path) -> int:
    """Unigram over letters and words: tokenizer.json; returns the vocabulary's size."""
    from transformers import T5Tokenizer

    letters = [chr(code) for code in range(33, 127)]
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    vocab += [(f"▁{word}", -3.0) for word in WORDS]
    vocab += [(letter, -6.0) for letter in letters]
    tokenizer = T5Tokenizer(vocab=vocab, extra_ids=4, model_max_length=512)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def qwen_tokenizer(folder: Path, template: str, more: Iterable[str] = ()) -> int:
    """Byte-level BPE as Qwen has it, with a token for each word of `template`; returns the vocabulary's size.

    So the template takes as many tokens as with the real one. more: words that get a token too.
    """
    from transformers import Qwen2Tokenizer

    plain = re.sub(r"<\|.*?\|>", "\n", template)
    words = [*more, *(f" {word}" for word in WORDS), *re.findall(r" ?[A-Za-z]+", plain)]
    tokens, merges = byte_alphabet(), []
    for word in dict.fromkeys(words):
        parts = list(word.replace(" ", "Ġ"))
        while len(parts) > 1:
            _merge(parts, tokens, merges)
    folder.mkdir(parents=True)
    vocab = {token: number for number, token in enumerate([*tokens, *QWEN_SPECIAL])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=merges, extra_special_tokens=list(QWEN_SPECIAL[1:]))
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def llama_tokenizer(folder: Path, template: str) -> int:
    """Byte-level BPE as Llama 3 has it, with a token for each word of `template`; returns the vocabulary's size.

    So the template takes as many tokens as with the real one, the start token before it included.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    plain = re.sub(r"<\|.*?\|>|\d", "\n", template)
    words = [*(f" {word}" for word in WORDS), *re.findall(r" ?[A-Za-z]+", plain), "\n\n"]
    tokens, merges = byte_alphabet(), []
    for word in dict.fromkeys(words):
        parts = list(word.replace(" ", "Ġ").replace("\n", "Ċ"))
        while len(parts) > 1:
            _merge(parts, tokens, merges)
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), by_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in LLAMA_SPECIAL])
    start = LLAMA_SPECIAL[0]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A", special_tokens=[(start, tokenizer.token_to_id(start))]
    )
    folder.mkdir(parents=True)
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=start, pad_token=LLAMA_SPECIAL[-1])
    whole.save_pretrained(folder)
    return len(whole)


def _merge(parts: list[str], tokens: list[str], merges: list[tuple[str, str]]) -> None:
    """Join the first two of `parts`; a pair that is new becomes a token and a merge."""
    joined = parts[0] + parts[1]
    if joined not in tokens:
        tokens.append(joined)
        merges.append((parts[0], parts[1]))
    parts[:2] = [joined]
