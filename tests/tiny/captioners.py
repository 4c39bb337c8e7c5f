"""Builds tiny captioning models in the layout that transformers saves, with real tokenizers made from nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.bart.configuration_bart import BartConfig
from transformers.models.bert.tokenization_bert import BertTokenizer
from transformers.models.blip.configuration_blip import BlipConfig
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.blip.modeling_blip import BlipForConditionalGeneration
from transformers.models.blip.processing_blip import BlipProcessor
from transformers.models.blip_2.configuration_blip_2 import Blip2Config
from transformers.models.blip_2.modeling_blip_2 import Blip2ForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.florence2.configuration_florence2 import Florence2Config
from transformers.models.florence2.modeling_florence2 import Florence2ForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.roberta.tokenization_roberta import RobertaTokenizer

from backend.bench.rehearsal.tokenizers import WORDS, byte_alphabet, qwen_tokenizer

SIDE = 32
WIDTH = 16
INSTRUCTION = "Describe the photo."
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}{% if c.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c.text }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Large spots of colour, another for each seed."""
    numbers = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(numbers, "RGB").resize((width, height), Image.Resampling.BICUBIC)


def blip(folder: Path) -> None:
    """BLIP with a vocabulary of whole words, so that its captions can be read."""
    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "[DEC]", "[ENC]"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
    text = {
        "vocab_size": len(words), "hidden_size": WIDTH, "encoder_hidden_size": WIDTH, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64, "bos_token_id": len(words) - 2,
        "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0, "initializer_range": 0.5,
    }  # fmt: skip
    _save(BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=_blip_vision())), folder)
    BlipProcessor(BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}), tokenizer).save_pretrained(folder)


def blip2(folder: Path) -> None:
    """BLIP-2 before a small OPT."""
    folder.mkdir(parents=True)
    tokenizer = _byte_tokenizer(["<image>"])
    size = len(tokenizer)
    query = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
             "encoder_hidden_size": WIDTH, "vocab_size": 30, "initializer_range": 0.5}  # fmt: skip
    text = {"model_type": "opt", "vocab_size": size, "hidden_size": WIDTH, "num_hidden_layers": 2, "ffn_dim": 32,
            "num_attention_heads": 2, "max_position_embeddings": 64, "word_embed_proj_dim": WIDTH, "bos_token_id": 0,
            "eos_token_id": 2, "pad_token_id": 1, "init_std": 0.5}  # fmt: skip
    config = Blip2Config(
        vision_config=_blip_vision(),
        qformer_config=query,
        text_config=text,
        num_query_tokens=4,
        initializer_range=0.5,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    _save(Blip2ForConditionalGeneration(config), folder)
    BlipImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def florence(folder: Path) -> None:
    """Florence-2 in transformers' own layout."""
    folder.mkdir(parents=True)
    tokenizer = _byte_tokenizer(["<image>"], extra_special_tokens={"image_token": "<image>"})
    vision = {
        "depths": [1, 1], "embed_dim": [8, WIDTH], "num_heads": [1, 2], "num_groups": [1, 2], "patch_size": [7, 3],
        "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True], "window_size": 4,
        "projection_dim": WIDTH, "max_temporal_embeddings": 4, "max_position_embeddings": 8,
    }  # fmt: skip
    text = BartConfig(
        vocab_size=len(tokenizer), d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=128, init_std=0.5,
        bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = Florence2Config(text_config=text.to_dict(), vision_config=vision, image_token_id=image)
    _save(Florence2ForConditionalGeneration(config), folder)
    side = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size=side, crop_size=side, do_center_crop=False, image_seq_length=17).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


_QWEN: dict[str, tuple[type, type]] = {
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration),
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
}


def qwen(folder: Path, kind: str) -> None:
    """Qwen-VL of a model type."""
    words = qwen_tokenizer(folder, f"<|im_start|>user\n{INSTRUCTION}<|im_end|>\nassistant", ())
    text: dict[str, Any] = {
        "vocab_size": words, "hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "initializer_range": 0.5,
        "bos_token_id": None, "eos_token_id": words - 5, "pad_token_id": words - 7, "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
    }  # fmt: skip
    vision: dict[str, Any] = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": WIDTH, "hidden_size": WIDTH}
    else:
        vision |= {"hidden_size": WIDTH, "out_hidden_size": WIDTH, "intermediate_size": 32}
        vision |= {"window_size": 16, "fullatt_block_indexes": [1]} if kind == "qwen2_5_vl" else {}
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64} if kind == "qwen3_vl" else {}
    config_class, model_class = _QWEN[kind]
    marks = {"image_token_id": words - 2, "video_token_id": words - 1, "vision_start_token_id": words - 4}
    _save(model_class(config_class(text_config=text, vision_config=vision, **marks)), folder)
    Qwen2VLImageProcessorPil(patch_size=4, size={"shortest_edge": 256, "longest_edge": 100_000}).save_pretrained(folder)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT}), encoding="utf-8")


def build(kind: str, folder: Path) -> Path:
    """The tiny model of a `model_type`, made once a folder."""
    torch.manual_seed(0)
    makers = {"blip": blip, "blip-2": blip2, "florence2": florence}
    if kind in makers:
        makers[kind](folder)
    else:
        qwen(folder, kind)
    return folder


def copy(folder: Path, to: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(folder, to))


def _save(network: Any, folder: Path) -> None:
    network.eval().save_pretrained(folder)


def _blip_vision() -> dict[str, Any]:
    return {"hidden_size": WIDTH, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": SIDE, "patch_size": 8, "initializer_range": 0.5}  # fmt: skip


def _byte_tokenizer(more: list[str], **settings: Any) -> RobertaTokenizer:
    """Byte-level BPE as OPT, BART and Florence-2 have it."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *byte_alphabet()]
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = RobertaTokenizer(vocab=vocab, merges=[], **settings)
    tokenizer.add_tokens(more, special_tokens=True)
    return tokenizer
