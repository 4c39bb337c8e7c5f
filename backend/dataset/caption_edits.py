"""Changes the text of captions: find and replace, add, remove and rename tags. Pure functions of the text.

Tags are what stands between separators in a line. They are compared letter by letter, as they are counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from backend.base.paths import PROJECT_ROOT

# An expression can take longer than the universe lasts ("(a+)+b"); what takes this long for all captions is refused.
_PATIENCE_S = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """A change of captions.

    find, text: of "replace" what is looked for and what comes in its place; of "add" `text` is the tags; of "remove"
    and "rename" `find` is a tag, and `text` its new name. regex: `find` is a regular expression of Python, and `text`
    may name its groups. match_case: of "replace". at_end: of "add". separator: between tags. lines: each line is a
    caption of its own.
    """

    kind: Literal["replace", "add", "remove", "rename"]
    find: str = ""
    text: str = ""
    regex: bool = False
    match_case: bool = False
    at_end: bool = True
    separator: str = ","
    lines: bool = False

    def words(self) -> str:
        """What is done, for a list of changes."""
        if self.kind == "replace":
            return f"Replace “{self.find}” with “{self.text}”"
        if self.kind == "add":
            return f"Add “{self.text}” {'at the end' if self.at_end else 'in front'}"
        return f"Remove the tag “{self.find}”" if self.kind == "remove" else f"Rename “{self.find}” to “{self.text}”"

    def fault(self) -> str:
        """Why it can't be done, in a sentence; "" when it can."""
        if self.kind != "add" and not (self.find if self.kind == "replace" else self.find.strip()):
            return "Say what to look for." if self.kind == "replace" else "Choose a tag."
        if self.kind in ("add", "rename") and not tags_of(self.text, self.separator):
            return "Write a tag."
        if self.kind == "rename" and len(tags_of(self.text, self.separator)) > 1:
            return "The new name has a tag separator in it."
        return ""

    def of_all(self, texts: Sequence[str]) -> list[str]:
        """The new text of each caption. ValueError, in words, for a wrong expression and one that takes too long."""
        if self.kind == "replace" and self.regex:
            return _substituted(self.find, self.text, self._flags(), texts)
        one = {"replace": self._replaced, "add": self._added, "remove": self._renamed, "rename": self._renamed}
        return [one[self.kind](text) for text in texts]

    def _flags(self) -> int:
        return int(re.MULTILINE | (0 if self.match_case else re.IGNORECASE))

    def _replaced(self, text: str) -> str:
        if self.match_case:
            return text.replace(self.find, self.text).strip()
        return re.sub(re.escape(self.find), lambda _: self.text, text, flags=re.IGNORECASE).strip()

    def _added(self, text: str) -> str:
        wanted = tags_of(self.text, self.separator)

        def one(caption: str) -> str:
            own = set(tags_of(caption.replace("\n", self.separator), self.separator))
            fresh = [tag for tag in wanted if tag not in own]
            caption = caption.strip()
            if not fresh or not caption:
                return caption if not fresh else self._between.join(fresh)
            if not self.at_end:
                return self._between.join([*fresh, caption])
            return self._between.join([caption.removesuffix(self.separator.strip() or self.separator), *fresh])

        return "\n".join(map(one, text.split("\n"))) if self.lines else one(text)

    def _renamed(self, text: str) -> str:
        old, new = self.find.strip(), self.text.strip() if self.kind == "rename" else ""
        return "\n".join(filter(None, (self._renamed_in(line, old, new) for line in text.split("\n"))))

    def _renamed_in(self, line: str, old: str, new: str) -> str:
        parts = line.split(self.separator)
        if old not in (part.strip() for part in parts):
            return line
        known = {part.strip() for part in parts}
        kept: list[str] = []
        for part in parts:
            if part.strip() != old:
                kept.append(part)
            elif new and new not in known:
                known.add(new)
                kept.append(part.replace(old, new))
        return self.separator.join(kept).strip()

    @property
    def _between(self) -> str:
        return self.separator if self.separator.isspace() else f"{self.separator.strip()} "


def tags_of(text: str, separator: str) -> list[str]:
    """The tags of a caption in their order."""
    return [tag for tag in (part.strip() for part in text.split(separator)) if tag]


def _substituted(find: str, text: str, flags: int, captions: Sequence[str]) -> list[str]:
    """`re.sub` in a process that can be ended: an expression holds the interpreter as long as it likes."""
    request = json.dumps({"find": find, "text": text, "flags": flags, "captions": list(captions)})
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, cwd=PROJECT_ROOT, input=request, capture_output=True, text=True, encoding="utf-8",
            timeout=_PATIENCE_S,
        )  # fmt: skip
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise ValueError(f"The expression takes longer than {_PATIENCE_S:.0f} s. Write a simpler one.") from None
    except ValueError:
        raise ValueError("The expression could not be used. Write a simpler one.") from None
    if "fault" in answer:
        raise ValueError(f"The expression is not valid: {answer['fault']}.")
    return [str(caption) for caption in answer["captions"]]


def main() -> int:
    """Answer one request on stdin."""
    request = json.load(sys.stdin)
    try:
        pattern = re.compile(request["find"], request["flags"])
        answer = {"captions": [pattern.sub(request["text"], text).strip() for text in request["captions"]]}
    except (re.error, IndexError) as error:
        answer = {"fault": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
