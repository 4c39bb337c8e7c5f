"""Recognises what a file chosen as settings is when it is no UTF-8 text: a picture, an archive, another encoding."""

from __future__ import annotations

import codecs
import re

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"BM", "a BMP picture"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"PK\x03\x04", "a ZIP archive (or a .pt, .docx or .xlsx file, which are ZIP archives)"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"%PDF", "a PDF document"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"GGUF", "a GGUF model"),
    (b"\x80\x02", "a Python pickle, such as an old .ckpt model"),
)
_HEAD = 4096


def binary_kind(raw: bytes) -> str:
    """What a file that is no text is, with its article; empty where its first bytes say nothing or it may be text."""
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return "a WebP picture"
    if raw[8:10] == b'{"' and int.from_bytes(raw[:8], "little") < 1 << 32:
        return "a safetensors file"
    for magic, name in _MAGIC:
        # Two letters may begin a text as well; what follows them then is text.
        if raw.startswith(magic) and (len(magic) > 2 or b"\0" in raw[:_HEAD]):
            return name
    return ""


def text_encoding(raw: bytes) -> str:
    """The encoding that bytes, which are not UTF-8 or hold zero bytes, look like; empty where none fits."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _alternates(raw[:_HEAD]):
        return 'UTF-16 ("Unicode" in Windows)'
    if b"\0" in raw:
        return ""
    # In GBK high bytes come in pairs; in Windows-1252 single accented letters stand between plain ones.
    runs = [len(run) for run in re.findall(rb"[\x80-\xff]+", raw)]
    try:
        chinese = any("\u4e00" <= c <= "\u9fff" for c in raw.decode("gbk"))
    except UnicodeDecodeError:
        chinese = False
    if chinese and sum(run > 1 for run in runs) * 2 > len(runs):
        return "GBK (Chinese Windows)"
    try:
        raw.decode("cp1252")
    except UnicodeDecodeError:
        return ""
    return "Windows-1252"


def _alternates(head: bytes) -> bool:
    """Whether every other byte is zero, as in UTF-16 of Western text; stray zeros are not."""
    shares = sorted(part.count(0) / max(1, len(part)) for part in (head[0::2], head[1::2]))
    return shares[0] < 0.02 and shares[1] > 0.25
