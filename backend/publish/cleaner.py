"""Takes out of texts what tells of this machine and its person: paths, the home folder's name, and secrets."""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backend.base.paths import PROJECT_ROOT, resolve
from backend.base.redact import redact
from backend.config.schema import Config

_END = r"""[^\s"'<>|,;]"""
# Absolute paths of any system, also of another machine's; a web address is none.
_PATHS = (
    rf"file://{_END}+",
    rf"(?<![A-Za-z])[A-Za-z]:[\\/]{_END}+",
    rf"\\\\[\w.-]+\\{_END}+",
    rf"(?<![\w/:.])~[\\/]{_END}+",
    rf"(?<![\w/:.<])/[^\s\"'<>|,;/]+/{_END}*",
)
_SLASHES = re.compile(r"[\\/]+")


class Cleaner:
    """Cleans texts before they leave the machine. A path becomes its last part; home and user names become nothing."""

    def __init__(self, private: Iterable[Path]) -> None:
        """private: folders and files whose places nobody needs to know; home and project are among them anyway."""
        home = Path.home()
        self._names = {home.name, _user()} - {""}
        # a place may be reached by a link, too
        places = {form for path in (PROJECT_ROOT, *private) for form in (path, Path(os.path.realpath(path)))}
        paths = {str(path) for path in places if len(path.parts) > 2}
        paths |= {str(home), os.path.realpath(home)} - {home.anchor}
        self._private = sorted(paths, key=len, reverse=True)
        known = [rf"(?<!\w){re.escape(path)}(?![\w-])(?:[\\/]{_END}*)?" for path in self._private]
        self._path = re.compile("|".join([*known, *_PATHS]))

    @classmethod
    def of(cls, cfg: Config, *more: Path) -> Cleaner:
        """One that also knows every path that the settings of a run name."""
        return cls([*more, *_paths_in(cfg.model_dump(mode="json"))])

    def text(self, text: str) -> str:
        """The text without paths and secrets."""
        return self._path.sub(lambda match: self._last(match[0]), redact(text))

    def metadata(self, metadata: Mapping[str, str]) -> dict[str, str]:
        """The metadata of a file, of which some values are JSON."""
        return {self.text(key): self._value(value) for key, value in metadata.items()}

    def leftover(self, data: bytes) -> str | None:
        """A private path that is still in the bytes of a file; None where there is none."""
        for path in self._private:
            # in JSON a backslash is doubled
            for form in {path, path.replace("\\", "\\\\"), path.replace("\\", "/")}:
                if re.search(rb"(?<!\w)" + re.escape(form.encode("utf-8", "surrogateescape")) + rb"(?![\w-])", data):
                    return path
        return None

    def _value(self, value: str) -> str:
        try:
            document = json.loads(value)
        except ValueError:
            return self.text(value)
        if not isinstance(document, dict | list):
            return self.text(value)
        return json.dumps(self._inside(document), ensure_ascii=False)

    def _inside(self, value: Any) -> Any:
        if isinstance(value, str):
            return "" if value in self._names else self.text(value)
        if isinstance(value, dict):
            return {self._inside(key): self._inside(item) for key, item in value.items()}
        return [self._inside(item) for item in value] if isinstance(value, list) else value

    def _last(self, path: str) -> str:
        parts = [part for part in _SLASHES.split(path) if part and part != "~"]
        return "" if not parts or parts[-1] in self._names else parts[-1]


def _paths_in(value: Any) -> list[Path]:
    """Every absolute path among the values of the settings."""
    if isinstance(value, dict):
        return [path for item in value.values() for path in _paths_in(item)]
    if isinstance(value, list):
        return [path for item in value for path in _paths_in(item)]
    if isinstance(value, str) and (value.startswith("~") or Path(value).is_absolute()):
        return [resolve(value)]
    return []


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return ""
