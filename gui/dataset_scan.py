"""Scans the dataset in a subprocess, then plans shapes, for the Dataset and Compile tabs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.config import toml_io
from backend.config.schema import Config
from backend.dataset.buckets import Fit
from backend.dataset.caption_variants import CaptionRule
from backend.dataset.items import ClipReport, DatasetScan, Item
from backend.dataset.scan import folder_specs, most_controls, validation_specs
from backend.dataset.scan_captions import bare, class_caption, finished
from backend.dataset.scan_state import FolderSpec
from backend.families.table import FAMILIES
from backend.plan.make_plan import plan_for
from backend.plan.memory.work import RunWork, work_of
from gui import clip_strips, messages, plans, plots
from gui.jobs import Job
from gui.thumbnails import Thumbnails

PAGE = 48
# A smaller share of the area is rounding.
_LEAST_CROP = 0.005
# Settings outside these sections change neither the scan nor the plan.
_SECTIONS = (
    "model",
    "dataset",
    "captions",
    "masks",
    "augmentation",
    "network",
    "video",
    "training",
    "compile",
    "sampling",
    "validation",
)
# What the scan itself reads. After a change of anything else, only the plan is made again.
_SCANNED = (
    *("folders", "excluded_images", "caption_extension", "trigger_word", "cache_dir", "validation_split"),
    "validation_split_seed",
)
_OTHER_IMAGES = "The dataset settings have changed since this scan. Scan again."
_OTHER_CAPTIONS = "Captions were edited since this scan. Scan again to count them."
_ERRORS = "Some settings have errors. This is the plan from before them."
# Without an image to train on there is nothing to plan.
_NO_PLAN: dict[str, Any] = {
    "headline": "", "steps": "", "modes": [], "recommended": "", "lines": [], "lists": [], "histogram": ""
}  # fmt: skip


class PageScan:
    """The newest scan of the page, and the one that is running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = Job()
        self._thumbnails = Thumbnails(folder / "thumbs")
        # The scan that ``items`` are of: while the next one runs, those that are shown can still be opened.
        self.number = 0
        self.done = 0
        self.total = 0
        self.problems: list[dict[str, Any]] = []
        self.items: list[Item] = []
        self.result: dict[str, Any] | None = None
        self._written: dict[Path, Item] = {}  # images whose captions were edited since
        self.trained = 0  # the first so many items are trained on; the rest are for validation
        self._clips: dict[Path, ClipReport] = {}
        self._config: Config | None = None
        self._buckets: dict[str, str] = {}
        self._fits: dict[str, Fit] = {}
        self._never: frozenset[Path] = frozenset()
        self._specs: list[FolderSpec] = []
        self.edition = 0  # counts scans and plans
        self._scan: DatasetScan | None = None
        self._work: RunWork | None = None
        self._lock = threading.Lock()

    def start(self, config: Config) -> bool:
        """Start a scan of what this config trains on; False when one is running."""
        if self.job.state == "running":
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "scan.toml"
        toml_io.dump(config, path, whole=True)
        self.done = self.total = 0
        self.problems = []
        output: dict[str, Any] = {}

        def line(document: dict[str, Any]) -> None:
            kind = document.get("kind")
            if kind == "progress":
                self.done, self.total = document["done"], document["total"]
            elif kind in ("result", "problems"):
                output.update(document)

        def end(code: int, errors: str) -> bool:
            if "dataset" not in output:
                self.problems = output.get("problems") or [
                    {
                        "severity": "error",
                        "text": f"The dataset could not be scanned (exit code {code}).",
                        "remedy": errors.splitlines()[-1] if errors else "",
                    }
                ]
                return False
            self._written = {}
            self._take(config, DatasetScan.from_dict(output["dataset"]), self.job.number)
            return True

        arguments = ["--config", str(path), "--json", "--progress"]
        return self.job.start("backend.dataset", arguments, line, end)

    def facts(self, now: Config | None) -> dict[str, Any]:
        """State, progress, and the result, its plan that of ``now``; ``stale`` says why it is out of date.

        now: the form as a config; None while it has errors.
        """
        state = self.job.state
        if state in ("idle", "cancelled"):
            state = "done" if self.result else "idle"
        self._follow(now)
        result = self.result
        if result is not None:
            other = now is not None and not self._seen(now)
            written = _OTHER_CAPTIONS if self._written else ""
            result = result | {"stale": _OTHER_IMAGES if other else _ERRORS if now is None else written}
        return {
            "scan": self.job.number,
            "state": state,
            "done": self.done,
            "total": self.total,
            "problems": self.problems if state == "failed" else [],
            "result": result if state == "done" else None,
        }

    @property
    def caption_extension(self) -> str:
        """File extension of the caption files of the scanned images."""
        return self._config.dataset.caption_extension if self._config else ".txt"

    @property
    def more_extensions(self) -> list[str]:
        """Endings of further caption files."""
        return self._config.captions.more_caption_extensions if self._config else []

    @property
    def caption_lines(self) -> bool:
        """Whether each line of a caption file is a caption."""
        return self._config is not None and self._config.captions.caption_lines

    @property
    def trigger_word(self) -> str | None:
        """The word at the start of each of their captions."""
        return self._config.dataset.trigger_word if self._config else None

    def finished(self, item: Item, texts: Sequence[str]) -> Item:
        """`item` with these captions, as a scan would have it."""
        if self._config is None:
            return item
        spec = self._spec(item)
        rule = CaptionRule.of(self._config.captions)
        caption, texts, trigger = finished(texts, spec, rule, self.trigger_word)
        return replace(item, caption=caption, texts=texts, trigger=trigger)

    def bare(self, item: Item) -> str:
        """Its first caption as it is written: without the trigger word and what its folder writes around each."""
        return bare(next(iter(item.texts), item.caption), self._spec(item), self.trigger_word)

    def _spec(self, item: Item) -> FolderSpec:
        return next((each for each in self._specs if item.path.is_relative_to(each.path)), FolderSpec(item.path.parent))

    def edited(self, index: int, item: Item) -> None:
        """Take over an image whose caption was edited."""
        self.items[index] = self._written[item.path] = item

    def bucket(self, item: Item) -> str:
        """The bucket of an image that is trained; "" of others."""
        return self._buckets.get(item.key, "")

    def is_never_trained(self, item: Item) -> bool:
        """Whether no batch holds it."""
        return item.path in self._never

    def is_edited(self, item: Item) -> bool:
        """Whether its caption was edited since the scan."""
        return item.path in self._written

    def texts_of(self, item: Item) -> tuple[str, ...]:
        """Its captions as they are trained, without what its folder writes around each."""
        spec = self._spec(item)
        before, after = f"{spec.prefix} " if spec.prefix else "", f" {spec.suffix}" if spec.suffix else ""
        return tuple(text.removeprefix(before).removesuffix(after) for text in item.texts or (item.caption,))

    @property
    def separator(self) -> str:
        """What is between two tags of a caption."""
        return self._config.captions.caption_separator if self._config else ","

    def says_more(self, item: Item) -> bool:
        """Whether it has a caption besides the trigger word that all have."""
        return _says_more(item, self.trigger_word)

    def troubled(self) -> frozenset[str]:
        """Paths of files that a warning or an error of the scan names."""
        findings = [] if self._scan is None else self._scan.findings
        return frozenset(file for finding in findings if finding.severity != "note" for file in finding.files)

    def without_file(self, item: Item) -> tuple[str, ...]:
        """Its captions where no file and no table has one: what its folder gives."""
        return (class_caption(self._spec(item), item.path),)

    def work(self, now: Config) -> RunWork | None:
        """What the plan lists; None before a scan, and when the form has another dataset since."""
        if self._scan is None or self.result is None or not self._seen(now) or not self._scan.train.items:
            return None
        self._follow(now)
        if self._work is None:
            self._work = work_of(now, plan_for(now, self._scan))
        return self._work

    def _seen(self, now: Config) -> bool:
        """Whether these settings name the images that were scanned."""
        return self._config is not None and _scanned(now) == _scanned(self._config)

    def _follow(self, now: Config | None) -> None:
        """Make the plan again where settings have changed that the scan does not read."""
        if now is None or self._scan is None or self.job.state == "running":
            return
        with self._lock:
            if self._seen(now) and _relevant(now) != _relevant(self._config):
                self._take(now, self._scan)

    def page(self, number: int, order: Sequence[int] | None = None) -> dict[str, Any]:
        """One page of images with their captions. order: the numbers of all images, where they are sorted."""
        shown = range(len(self.items)) if order is None else order
        pages = max(1, -(-len(shown) // PAGE))
        number = min(max(0, number), pages - 1)
        first = number * PAGE
        return {
            "scan": self.number,
            "pages": pages,
            "of": len(shown),
            "items": [
                {
                    "index": index,
                    "name": item.path.name,
                    "caption": item.caption[:300],
                    "width": item.width,
                    "height": item.height,
                    "bucket": self.bucket(item),
                    "crop": crop_facts(item, self._fits.get(item.key)),
                    "validation": index >= self.trained,
                    "clip": self._clip_facts(item),
                    "masked": item.mask is not None,
                    "captions": len(item.texts) or 1,
                }
                for index in shown[first : first + PAGE]
                for item in (self.items[index],)
            ],
        }

    def thumb(self, index: int) -> bytes | None:
        """A small JPEG of one image of this scan, or None. The browser gives a number, never a path."""
        if not 0 <= index < len(self.items):
            return None
        return self._thumbnails.of(self.items[index])

    def strip(self, index: int) -> bytes | None:
        """Frames of one clip of this scan, side by side as a JPEG, or None."""
        item = self.items[index] if 0 <= index < len(self.items) else None
        clip = None if item is None else self._clips.get(item.path)
        if item is None or item.window is None or clip is None:
            return None
        return self._thumbnails.strip(item, clip_strips.frame_times(clip.seconds, item.width, item.height))

    def _clip_facts(self, item: Item) -> dict[str, Any] | None:
        clip = None if item.window is None else self._clips.get(item.path)
        return None if clip is None else clip_strips.clip_facts(clip)

    def _take(self, config: Config, scan: DatasetScan, number: int | None = None) -> None:
        """Take over a scan and make its plan. number: of another scan; None: the same one, planned again."""
        trained = clip_strips.one_of_each_clip(scan.train.items)
        held_out = [item for folder in scan.validation.values() for item in clip_strips.one_of_each_clip(folder.items)]
        every = [*trained, *held_out]
        # the plan takes seconds: a browser that still shows the scan of before must not name images of this one
        self.number = self.number if number is None else number
        self.items, self.trained = [self._written.get(item.path, item) for item in every], len(trained)
        self._clips = {Path(clip.path): clip for part in (scan.train, *scan.validation.values()) for clip in part.clips}
        self._config, self._scan, self._work = config, scan, None
        self._specs = [*folder_specs(config), *validation_specs(config)]
        problems = [messages.finding_facts(finding) for finding in scan.findings]
        counts = {
            "images": sum(1 for item in trained if item.window is None),
            "clips": sum(1 for item in trained if item.window is not None),
            "windows": sum(1 for item in scan.train.items if item.window is not None),
            "with_caption": sum(1 for item in trained if _says_more(item, config.dataset.trigger_word)),
            "validation": len(held_out),
            "sizes": len({(item.width, item.height) for item in scan.train.items}),
            "ignored": sum(scan.train.ignored.values()),
        }
        self._buckets, self._fits, self._never = {}, {}, frozenset()
        self.result = {"counts": counts, "problems": problems} | _NO_PLAN | {"lists": _left_out(scan)}
        if scan.train.items:
            self._plan(config, scan)
        # not before: what filters keep of the images has their buckets
        self.edition += 1

    def _plan(self, config: Config, scan: DatasetScan) -> None:
        result = self.result
        assert result is not None
        planned = plans.for_page(config, scan)
        self._buckets, self._fits = planned.pop("bucket_of"), planned.pop("fit_of")
        self._never = planned.pop("never")
        bars = planned.pop("bars")
        advice = planned.pop("findings")
        self.result = result | {
            "problems": [*result["problems"], *advice],
            "histogram": plots.histogram(bars, "Images in each bucket"),
            **planned,
            "lists": [*result["lists"], *planned["lists"]],
        }


def crop_facts(item: Item, fit: Fit | None) -> dict[str, Any] | None:
    """The part of an image that is trained, in shares of its width and height; None where it is all or not known.

    lost: share of its area.
    """
    if fit is None or item.window is not None or fit.crop < _LEAST_CROP:
        return None
    left, top, right, bottom = fit.box
    across, down = item.width, item.height
    box = {"left": left / across, "top": top / down, "width": (right - left) / across, "height": (bottom - top) / down}
    return {"box": box, "lost": fit.crop}


def _left_out(scan: DatasetScan) -> list[dict[str, Any]]:
    """The images that are not used, as a list of the page."""
    every = [row for part in (scan.train, *scan.validation.values()) for row in part.left_out]
    rows = [{"name": Path(path).name, "note": messages.sentence(why)} for path, why in dict.fromkeys(every)]
    return [{"title": "Left out", "items": rows}] if rows else []


def _says_more(item: Item, trigger_word: str | None) -> bool:
    """Whether it has a caption, of a file or a list, and not only the trigger word that all have."""
    return item.caption not in ("", (trigger_word or "").strip())


def _relevant(config: Config | None) -> dict[str, Any] | None:
    return None if config is None else {name: getattr(config, name).model_dump() for name in _SECTIONS}


def _scanned(config: Config) -> list[Any]:
    dataset = config.dataset.model_dump()
    measured = config.validation.model_dump()["validation_folders"]
    paired = any(row["control_path"] for row in [*dataset["folders"], *measured])
    # The scan reads as many control images as the family takes.
    clips = None if FAMILIES[config.model.family].video is None else config.video.model_dump()
    captions = config.captions.model_dump()
    # how many versions are made changes the plan alone
    del captions["caption_variants"]
    return [
        *(dataset[name] for name in _SCANNED),
        captions,
        config.masks.alpha_mask,
        measured,
        paired and most_controls(config),
        clips,
    ]
