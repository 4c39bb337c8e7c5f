"""Reads the chunks of a PNG file without decoding its pixels: whether it is whole, its size, profile and turn.

Every chunk of a PNG carries a checksum, so a file that is cut off or was changed is found without inflating it, which
is most of the work of a scan. Text chunks (prompts and workflows of image generators, of any length) are taken out
before Pillow sees the file: it refuses a picture whose text is longer than a megabyte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TEXT = frozenset({b"tEXt", b"zTXt", b"iTXt"})
# Text in which a turn may stand: EXIF as ImageMagick writes it, and Adobe's XMP.
_MAY_TURN = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
_LARGEST_PROFILE = 16 << 20
_ALPHA_TYPES = (4, 6)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: its four-letter kind, and where its content begins and ends in the file."""

    kind: bytes
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the chunks of a whole file say. width, height: px as stored. grey: one channel without palette.

    exif: the EXIF block, or empty. profile: the ICC profile; empty without one, None where it can't be unpacked.
    may_turn: a text chunk may hold a turn that only a full reader finds.
    """

    width: int
    height: int
    grey: bool
    may_be_clear: bool
    animated: bool
    exif: bytes
    profile: bytes | None
    may_turn: bool


def chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks of a PNG file, up to its end chunk or the first that the file is too short for."""
    place = len(SIGNATURE)
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        begin = place + 8
        if begin + length + 4 > len(data):
            return
        yield Chunk(kind, begin, begin + length)
        if kind == b"IEND":
            return
        place = begin + length + 4


def without_text(data: bytes) -> bytes:
    """`data`, a PNG file or any other, without text chunks but those that may hold a turn; pixels stay as they are."""
    if not data.startswith(SIGNATURE):
        return data
    dropped = [
        chunk
        for chunk in chunks(data)
        if chunk.kind in _TEXT and not data.startswith(_MAY_TURN, chunk.begin, chunk.end)
    ]
    if not dropped:
        return data
    kept, place = [], 0
    for chunk in dropped:
        kept.append(data[place : chunk.begin - 8])
        place = chunk.end + 4
    return b"".join([*kept, data[place:]])


def read_header(data: bytes) -> Header | None:
    """What the chunks say, if `data` is a PNG whose every chunk is there with the right checksum; None otherwise."""
    if not data.startswith(SIGNATURE):
        return None
    by_kind: dict[bytes, Chunk] = {}
    view = memoryview(data)
    pixels, may_turn = 0, False
    for chunk in chunks(data):
        (checksum,) = struct.unpack_from(">I", data, chunk.end)
        if zlib.crc32(view[chunk.begin - 4 : chunk.end]) != checksum:
            return None
        by_kind.setdefault(chunk.kind, chunk)
        pixels += chunk.end - chunk.begin if chunk.kind == b"IDAT" else 0
        may_turn = may_turn or (chunk.kind in _TEXT and _may_turn(data, chunk))
    first = by_kind.get(b"IHDR")
    if first is None or first.begin != len(SIGNATURE) + 8 or first.end - first.begin != 13:
        return None
    if b"IEND" not in by_kind or not pixels:
        return None
    width, height, _, colour = struct.unpack_from(">IIBB", data, first.begin)
    exif, profile = by_kind.get(b"eXIf"), by_kind.get(b"iCCP")
    return Header(
        width=width,
        height=height,
        grey=colour in (0, 4),
        may_be_clear=colour in _ALPHA_TYPES or b"tRNS" in by_kind,
        animated=b"acTL" in by_kind,
        exif=b"" if exif is None else data[exif.begin : exif.end],
        profile=b"" if profile is None else _profile(data[profile.begin : profile.end]),
        may_turn=may_turn,
    )


def has_profile(data: bytes) -> bool:
    """Whether `data` is a PNG file with a colour profile, readable or not."""
    return data.startswith(SIGNATURE) and any(chunk.kind == b"iCCP" for chunk in chunks(data))


def _may_turn(data: bytes, chunk: Chunk) -> bool:
    if not data.startswith(_MAY_TURN, chunk.begin, chunk.end):
        return False
    plain_xmp = chunk.kind == b"iTXt" and data[chunk.begin + len(_MAY_TURN[1])] == 0
    return not plain_xmp or data.find(b"Orientation", chunk.begin, chunk.end) >= 0


def _profile(content: bytes) -> bytes | None:
    """The ICC profile in an iCCP chunk: a name, a zero, the method (0), then deflated bytes."""
    _, zero, packed = content.partition(b"\0")
    if not zero or packed[:1] != b"\0":
        return None
    try:
        inflater = zlib.decompressobj()
        profile = inflater.decompress(packed[1:], _LARGEST_PROFILE)
    except zlib.error:
        return None
    return profile if inflater.eof and profile else None
