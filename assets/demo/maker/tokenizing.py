"""Makes the two tokenizers of a FLUX pipeline from the demo's own captions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import CLIPTokenizer, T5TokenizerFast

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789,.-'!?"
RARE = 8  # a word seen less often than this is spelt in pieces, as any new word will be


def make_t5(texts: Sequence[str], max_length: int) -> T5TokenizerFast:
    """A Unigram tokenizer with T5's special tokens (pad 0, end 1, unknown 2), a piece for each common word.

    The pieces are counted rather than trained: on so few distinct words the trainer keeps hardly a whole word, and a
    long caption would not fit `max_length` tokens.
    """
    words = Counter(word for text in texts for word in re.findall(r"[a-z']+", text.lower()))
    total = sum(words.values())
    common = [(f"▁{word}", math.log(n / total)) for word, n in words.most_common() if n >= RARE]
    rare = Counter(word[i : i + 2] for word, n in words.items() if n < RARE for i in range(len(word) - 1))
    pairs = [(pair, -11.0) for pair, _ in rare.most_common(120)]
    letters = [(letter, -12.0) for letter in ALPHABET]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -9.0)]
    vocab = [*special, *common, *sorted(pairs), *letters]
    return T5TokenizerFast(vocab=vocab, extra_ids=0, additional_special_tokens=[], model_max_length=max_length)


def make_clip(texts: Sequence[str], vocab_size: int, folder: Path) -> CLIPTokenizer:
    """A byte-level BPE tokenizer with CLIP's word ends and special tokens. vocab.json and merges.txt go to `folder`."""
    tokenizer = Tokenizer(
        models.BPE(continuing_subword_prefix="", end_of_word_suffix="</w>", unk_token="<|endoftext|>")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    # Each letter also ends a word here, so that no new word holds an unknown piece.
    tokenizer.train_from_iterator([*texts, " ".join(ALPHABET)], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    special = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    config = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "unk_token": "<|endoftext|>", **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return CLIPTokenizer.from_pretrained(str(folder))
