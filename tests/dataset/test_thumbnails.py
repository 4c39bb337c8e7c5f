"""Small pictures are made in a process of bounded memory, one at a time, and a bad one ends nothing."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
from PIL import Image

from backend.base.paths import PROJECT_ROOT
from backend.dataset.items import Item
from gui.thumbnails import Thumbnails
from tests.tiny.pictures import cut_off, noise_jpeg, picture


def vast_png(path: Path, side: int) -> Path:
    """A black RGB picture of side x side px in a few kilobytes."""
    packer = zlib.compressobj(1)
    row = bytes(1 + 3 * side)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    return path


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of address space for a process")
def test_a_vast_picture_has_no_preview_and_takes_no_memory(tmp_path: Path) -> None:
    vast = vast_png(tmp_path / "vast.png", 10_000)
    assert vast.stat().st_size < 3_000_000
    small = picture(tmp_path / "small.png", (400, 200))
    code = (
        "import sys, json\n"
        "from backend.dataset import thumbnails\n"
        "thumbnails.limit_memory(400_000_000)\n"
        "for line in sys.stdin: print(json.dumps(thumbnails.reply_to(json.loads(line))))"
    )
    asked = [{"path": str(path), "to": str(tmp_path / "t" / f"{path.stem}.jpg"), "px": 300} for path in (vast, small)]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PROJECT_ROOT,
        input="".join(json.dumps(each) + "\n" for each in asked),
        capture_output=True,
        text=True,
        timeout=120,
    )
    replies = [json.loads(line)["fault"] for line in done.stdout.splitlines()]
    assert replies[0] is not None and replies[1:] == [None], done.stderr
    assert Image.open(tmp_path / "t" / "small.jpg").size == (300, 150)


def test_many_pages_share_one_process_and_a_bad_picture_ends_nothing(tmp_path: Path) -> None:
    thumbnails = Thumbnails(tmp_path / "thumbs")
    paths = [noise_jpeg(tmp_path / f"{number}.jpg", (900, 600)) for number in range(3)]
    paths.insert(1, cut_off(noise_jpeg(tmp_path / "bad.jpg")))
    items = [Item(path.name, path, 900, 600, "") for path in paths]
    made: dict[int, bytes | None] = {}
    processes = set()

    def ask(number: int) -> None:
        made[number] = thumbnails.of(items[number])
        processes.add(thumbnails._process)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert made.pop(1) is None and len(processes) == 1
        assert {Image.open(io.BytesIO(data or b"")).size for data in made.values()} == {(300, 200)}
    finally:
        thumbnails.end()
    # Kept: no process is needed for them again.
    assert thumbnails.of(items[0]) == made[0] and thumbnails._process is None
