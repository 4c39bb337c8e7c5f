"""Headers of safetensors files that no honest program writes: refused by name, whatever reads them."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.torch
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backend.base.errors import Refused
from backend.families.files.headers import Unreadable, read_header
from backend.families.table import family
from backend.latents.identity import file_identity
from backend.lora.comfyui_keys import LayerNames
from backend.lora.file_contents import inspect_lora
from gui.run_routes import safetensors_metadata

DEEP = b'{"a":' * 200_000
MORE_THAN_WHOLE = 17_000_000
"""Bytes from which on a file's identity is made of its header and parts of its tensors."""


def entry(begin: Any = 0, end: Any = 16, shape: Any = (2, 2), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def written(path: Path, header: Any, size: int = 64) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + size)
    return path


BROKEN: list[tuple[Any, str]] = [
    (DEEP, "nested far deeper"),
    (b'{"__metadata__":' + b"[" * 200_000, "nested far deeper"),
    ({"x": entry(-16, 0)}, "x is from byte -16 to byte 0"),
    ({"x": entry(32, 16)}, "x is from byte 32 to byte 16"),
    ({"x": entry(), "y": entry(8, 24)}, "y and x use the same bytes"),
    ({"x": entry(), "y": entry()}, "use the same bytes"),
    ({"x": entry(0, 8)}, "x has 8 bytes, not the 16 that [2, 2] in F32 needs"),
    ({"x": entry(0, 16, (-2, -2))}, "x has a negative size"),
    ({"x": entry(0, 16, (2**40, 2**40))}, "x has 16 bytes"),
    ({"x": entry(0.0, 16.0)}, "not a safetensors file"),
    ({"x": entry(False, True, (1,), "U8")}, "not a safetensors file"),
    ({"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8, 16]}}, "not a safetensors file"),
    ({"x": entry(0, 16, None)}, "not a safetensors file"),
    ({"x": entry(dtype=["F32"])}, "not a safetensors file"),
    ([entry()], "not a safetensors file"),
]


@pytest.mark.parametrize(("header", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_a_broken_header_is_refused_by_name_by_all_that_read_one(header: Any, words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "it.safetensors", header, MORE_THAN_WHOLE)
    with pytest.raises(Unreadable, match=re.escape(words)):
        read_header(path)
    with pytest.raises(Refused, match=r"it\.safetensors .*" + re.escape(words)):
        inspect_lora(path, LayerNames({}))
    with pytest.raises(ValueError, match=r"it\.safetensors .*" + re.escape(words)):
        safetensors_metadata(path)
    assert words in family("flux").check_base_model(path)[0].text
    assert len(file_identity(path)) == 64


def test_tensors_behind_the_end_of_the_file_are_missing_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "it.safetensors", {"x": entry(2**62, 2**62 + 16)})
    assert read_header(path).missing_bytes == 2**62 + 16 - 64
    with pytest.raises(Refused, match=r"it\.safetensors is cut short"):
        inspect_lora(path, LayerNames({}))


NUMBERS = st.one_of(st.integers(-20, 80), st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=2))
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "", None, 3]),
        "shape": st.one_of(st.lists(NUMBERS, max_size=3), st.lists(st.integers(0, 4), max_size=2), NUMBERS),
        "data_offsets": st.one_of(st.lists(st.integers(-4, 70), min_size=2, max_size=2), st.lists(NUMBERS, max_size=3)),
    }
)
JSON = st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))
HEADERS = st.one_of(
    st.dictionaries(st.sampled_from(["x", "y", "z", "__metadata__"]), st.one_of(ENTRIES, JSON), max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", "z"]), ENTRIES, min_size=1, max_size=3),
    JSON,
    st.binary(max_size=64),
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=HEADERS)
@example(header={"x": entry(), "y": entry(16, 32)})
def test_any_header_is_read_or_refused_in_words(header: Any, tmp_path: Path) -> None:
    """What is read lies in the file, apart, and in a size that its shape has; what safetensors reads is read here."""
    path = written(tmp_path / "it.safetensors", header)
    try:
        header_read = read_header(path)
    except Unreadable as error:
        with pytest.raises(safetensors.SafetensorError), safetensors.safe_open(path, "pt"):
            pass
        assert str(error) and error.remedy
        return
    spans = sorted(span for span in header_read.spans.values() if span[0] < span[1])
    assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:], strict=False))
    assert all(0 <= begin <= end for begin, end in header_read.spans.values())
    assert header_read.missing_bytes == max(
        0, max((end for _, end in header_read.spans.values()), default=0) - path.stat().st_size
    )


def test_every_format_that_safetensors_writes_has_its_width(tmp_path: Path) -> None:
    kinds = {value for value in vars(torch).values() if isinstance(value, torch.dtype)} - {torch.complex32}
    seen = 0
    for kind in kinds:
        try:
            zeros = torch.zeros(4, 2, dtype=torch.uint8).to(kind)
            safetensors.torch.save_file({"x": zeros}, tmp_path / "x.safetensors")
        except (RuntimeError, NotImplementedError, safetensors.SafetensorError, KeyError, ValueError):
            continue
        assert read_header(tmp_path / "x.safetensors").tensors["x"][1] == (4, 2)
        seen += 1
    assert seen >= 12
