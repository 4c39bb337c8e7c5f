"""Holds what a scan finds: pictures, findings about them, and a document of both for the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from backend.base.problems import Problem, sentences

# A finding names this many files in its sentence; all of them are in its list.
NAMED_FILES = 3


@dataclass(frozen=True, slots=True)
class Window:
    """The frames of a clip that are trained on together.

    Frame k of the window is the one that the file shows `start` + k / `rate` seconds after its first one. start: in
    seconds. frames: how many, a length that the family has. rate: frames a second that are taken; 0 of a picture that
    stands still, from which a sample starts.
    """

    start: float
    frames: int
    rate: float

    @property
    def seconds(self) -> float:
        """How long its frames are shown."""
        return self.frames / self.rate if self.rate else 0.0

    @property
    def times(self) -> tuple[float, ...]:
        """When each of its frames is shown, in seconds after the file's first one."""
        return tuple(self.start + number / self.rate for number in range(self.frames))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"start": self.start, "frames": self.frames, "rate": self.rate}


@dataclass(frozen=True, slots=True)
class Mask:
    """What of a picture counts.

    key: SHA-256 of the mask file's bytes (hex), "alpha" where it is the picture's own transparency, and path None.
    """

    key: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class CaptionRow:
    """Where a table or a list of files has a picture's caption. name: as `caption_sources.row_name` has it."""

    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class Item:
    """One picture, or one window of a clip, to train on.

    key: SHA-256 of the file's bytes (hex). width, height: px as seen, EXIF-turned. caption: the final one, trigger word
    included. repeats: how often an epoch holds it. has_alpha: some pixel is transparent.
    controls: the pictures to start from, of models that edit; their captions and repeats mean nothing.
    window: the frames that are used of a clip, of which several items may come; None for a picture.
    is_reg: a regularization image, which shows the class of what is learned.
    texts: captions that versions are made of, where there are several or something in them changes; `caption` is then
    the plain one. trigger: the word that each version starts with; both empty for an image with one caption.
    mask: what of it counts in the loss; None: all. row: of the table that its caption is from, where no file has it.
    """

    key: str
    path: Path
    width: int
    height: int
    caption: str
    caption_path: Path | None = None
    repeats: int = 1
    has_alpha: bool = False
    controls: tuple[Item, ...] = ()
    window: Window | None = None
    is_reg: bool = False
    texts: tuple[str, ...] = ()
    trigger: str | None = None
    mask: Mask | None = None
    row: CaptionRow | None = None

    @property
    def frames(self) -> int:
        """Frames of the clip; 1 for a picture."""
        return 1 if self.window is None else self.window.frames

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back."""
        return {
            "key": self.key,
            "path": str(self.path),
            "width": self.width,
            "height": self.height,
            "caption": self.caption,
            "caption_path": None if self.caption_path is None else str(self.caption_path),
            "repeats": self.repeats,
            "has_alpha": self.has_alpha,
            "controls": [control.to_dict() for control in self.controls],
            **({} if self.window is None else {"window": self.window.to_dict()}),
            **({"is_reg": True} if self.is_reg else {}),
            **({"texts": list(self.texts), "trigger": self.trigger} if self.texts else {}),
            **({} if self.mask is None else {"mask": [self.mask.key, self.mask.path and str(self.mask.path)]}),
            **({} if self.row is None else {"row": [str(self.row.path), self.row.name]}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Item:
        """The item of a `to_dict`."""
        caption_path = data["caption_path"]
        return cls(
            key=data["key"],
            path=Path(data["path"]),
            width=data["width"],
            height=data["height"],
            caption=data["caption"],
            caption_path=None if caption_path is None else Path(caption_path),
            repeats=data["repeats"],
            has_alpha=data["has_alpha"],
            controls=tuple(map(cls.from_dict, data["controls"])),
            window=Window(**data["window"]) if "window" in data else None,
            is_reg=data.get("is_reg", False),
            texts=tuple(data.get("texts", ())),
            trigger=data.get("trigger"),
            mask=Mask(data["mask"][0], data["mask"][1] and Path(data["mask"][1])) if "mask" in data else None,
            row=CaptionRow(Path(data["row"][0]), data["row"][1]) if "row" in data else None,
        )


@dataclass(frozen=True)
class Finding:
    """Something to know about the data: `kind` for programs, `text` and `remedy` for people, `files` it is about.

    A "note" only informs, a "warning" is a likely mistake, an "error" stops a start. setting: the path of the setting
    that it belongs to.
    """

    kind: str
    severity: Literal["note", "warning", "error"]
    text: str
    remedy: str = ""
    files: tuple[str, ...] = ()
    setting: str = "dataset.folders"

    def sentence(self) -> str:
        """Text and remedy as one line."""
        return sentences(self.text, self.remedy)

    def to_dict(self, most_files: int | None = None) -> dict[str, Any]:
        """Plain data; with `most_files` only so many names, and the count of all."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "text": self.text,
            "remedy": self.remedy,
            "files": list(self.files[:most_files]),
            "count": len(self.files),
            "setting": self.setting,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The finding of a `to_dict`."""
        return cls(
            kind=data["kind"],
            severity=data["severity"],
            text=data["text"],
            remedy=data["remedy"],
            files=tuple(data["files"]),
            setting=data["setting"],
        )


@dataclass(frozen=True)
class FolderReport:
    """One folder (a chosen one or a sub-folder) with pictures: how many are usable and their final repeats.

    named_repeats: the number that a `10_name` asks for, None without one. offer: the parent of a chosen `10_name`,
    which would use such names.
    """

    path: str
    images: int
    repeats: int
    named_repeats: int | None = None
    chosen: bool = False
    offer: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipReport:
    """What is used of one clip: its length and rate as the file has them, and its windows.

    seconds, used: of the file, and those that lie in any window. frames: what it gives at the rate that is taken.
    too_short: it has fewer frames than any length that was asked for, and is used at a shorter one. too_long: lengths
    that were asked for and don't fit. retimed: it has another rate than is taken. repeated: a lower one, so that frames
    are shown more than once. variable: its frames are not evenly spaced. bits: of a colour in the file. hdr: its
    colours are for bright displays.
    """

    path: str
    seconds: float
    rate: float
    frames: int
    windows: tuple[Window, ...]
    used: float
    too_short: bool = False
    too_long: tuple[int, ...] = ()
    retimed: bool = False
    repeated: bool = False
    variable: bool = False
    bits: int = 8
    hdr: bool = False

    @property
    def dropped(self) -> float:
        """Seconds of the file that no window holds."""
        return max(0.0, self.seconds - self.used)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "windows": [window.to_dict() for window in self.windows]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClipReport:
        """The report of a `to_dict`."""
        windows = tuple(Window(**window) for window in data["windows"])
        return cls(**{**data, "windows": windows, "too_long": tuple(data["too_long"])})


@dataclass(frozen=True)
class Scan:
    """The result of scanning folders. `ignored` and `other` count files by reason and by ending.

    clips: what is used of each clip, of a family that is trained on them; its windows are among `items`. left_out: the
    path of each image that is not among `items`, and why.
    """

    items: tuple[Item, ...] = ()
    findings: tuple[Finding, ...] = ()
    folders: tuple[FolderReport, ...] = ()
    pictures: int = 0
    captions: int = 0
    ignored: Mapping[str, int] = field(default_factory=dict)
    other: Mapping[str, int] = field(default_factory=dict)
    clips: tuple[ClipReport, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def problems(self) -> list[Problem]:
        """Warnings and errors of the findings."""
        return problems_of(self.findings)

    @property
    def notes(self) -> list[Finding]:
        """Findings that only inform."""
        return [finding for finding in self.findings if finding.severity == "note"]

    def summary(self) -> list[str]:
        """What was found, one line a fact, for a terminal or a log."""
        windows = sum(item.window is not None for item in self.items)
        usable = count_of(len(self.items) - windows, "image")
        if self.clips:
            usable += f" and {count_of(windows, 'window')} of {count_of(len(self.clips), 'clip')}"
        lines = [f"{usable} to use of {self.pictures:,} found, {count_of(self.captions, 'caption')}"]
        for report in self.folders:
            times = "left out" if report.repeats == 0 else f"x {count_of(report.repeats, 'repeat')}"
            lines.append(f"  {report.path}: {count_of(report.images, 'image')} {times}")
        if self.ignored:
            lines.append("ignored: " + ", ".join(f"{count} {reason}" for reason, count in sorted(self.ignored.items())))
        if self.other:
            lines.append("other files: " + ", ".join(f"{n} {ending}" for ending, n in sorted(self.other.items())))
        return lines + [f"{finding.severity}: {finding.sentence()}" for finding in self.findings]

    def to_dict(self) -> dict[str, Any]:
        """The whole scan as plain data (20,000 pictures are about 7 MB of JSON)."""
        return {
            "items": [item.to_dict() for item in self.items],
            "findings": [finding.to_dict() for finding in self.findings],
            "folders": [vars(report).copy() for report in self.folders],
            "pictures": self.pictures,
            "captions": self.captions,
            "ignored": dict(self.ignored),
            "other": dict(self.other),
            **({"clips": [clip.to_dict() for clip in self.clips]} if self.clips else {}),
            **({"left_out": [list(row) for row in self.left_out]} if self.left_out else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scan:
        """The scan of a `to_dict`."""
        return cls(
            items=tuple(map(Item.from_dict, data["items"])),
            findings=tuple(map(Finding.from_dict, data["findings"])),
            folders=tuple(FolderReport(**report) for report in data["folders"]),
            pictures=data["pictures"],
            captions=data["captions"],
            ignored=dict(data["ignored"]),
            other=dict(data["other"]),
            clips=tuple(map(ClipReport.from_dict, data.get("clips", ()))),
            left_out=tuple((path, why) for path, why in data.get("left_out", ())),
        )


@dataclass(frozen=True)
class DatasetScan:
    """Training pictures and the validation sets by name (pictures held out are the set "held out")."""

    train: Scan
    validation: Mapping[str, Scan] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """All findings, the training set's first."""
        return [f for scan in (self.train, *self.validation.values()) for f in scan.findings]

    @property
    def problems(self) -> list[Problem]:
        """All warnings and errors, the training set's first."""
        return problems_of(self.findings)

    def captions(self) -> list[str]:
        """Every caption that training and validation need, each once, in a fixed order."""
        scans = (self.train, *self.validation.values())
        return list(dict.fromkeys(item.caption for scan in scans for item in scan.items))

    def to_dict(self) -> dict[str, Any]:
        """The whole scan as plain data."""
        return {
            "train": self.train.to_dict(),
            "validation": {name: scan.to_dict() for name, scan in self.validation.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DatasetScan:
        """The scan of a `to_dict`."""
        sets = {name: Scan.from_dict(scan) for name, scan in data["validation"].items()}
        return cls(Scan.from_dict(data["train"]), sets)


def problems_of(findings: Iterable[Finding]) -> list[Problem]:
    """The warnings and errors among `findings` as problems."""
    return [
        Problem(finding.setting, None, finding.text, finding.remedy, finding.severity)
        for finding in findings
        if finding.severity != "note"
    ]


def count_of(number: int, noun: str) -> str:
    """`1 picture`, `20,000 pictures`."""
    plural = noun + ("es" if noun.endswith(("s", "tch")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def name_files(files: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(files[:NAMED_FILES])
    more = len(files) - NAMED_FILES
    return f"{shown} and {more:,} more" if more > 0 else shown
