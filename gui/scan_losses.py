"""Brings the images of the page's scan together with the losses that runs measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from backend.dataset.items import Item
from backend.runs.picture_table import TRAINED, PictureId
from backend.runs.picture_verdicts import PictureResult
from gui.dataset_scan import PageScan
from gui.picture_results import SORTS, UNKNOWN, loss_facts, read_results
from gui.run_store import RunStore

Order = Literal["", "verdict", "change", "loss"]


class ScanLosses:
    """The losses of the scanned images, in whichever run measured them."""

    def __init__(self, scan: PageScan, store: RunStore) -> None:
        self._scan = scan
        self._store = store

    def page(self, number: int, order: Order, run: str | None, filtered: Sequence[int] | None = None) -> dict[str, Any]:
        """One page of images with their losses in the named run, else in the newest; and which runs there are.

        filtered: the numbers of those that are shown; None for all. `order` of the answer lists the images by their
        number where they are sorted or filtered; it is None for all in the scan's order.
        """
        results, names = self._results()
        shown = run if run in names else next(iter(names), None)
        known = results.get(shown, {}) if shown is not None else {}
        sorted_items = None if filtered is None else list(filtered)
        if order and known:
            key = SORTS[order]
            indexes = range(len(self._scan.items)) if filtered is None else filtered
            sorted_items = sorted(indexes, key=lambda index: key(known[index]) if index in known else UNKNOWN)
        page = self._scan.page(number, sorted_items)
        for item in page["items"]:
            result = known.get(item["index"])
            item["losses"] = None if result is None else loss_facts(result)
        return page | {"runs": names, "run": shown, "order": sorted_items}

    def one(self, index: int, run: str) -> dict[str, Any] | None:
        """The losses of one image in a run; None where it has none."""
        results, _ = self._results()
        result = results.get(run, {}).get(index)
        return None if result is None else loss_facts(result)

    def _results(self) -> tuple[dict[str, dict[int, PictureResult]], list[str]]:
        """Of each run that measured some of the scanned images, by name: the results by the image's number."""
        if not self._scan.items:
            return {}, []
        by_run: dict[str, dict[int, PictureResult]] = {}
        for run in self._store.runs():
            matched = _matched(self._scan.items, self._scan.trained, read_results(run))
            if matched:
                by_run[run.name] = matched
        return by_run, list(by_run)


def _matched(items: Sequence[Item], trained: int, results: Sequence[PictureResult]) -> dict[int, PictureResult]:
    """The result of each image: that of its file, else of a file with the same content; by the image's number."""
    exact = {result.picture: result for result in results}
    by_set = {(result.picture.set == TRAINED, result.picture.key): result for result in results}
    by_file = {(result.picture.key, result.picture.path): result for result in results}
    by_number = {}
    for index, item in enumerate(items):
        is_trained, path = index < trained, str(item.path)
        result = (exact.get(PictureId(TRAINED, item.key, path)) if is_trained else None) or (
            by_set.get((is_trained, item.key)) or by_file.get((item.key, path))
        )
        if result is not None:
            by_number[index] = result
    return by_number
