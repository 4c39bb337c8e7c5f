"""Records what the set-up has done in an environment, so that the next start knows what is left to do."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path


@dataclass
class Stamp:
    """Hashes of the requirements files that are installed whole; None while one is not.

    `torch_index`: the index that torch was taken from, so that a later start keeps to it. `left_out`: NVIDIA extras
    that could not be installed, each with the reason.
    """

    base: str | None = None
    tests: str | None = None
    extras: str | None = None
    torch_index: str | None = None
    left_out: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write it whole or not at all."""
        part = path.with_name(path.name + ".part")
        with open(part, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(self), indent=1))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)


def read(path: Path) -> Stamp:
    """The stamp at `path`; an empty one where there is none or it can't be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Stamp(**{each.name: data[each.name] for each in fields(Stamp) if each.name in data})
    except (OSError, ValueError, TypeError):
        return Stamp()
