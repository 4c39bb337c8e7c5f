"""Hashes of a base model's file, by which other programs find it again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from backend.families.files.hashes import ModelHashes, legacy_hash


def test_both_hashes_are_those_that_sd_scripts_writes(tmp_path: Path) -> None:
    """library/train_util.py: model_hash and calculate_sha256."""
    data = bytes(range(256)) * 6000
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    metadata = ModelHashes(path).metadata()
    assert metadata == {
        "ss_sd_model_hash": hashlib.sha256(data[0x100000:0x110000]).hexdigest()[:8],
        "ss_new_sd_model_hash": hashlib.sha256(data).hexdigest(),
    }
    path.write_bytes(b"short")
    assert legacy_hash(path) == hashlib.sha256(b"").hexdigest()[:8]


def test_a_folder_and_a_file_that_is_not_there_have_none(tmp_path: Path) -> None:
    for path in (None, tmp_path, tmp_path / "absent"):
        assert ModelHashes(path).metadata() == {}


def test_a_file_in_work_is_not_waited_for_longer_than_asked(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    hashes = ModelHashes(path)
    assert hashes.metadata(wait_s=0.0) == {}
    hashes.stop()
    assert hashes.metadata() == {}
