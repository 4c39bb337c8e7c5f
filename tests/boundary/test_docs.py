"""What the documents name as proof is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_each_test_that_the_documents_name_exists() -> None:
    named = {
        pair
        for page in (ROOT / "docs").rglob("*.md")
        for pair in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    lacking = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert lacking == []
