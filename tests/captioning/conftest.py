"""Tiny captioning models, built once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.tiny import captioners


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model, by its `model_type`."""
    root = tmp_path_factory.mktemp("captioners")
    return cache(lambda kind: captioners.build(kind, root / kind))
