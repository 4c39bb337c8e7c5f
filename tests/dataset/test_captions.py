"""Captions: encodings, the trigger word, dropout."""

from __future__ import annotations

import pytest

from backend.dataset.captions import BadCaption, decode, is_dropped, with_trigger


@pytest.mark.parametrize(
    ("data", "text", "encoding"),
    [
        (b"a cat", "a cat", "utf-8"),
        (b"", "", "utf-8"),
        (b"\xef\xbb\xbfa cat", "a cat", "utf-8"),
        ("Größe 猫".encode(), "Größe 猫", "utf-8"),
        (b"  a cat,\r\n\r\nblack \n", "a cat, black", "utf-8"),
        (b"the artist\x92s caf\xe9, drawn in ink", "the artist\u2019s caf\u00e9, drawn in ink", "cp1252"),
        ("a cat".encode("utf-16"), "a cat", "utf-16"),
    ],
)
def test_decode(data: bytes, text: str, encoding: str) -> None:
    assert decode(data) == (text, encoding)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("一只黑色的猫坐在窗台上".encode("gbk"), "not UTF-8"),
        ("黒い猫が窓辺に座っている".encode("shift-jis"), "not UTF-8"),
        (b"a plain caption with one odd byte \x81 in it, long enough", "0x81"),
        (b"\xff\xfea", "UTF-16"),
        (b"a\x00b\x00", "zero bytes"),
    ],
)
def test_what_can_not_be_made_out_is_named(data: bytes, words: str) -> None:
    with pytest.raises(BadCaption, match=words):
        decode(data)


@pytest.mark.parametrize(
    ("caption", "trigger", "expected"),
    [
        ("a cat", "sks", "sks, a cat"),
        ("a SKS cat", "sks", "a SKS cat"),
        ("skss cat", "sks", "sks, skss cat"),
        ("a cat, sks", "sks", "a cat, sks"),
        ("", "sks", "sks"),
        ("a cat", None, "a cat"),
        ("a cat", "  ", "a cat"),
        ("猫です", "猫", "猫です"),
        ("a [v] cat", "[v]", "a [v] cat"),
    ],
)
def test_trigger_word(caption: str, trigger: str | None, expected: str) -> None:
    assert with_trigger(caption, trigger) == expected


def test_dropout_rate_is_met_and_depends_on_its_arguments_alone() -> None:
    drops = [is_dropped(f"key{i}", 42, 3, i, 0.2) for i in range(5000)]
    assert 0.17 < sum(drops) / len(drops) < 0.23
    assert drops == [is_dropped(f"key{i}", 42, 3, i, 0.2) for i in range(5000)]
    # Fixed values: another Python or machine must draw the same.
    assert [i for i in range(40) if drops[i]] == [0, 4, 11, 13, 14, 19, 22, 34, 35, 39]
    others = [is_dropped(f"key{i}", 43, 3, i, 0.2) for i in range(5000)]
    later = [is_dropped(f"key{i}", 42, 4, i, 0.2) for i in range(5000)]
    assert drops != others and drops != later


def test_dropout_ends_and_whole_epochs() -> None:
    assert not any(is_dropped("k", 1, epoch, 0, 0.0) for epoch in range(50))
    assert all(is_dropped("k", 1, epoch, 0, 1.0) for epoch in range(50))
    assert [is_dropped("k", 1, epoch, 0, 0.0, 3) for epoch in range(7)] == [False, False, True] * 2 + [False]
