"""Reads captions from the text files next to pictures, adds the trigger word, and decides which are dropped."""

from __future__ import annotations

import codecs
import hashlib
import re
import stat
from pathlib import Path

# More foreign bytes than this and the text is hardly Western: most likely GBK, Shift-JIS or the like.
_MOST_FOREIGN = 0.3
# Control codes; tab, line ends, form feed, DOS' end of file and escape do occur in text files.
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x19\x1c-\x1f]")


class BadCaption(ValueError):
    """A caption file whose text can't be made out; the message says why, without the path."""


def decode(data: bytes) -> tuple[str, str]:
    """Text of a caption file and the encoding it was in: "utf-8", "utf-16" or "cp1252".

    UTF-8 is the rule, with or without byte-order mark; UTF-16 is taken by its mark. Anything else is read as
    Windows-1252 when that makes sense. Raises BadCaption when it does not.
    """
    lines, encoding = decode_lines(data)
    return " ".join(lines), encoding


def decode_lines(data: bytes) -> tuple[list[str], str]:
    """The lines with text, without outer blanks, and the encoding. Raises as `decode`."""
    text, encoding = decode_whole(data)
    return _lines(text), encoding


def decode_whole(data: bytes) -> tuple[str, str]:
    """The text with its line ends and blanks, and the encoding. Raises as `decode`."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            return data.decode("utf-16"), "utf-16"
        except UnicodeDecodeError:
            raise BadCaption("it is marked as UTF-16, but is cut off or damaged") from None
    if b"\x00" in data:
        raise BadCaption("it contains zero bytes, so it is not a text")
    try:
        return data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError as error:
        return _western(data, error.start), "cp1252"


def read(path: Path) -> tuple[str, str]:
    """Caption and encoding of the file at `path`; OSError when it can't be read, BadCaption when it is no text."""
    return decode(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """The bytes of a caption file. Raises as `read`."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise BadCaption("it is a pipe, socket, device or folder, not a file")
    return path.read_bytes()


def is_text(data: bytes) -> bool:
    """Whether bytes may be a text in some encoding; pictures, weights and archives hold bytes that no text does."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    return not _NO_TEXT.search(data)


def with_trigger(caption: str, trigger: str | None) -> str:
    """`caption` with the trigger word in front, unless it already holds it as a word (in any letter case)."""
    trigger = (trigger or "").strip()
    if not trigger:
        return caption
    if not caption:
        return trigger
    return caption if holds(caption, trigger) else f"{trigger}, {caption}"


def holds(text: str, trigger: str) -> bool:
    """Whether `text` has the trigger word in it as a word, in any letter case."""
    trigger = trigger.strip()
    # Scripts without spaces have no word borders to look for.
    pattern = re.escape(trigger) if not trigger.isascii() else rf"(?<!\w){re.escape(trigger)}(?!\w)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def is_dropped(key: str, seed: int, epoch: int, place: int, rate: float, every_n_epochs: int | None = None) -> bool:
    """Whether this sight of a picture trains with the empty caption.

    key: the picture's content key. epoch: from 0. place: index of the row in the epoch, so that repeats are drawn
    apart. rate: 0 to 1. every_n_epochs: each n-th epoch (the n-th, 2n-th, ...) goes without captions, as in sd-scripts.
    The answer depends on the arguments alone, so a resumed run drops the same captions.
    """
    if every_n_epochs and (epoch + 1) % every_n_epochs == 0:
        return True
    if rate <= 0.0:
        return False
    digest = hashlib.blake2b(f"caption:{seed}:{epoch}:{place}:{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < rate


def _western(data: bytes, start: int) -> str:
    foreign = sum(byte > 0x7F for byte in data)
    if foreign > _MOST_FOREIGN * len(data):
        raise BadCaption(f"it is not UTF-8 (byte {start + 1} is 0x{data[start]:02X})")
    try:
        return data.decode("cp1252")
    except UnicodeDecodeError as error:
        place = f"byte {error.start + 1} is 0x{data[error.start]:02X}"
        raise BadCaption(f"it is neither UTF-8 nor Windows-1252 ({place})") from None


def _lines(text: str) -> list[str]:
    """The lines that hold something: line ends in caption files are layout, where each line is no caption."""
    return [part for part in (line.strip() for line in text.splitlines()) if part]
