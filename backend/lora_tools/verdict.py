"""Defines what one program makes of a LoRA file."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a program does with a file. ignored: keys that it leaves out. error: why it takes none of them at all."""

    program: str
    total: int
    ignored: list[str] = field(default_factory=list)
    error: str | None = None
    note: str = ""

    @property
    def loaded(self) -> int:
        """Keys that it takes."""
        return 0 if self.error else self.total - len(self.ignored)

    def sentence(self) -> str:
        """The verdict in words."""
        if self.error:
            return f"{self.program} does not load it: {self.error}"
        if not self.ignored:
            return f"{self.program} loads all {self.total} keys."
        rest = f" and {len(self.ignored) - 3} more" if len(self.ignored) > 3 else ""
        named = ", ".join(self.ignored[:3]) + rest
        return f"{self.program} loads {self.loaded} of {self.total} keys and ignores {named}."
