"""On which line a key stands, and that no text whatever brings the reader down."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from backend.config.lines import key_lines, line_of
from backend.config.load import Loaded, loads
from backend.config.reading import read_bytes
from backend.config.schema import Config
from backend.config.toml_io import dumps
from tests.tiny.values import configs

TEXT = '''# comment
top = 1

[a]
x = [
  1,
  2,
]
text = """
[not.a.header]
y = 3
"""
z = { k = 1, l = [ { m = 2 } ] }
[a.b]
"quoted key" = 1
[[rows]]
p = 1
[[rows]]
p = 2
q.r = 3
[rows.sub]
s = 1
'''


def test_lines_of_every_kind_of_key() -> None:
    lines = key_lines(TEXT)
    assert {path: lines[path] for path in lines if "[" not in path or path.startswith("rows")} == {
        "top": 2,
        "a": 4,
        "a.x": 5,
        "a.text": 9,
        "a.z": 13,
        "a.z.k": 13,
        "a.z.l": 13,
        "a.b": 14,
        "a.b.quoted key": 15,
        "rows": 16,
        "rows[0]": 16,
        "rows[0].p": 17,
        "rows[1]": 18,
        "rows[1].p": 19,
        "rows[1].q": 20,
        "rows[1].q.r": 20,
        "rows[1].sub": 21,
        "rows[1].sub.s": 22,
    }
    assert lines["a.x[1]"] == 5 and lines["a.z.l[0].m"] == 13


def test_what_is_not_there_is_where_it_would_be() -> None:
    lines = key_lines(TEXT)
    assert line_of(lines, "rows[1].missing") == 18
    assert line_of(lines, "a.missing") == 4
    assert line_of(lines, "nothing.at.all") is None


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str) -> None:
    assert key_lines(TEXT.replace("\n", end)) == key_lines(TEXT)


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(cfg=configs())
def test_every_key_of_a_written_file_is_found_on_its_own_line(cfg: Config) -> None:
    text = dumps(cfg)
    written = text.split("\n")
    for path, number in key_lines(text).items():
        name = path.rsplit(".", 1)[-1].split("[")[0]
        assert name in written[number - 1]


_PIECES = st.sampled_from(
    [
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        '"',
        "'",
        '"""',
        "\\",
        "\n",
        "\r",
        ",",
        "#",
        ".",
        " ",
        "\ufeff",
        "\x00",
        "é",
        "1",
        "-",
    ]
    + [
        "a",
        "dataset",
        "batch_size",
        "folders",
        "path",
        "true",
        "1e5",
        "inf",
        "2020-01-01",
        "schema_version",
        "compile_args",
    ]
)


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.lists(_PIECES, max_size=25).map("".join))
def test_no_text_raises(text: str) -> None:
    loaded = loads(text)
    assert isinstance(loaded, Loaded)
    assert loaded.config is not None or loaded.errors
    for problem in loaded.problems:
        assert problem.text and problem.remedy and problem.sentence()
        assert problem.line is None or 1 <= problem.line <= text.count("\n") + text.count("\r") + 1


@hypothesis_settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise(raw: bytes) -> None:
    read = read_bytes(raw)
    assert read.data is not None or read.problems


@pytest.mark.parametrize("text", ["x = " + "[" * 20000, "x = " + "1" * 10000])
def test_runaway_values_are_a_problem_not_a_crash(text: str) -> None:
    assert loads(text).errors
