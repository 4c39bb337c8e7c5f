"""Reads the arguments of a training command as people keep them: a shell script, a batch file, one line of text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from backend.config.file_kinds import names

LISTS = names("network_args optimizer_args lr_scheduler_args base_weights base_weights_multiplier text_encoder_lr")
"""Arguments that take several values; of any other the words are one text."""
_SCRIPT = re.compile(r"\.pyw?[\"']?$", re.IGNORECASE)
_OPTION = re.compile(r"--?(?P<name>[A-Za-z_][\w-]*)(?:=(?P<value>.*))?$", re.DOTALL)
_SET = re.compile(r"^\s*(?:export\s+|set\s+)?\"?(?P<name>[A-Za-z_]\w*)=(?P<value>.*?)\"?\s*$", re.IGNORECASE)
_SHELL_NAME = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_BATCH_NAME = re.compile(r"%(\w+)%")
_BATCH_SIGNS = re.compile(r"\^\s*$|%\w+%|^\s*(?:@echo|rem\b|set\s+\"?\w+=)", re.MULTILINE | re.IGNORECASE)


_BETWEEN = ("&&", "||", ";", "&", "|")
_Word = tuple[str, int, set[str]]
"""A word, its line from 1, and the variables in it that are not set."""


@dataclass
class Command:
    """One command. script: the file that Python runs. values: its arguments, texts, lists of texts, or True.

    lines: from 1, by name. launcher: options in front of the script, which are for accelerate. unset: variables that
    the text does not set, by the argument whose value has them.
    """

    script: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    launcher: list[str] = field(default_factory=list)
    unset: dict[str, set[str]] = field(default_factory=dict)


def read_commands(text: str) -> list[Command]:
    """Every command with options in a script. ValueError, with the line, for a quote that is not closed."""
    batch = bool(_BATCH_SIGNS.search(text))
    variables: dict[str, str] = {}
    commands = []
    for number, line in _joined(text):
        assignment = _SET.match(line)
        if assignment and not re.search(r"\.pyw?\b", assignment["value"]):
            variables[assignment["name"].lower() if batch else assignment["name"]] = assignment["value"].strip("\"'")
            continue
        try:
            words = list(_words(line, batch, variables))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        read = [_command(group, number) for group in _groups(words)]
        commands += [command for command in read if command.values or command.script]
    return commands


def arguments_of(text: str) -> dict[str, Any]:
    """The options in one line of text, as kohya_ss keeps further ones. ValueError for a quote that is not closed."""
    return _command(list(_words(text.replace("\n", " "), False, {})), 1).values


def training(commands: list[Command]) -> Command | None:
    """The command that trains: of those that run a training script, else of all, the one with the most options."""
    of_training = [each for each in commands if re.search(r"train|fine_tune|finetune", each.script, re.IGNORECASE)]
    return max(of_training or commands, key=lambda each: len(each.values), default=None)


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Each command line with its continuations, and the number of its first line; newlines stay, for the lines."""
    parts: list[str] = []
    begin = 1
    for number, line in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        bare = line.strip()
        if not parts and (not bare or bare.startswith(("#", "::", "@echo")) or re.match(r"rem\b", bare, re.IGNORECASE)):
            continue
        begin = begin if parts else number
        # a comment between the lines of a command is no part of it
        kept = "" if bare.startswith("#") else line
        more = re.search(r"\s?[\\^`]\s*$", kept) if kept else bool(parts)
        parts.append(kept[: more.start()] if kept and more else kept)
        if not more:
            yield begin, "\n".join(parts)
            parts = []
    if parts:
        yield begin, "\n".join(parts)


def _groups(words: list[_Word]) -> Iterator[list[_Word]]:
    """The commands that stand in one line."""
    group: list[_Word] = []
    for word in words:
        if word[0] in _BETWEEN:
            yield group
            group = []
        else:
            group.append(word)
    yield group


def _command(words: list[_Word], number: int) -> Command:
    command = Command()
    scripts = [place for place, (word, _, _) in enumerate(words) if _SCRIPT.search(word)]
    first = scripts[0] + 1 if scripts else 0
    if scripts:
        command.script = words[scripts[0]][0]
        command.launcher = [word for word, _, _ in words[:first] if word.startswith("-")]
    name, words_of_value = "", []
    for word, place, unset in [*words[first:], ("", 0, set())]:
        option = _OPTION.match(word) if word.startswith("--") else None
        if option is None and place:
            if name:
                words_of_value.append(word)
                _open(command, name, unset)
            continue
        if name:
            command.values[name] = _value(name, words_of_value)
        if option is not None:
            name, words_of_value = option["name"], [option["value"]] if option["value"] is not None else []
            command.lines[name] = number + place - 1
            _open(command, name, unset)
    return command


def _open(command: Command, name: str, unset: set[str]) -> None:
    if unset:
        command.unset.setdefault(name, set()).update(unset)


def _value(name: str, words: list[str]) -> Any:
    if name in LISTS:
        return words
    return " ".join(words) if words else True


def _words(line: str, batch: bool, variables: Mapping[str, str]) -> Iterator[_Word]:
    """The words of a command with variables set in, the line of each, from 1, and variables that are not set."""
    for row, part in _pieces(line):
        lexer = shlex.shlex(part, posix=not batch, punctuation_chars=False)
        lexer.whitespace_split, lexer.commenters = True, ""
        if batch:
            lexer.quotes = '"'
        for word in lexer:
            bare = word.replace('"', "") if batch else word
            unset: set[str] = set()
            whole = _set_in(bare, batch, variables, unset)
            # a variable may hold several arguments
            parts = whole.split() if whole != bare and whole.startswith("--") else [whole]
            yield from ((part, row, unset) for part in parts)


def _pieces(line: str) -> Iterator[tuple[int, str]]:
    """Lines of a command; those between which a quote is open stay together."""
    held: list[str] = []
    begin, is_open = 1, False
    for row, part in enumerate(line.split("\n"), 1):
        begin = begin if held else row
        held.append(part)
        is_open ^= re.sub(r"\\.", "", part).count('"') % 2 == 1
        if not is_open:
            yield begin, "\n".join(held)
            held = []
    if held:
        yield begin, "\n".join(held)


def _set_in(word: str, batch: bool, variables: Mapping[str, str], unset: set[str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = next(group for group in match.groups() if group)
        text = variables.get(name.lower() if batch else name)
        if text is None:
            unset.add(name)
            return match.group()
        return text

    for _ in range(5):  # a variable may be made of others
        replaced = (_BATCH_NAME if batch else _SHELL_NAME).sub(value, word)
        if replaced == word or len(replaced) > 10_000:
            break
        word = replaced
    return word
