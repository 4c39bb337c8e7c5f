"""Finds near-duplicates among the images of the page's scan, in a subprocess, shows them in groups, leaves some out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from backend.base.files import write_atomic
from backend.base.paths import PROJECT_ROOT
from backend.dataset import near_duplicates
from gui.dataset_scan import PageScan
from gui.jobs import Job

_SETTING = "dataset.excluded_images"
GROUPS = 12
"""Groups that are shown at a time."""
_MOST_SHOWN = 24
# Where the page's scans keep what images look like.
_MEMORY = PROJECT_ROOT / "cache"


class NearDuplicates:
    """The newest search, of the newest scan."""

    def __init__(self, scan: PageScan) -> None:
        self.scan = scan
        self.job = Job()
        self.done = 0
        self.total = 0
        self._of = 0  # the scan that was searched
        self._groups: list[list[int]] = []
        self._text = ""

    def start(self) -> bool:
        """Search the images of the scan; False when a search runs, or there is nothing to search."""
        scan = self.scan
        numbers = [number for number, item in enumerate(scan.items) if item.window is None]
        if self.job.state == "running" or not numbers:
            return False
        items = [scan.items[number] for number in numbers]
        images = [[item.key, str(item.path), item.width, item.height] for item in items]
        path = scan.folder / "near_duplicates.json"
        write_atomic(path, json.dumps({"cache_dir": str(_MEMORY), "images": images}))
        self.done, self.total, self._of, self._groups, self._text = 0, len(images), scan.number, [], ""
        output: dict[str, Any] = {}

        def line(document: dict[str, Any]) -> None:
            if document.get("kind") == "progress":
                self.done, self.total = document["done"], document["total"]
            elif document.get("kind") == "result":
                output.update(document)

        def end(code: int, errors: str) -> bool:
            if "groups" not in output:
                last = errors.splitlines()[-1] if errors else ""
                self._text = f"The search ended early (exit code {code}). {last}".strip()
                return False
            self._groups = [[numbers[at] for at in group] for group in output["groups"]]
            if output["unread"]:
                self._text = f"{output['unread']:,} could not be read and were left out."
            return True

        return self.job.start(near_duplicates.__name__, [str(path)], line, end)

    def change(self, scan: int, number: int, excluded: Sequence[str], out: bool) -> dict[str, Any] | None:
        """What to set so that a group is trained as its best image alone, or as a whole again; None without the group.

        scan, number: of the scan and of its group, from 0. excluded: paths that the form leaves out now.
        """
        if scan != self.scan.number or scan != self._of or not 0 <= number < len(self._groups):
            return None
        group = self._groups[number]
        paths = {str(self.scan.items[at].path) for at in group}
        kept = [path for path in excluded if path not in paths]
        return {_SETTING: [*kept, *(self._others(group) if out else ())] or None}

    def _others(self, group: list[int]) -> list[str]:
        """Paths of all but the best image; a folder that is chosen twice has an image twice."""
        best = str(self.scan.items[self._best(group)].path)
        return [path for path in dict.fromkeys(str(self.scan.items[at].path) for at in group) if path != best]

    def _best(self, group: list[int]) -> int:
        """The image of a group that stays: the largest, of several one with a caption, of these the first."""
        items = self.scan.items
        return max(group, key=lambda at: (items[at].width * items[at].height, bool(items[at].caption), -at))

    def facts(self, page: int, excluded: Sequence[str] = ()) -> dict[str, Any]:
        """State, progress, and one page of groups. A search of an earlier scan counts for nothing.

        excluded: paths that the form leaves out now.
        """
        is_now = self._of == self.scan.number
        state = self.job.state if is_now else "idle"
        groups = self._groups if is_now and state == "done" else []
        pages = max(1, -(-len(groups) // GROUPS))
        page = min(max(0, page), pages - 1)
        return {
            "state": state,
            "scan": self.scan.number,
            "done": self.done,
            "total": self.total,
            "text": self._text if is_now else "",
            "groups": len(groups),
            "images": sum(map(len, groups)),
            "page": page,
            "pages": pages,
            "shown": [
                self._group(number, groups[number], frozenset(excluded))
                for number in range(page * GROUPS, min(len(groups), (page + 1) * GROUPS))
            ],
        }

    def _group(self, number: int, group: list[int], excluded: frozenset[str]) -> dict[str, Any]:
        best = self._best(group)
        items = [(number, self.scan.items[number]) for number in group]
        keys = [item.key for _, item in items]
        return {
            "number": number,
            "count": len(group),
            "out": any(path not in excluded for path in self._others(group)),
            "items": [
                {
                    "index": at,
                    "name": item.path.name,
                    "path": str(item.path),
                    "width": item.width,
                    "height": item.height,
                    "caption": item.caption[:300],
                    "same": keys.count(item.key) > 1,
                    "best": at == best,
                    "left": str(item.path) in excluded,
                }
                for at, item in items[:_MOST_SHOWN]
            ],
        }
