"""The settings reference is made from the schema and is current."""

from __future__ import annotations

from pathlib import Path

from backend.config.reference import TARGET, reference, write
from backend.config.schema import settings


def test_the_page_in_docs_is_current() -> None:
    assert TARGET.read_text(encoding="utf-8") == reference(), "run: python -m backend.config.reference"


def test_every_setting_and_column_is_in_it() -> None:
    text = reference()
    for s in settings():
        assert f"### {s.name}\n" in text and s.help in text
        for column in s.columns:
            assert f"- **{column.name}**" in text


def test_it_is_written_only_when_it_changed(tmp_path: Path) -> None:
    target = tmp_path / "docs" / "settings.md"
    assert write(target) and not write(target)
    target.write_text("old", encoding="utf-8")
    assert write(target) and target.read_text(encoding="utf-8") == reference()
