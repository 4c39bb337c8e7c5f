"""Copies of the project that are set up for real, with tiny wheels."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny.clone import Clone


@pytest.fixture(scope="session")
def ready_clone(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """A copy that has been set up once, what it said then in files beside it; the tests take copies of it."""

    def make(folder: Path) -> None:
        clone = Clone.new(folder / "mono tile")
        done = clone.offline("--port", "7999", "--no-browser")
        assert done.returncode == 0, done.stderr
        (folder / "said").write_text(done.stderr)
        (folder / "page.json").write_text(done.stdout)

    return once("ready_clone", make) / "mono tile"


@pytest.fixture
def fresh(tmp_path: Path) -> Clone:
    """A clean clone: nothing is set up."""
    return Clone.new(tmp_path / "fresh clone")


def link_pip(source: str, to: str) -> None:
    """Copy a file; of pip, which is a thousand files that nobody changes in place, only another name is made."""
    if "/site-packages/pip" in source:
        os.link(source, to)
    else:
        shutil.copy2(source, to)


@pytest.fixture
def ready(ready_clone: Path, tmp_path: Path) -> Clone:
    """A clone after its first start, in a folder with a space in its name."""
    root = tmp_path / "ready clone"
    shutil.copytree(ready_clone, root, symlinks=True, copy_function=link_pip)
    return Clone(root)
