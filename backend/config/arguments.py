"""Splits a command line into settings (``--name value``, ``--name=value``) and the words of the command itself."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from backend.base.errors import Refused


def split(arguments: Sequence[str], own: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """The words of the command itself, and the settings by name, given in any order.

    own: names of the command's own options, without dashes; they and everything that does not begin with ``--`` are
    left to the command's parser. Refused for a setting without a value.
    """
    words: list[str] = []
    settings: dict[str, str] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name in own:
            words.append(word)
            continue
        if not equals:
            if not left or left[0].startswith("--"):
                raise Refused(f"--{name} has no value", f"Write --{name} VALUE.")
            value = left.pop(0)
        settings[name] = value
    return words, settings
