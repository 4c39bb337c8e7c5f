"""Holds the plan of a run: what each shape mode makes of the pictures, and the batches of the chosen one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.base.problems import Problem
from backend.config.family_defaults import ShapeMode
from backend.dataset.augmentation import ImageDraw
from backend.dataset.batches import Group, epoch_batches
from backend.dataset.buckets import BucketTable, Fit
from backend.dataset.caption_variants import CaptionDraw
from backend.dataset.items import Finding, Item, problems_of
from backend.dataset.references import References
from backend.families.spec import Geometry
from backend.plan.footage import Footage
from backend.plan.graphs import GraphPlan
from backend.plan.static_counts import padded_size
from backend.plan.steps import StepPlan
from backend.plan.texts import TextPlan

# Streams of a block whose sizes may differ (text, image): the pieces of a graph that both run through are made twice.
_STREAMS = 2
# What the page's document and the terminal list; the counts are always whole.
_MOST_BUCKETS = 200
_MOST_FILES = 20


@dataclass(frozen=True)
class ModePlan:
    """What one shape mode makes of the pictures."""

    mode: ShapeMode
    impossible: str | None = None
    """Why it has no buckets; None when it has."""
    table: BucketTable | None = None
    fits: tuple[Fit, ...] = ()
    validation_fits: Mapping[str, tuple[Fit, ...]] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    graphs: GraphPlan = GraphPlan((), (), (), 0, 0, 0)
    steps: StepPlan = StepPlan(0, 0, 0, 1, (), 1, 0, None)
    static_token_counts: tuple[int, ...] = ()
    """Image tokens that rows are padded to, ascending: of static, one for clips of each length in use."""
    padding: float = 0.0
    """Share of the image tokens that is padding."""
    crop: float = 0.0
    """Mean share of a picture's area that is lost."""
    never: tuple[int, ...] = ()
    """Pictures that no epoch trains."""
    text_before: int = 0
    """Tokens in front of every caption."""

    @property
    def static_token_count(self) -> int | None:
        """The largest of `static_token_counts`, which is the only one of pictures; None where nothing is padded."""
        return max(self.static_token_counts, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Numbers of the mode for a table that compares them."""
        return {
            "mode": self.mode,
            "impossible": self.impossible,
            "buckets": self.steps.buckets,
            "token_counts": len({fit.bucket.tokens for fit in self.fits}),
            "static_token_count": self.static_token_count,
            "static_token_counts": list(self.static_token_counts),
            "training_graphs": self.graphs.training_graphs,
            "no_grad_graphs": self.graphs.no_grad_graphs,
            "graphs_per_class": self.graphs.per_class,
            "graphs": self.graphs.total,
            "recompile_limit": self.graphs.recompile_limit,
            "words": self.graphs.words(),
            "padding": round(self.padding, 4),
            "crop": round(self.crop, 4),
            "batches_per_epoch": self.steps.batches_per_epoch,
            "left_per_epoch": self.steps.left_per_epoch,
            "never": len(self.never),
            "steps": self.steps.steps,
        }


@dataclass(frozen=True)
class Plan:
    """The plan of a run. `modes` holds all shape modes; the properties speak of the chosen one."""

    mode: ShapeMode
    modes: Mapping[ShapeMode, ModePlan]
    items: tuple[Item, ...]
    validation: Mapping[str, tuple[Item, ...]]
    text: TextPlan
    geometry: Geometry
    references: References
    batch_size: int
    validation_batch: int
    """Rows of a validation forward."""
    sample_ratio: float
    seed: int
    captions: CaptionDraw
    """Which caption each image is trained with, and when."""
    images: ImageDraw
    """Which version of each image is trained, and when."""
    compile: bool
    """Whether anything is compiled at all."""
    mode_by_family: bool = False
    """Whether the mode is the family's usual one."""
    set_limit: int | None = None
    """The recompile limit that was set; None for the plan's."""
    linear_out: bool = False
    """Linear layers stay out of the graphs, each of which is then made in pieces."""
    recommended: ShapeMode = "static"
    reason: str = ""
    findings: tuple[Finding, ...] = ()
    training_sample: tuple[int, ...] = ()
    """Numbers of the `items` that validation measures too, for comparison."""
    measures_each: bool = False
    """Whether the loss of each picture is measured."""
    footage: Footage | None = None
    """What is used of the clips that are trained; None without clips."""

    @property
    def chosen(self) -> ModePlan:
        """The plan of the chosen shape mode."""
        return self.modes[self.mode]

    @property
    def fits(self) -> tuple[Fit, ...]:
        """How each of `items` comes to its bucket."""
        return self.chosen.fits

    @property
    def validation_fits(self) -> Mapping[str, tuple[Fit, ...]]:
        """The same for each validation set."""
        return self.chosen.validation_fits

    @property
    def steps(self) -> StepPlan:
        """Batches, steps and epochs."""
        return self.chosen.steps

    @property
    def graphs(self) -> GraphPlan:
        """Shapes and graphs; what they would be, when compile is off."""
        return self.chosen.graphs

    @property
    def planned_graphs(self) -> int:
        """Graphs that telemetry should count in the whole run (`linear_out`: sets of pieces); 0 when compile is off."""
        return self.graphs.total if self.compile else 0

    @property
    def recompile_limit(self) -> int:
        """The recompile limit of the run: the one set, or what the chosen mode needs."""
        return self.set_limit or self.needed_limit

    @property
    def needed_limit(self) -> int:
        """The recompile limit that the chosen mode needs; more where each graph is in pieces, as streams share them."""
        return self.graphs.recompile_limit * (_STREAMS if self.linear_out else 1)

    @property
    def static_token_count(self) -> int | None:
        """Image tokens that static pads to, whatever the chosen mode; None without pictures."""
        return self.modes["static"].static_token_count

    @property
    def static_token_counts(self) -> tuple[int, ...]:
        """All counts that static pads to, whatever the chosen mode."""
        return self.modes["static"].static_token_counts

    @property
    def text_length(self) -> int:
        """Text tokens that captions are padded or cut to."""
        return self.text.length

    @property
    def text_tokens(self) -> int:
        """Text tokens that the blocks see of one that is not trimmed."""
        return self.text.tokens

    @property
    def caption_buckets(self) -> tuple[int, ...] | None:
        """Text lengths that captions are trimmed to; None for no trimming."""
        return self.text.buckets

    @property
    def drops_captions(self) -> bool:
        """Whether some pictures are trained without their caption."""
        return self.captions.drops

    @property
    def measured(self) -> Sequence[int]:
        """Numbers of the `items` that are measured as they are, besides being trained."""
        return range(len(self.items)) if self.measures_each else self.training_sample

    @property
    def problems(self) -> list[Problem]:
        """Warnings and errors of the plan; an error stops a start."""
        return problems_of(self.findings)

    def batches(self, epoch: int) -> list[list[int]]:
        """The batches of `epoch` (from 0) as indices into `items`."""
        members = [each.indices for each in self.chosen.groups]
        drop_last = self.sample_ratio >= 1.0
        return epoch_batches(members, self.batch_size, self.seed, epoch, drop_last, self.sample_ratio)

    def caption(self, epoch: int, batch: int, row: int, index: int) -> str:
        """What item `index` is trained with as row `row` of batch `batch` in `epoch`: a caption, or "" if dropped."""
        return self.captions.caption(self.items[index], epoch, batch * self.batch_size + row)

    def fit(self, epoch: int, batch: int, row: int, index: int) -> Fit:
        """How item `index` comes to its bucket as row `row` of batch `batch` in `epoch`: mirrored or not, and so on."""
        return self.images.fit(self.items[index], self.fits[index], epoch, batch * self.batch_size + row)

    def lines(self) -> list[str]:
        """The plan as plain lines, for a log."""
        mode_plan = self.chosen
        lines = [self.steps.sentence()]
        if mode_plan.impossible is not None:
            lines.append(f"shape mode {self.mode}: {mode_plan.impossible}")
        else:
            targets = " or ".join(map(str, mode_plan.static_token_counts))
            padded = f", {mode_plan.padding:.1%} padding to {targets}" if targets else ""
            lines.append(f"shape mode {self.mode_words()}: {mode_plan.crop:.1%} mean cropping{padded}")
            lines.append(self.graph_words())
        if self.footage is not None:
            lines.append(self.footage.words())
        lines += [f"  {size_of(row)}: {row['entries']} ({row['tokens']} tokens)" for row in self.bucket_rows()]
        lines.append(f"recommended: {self.recommended}. {self.reason}")
        return lines + [f"{finding.severity}: {finding.sentence()}" for finding in self.findings]

    def mode_words(self) -> str:
        """The shape mode, and that auto took it."""
        return f"{self.mode} (auto)" if self.mode_by_family else self.mode

    def graph_words(self) -> str:
        """The graphs of the chosen mode, the text tokens in them, and the recompile limit they need."""
        if not self.compile:
            return "compile is off: no graphs"
        texts = sorted({s.text_tokens for s in (*self.graphs.training, *self.graphs.validation, *self.graphs.sampling)})
        text = f"text tokens {', '.join(map(str, texts))}; " if texts else ""
        pieces = "each in pieces, since linear layers are left out; " if self.linear_out else ""
        needed = "" if self.set_limit is None else f" as set (the plan needs {self.needed_limit})"
        return f"{self.graphs.words()}; {pieces}{text}recompile limit {self.recompile_limit}{needed}"

    def bucket_rows(self, most: int = _MOST_BUCKETS) -> list[dict[str, Any]]:
        """Buckets in use, fullest first: size in px, image tokens, images, entries (with repeats), padding tokens.

        Of clips also their frames, and the seconds of video that the entries of an epoch hold.
        """
        pictures: Counter[Any] = Counter()
        entries: Counter[Any] = Counter()
        seconds: Counter[Any] = Counter()
        for item, fit in zip(self.items, self.fits, strict=False):
            if item.window is not None:
                seconds[fit.bucket] += item.repeats * item.window.seconds
            pictures[fit.bucket] += 1
            entries[fit.bucket] += item.repeats
        static = self.chosen.static_token_counts
        ordered = sorted(pictures, key=lambda bucket: (-entries[bucket], bucket))
        return [
            {
                "width": bucket.width,
                "height": bucket.height,
                "tokens": bucket.tokens,
                "images": pictures[bucket],
                "entries": entries[bucket],
                "padding": padded_size(bucket.tokens, static) - bucket.tokens,
                **({"frames": bucket.frames, "seconds": round(seconds[bucket], 2)} if bucket in seconds else {}),
            }
            for bucket in ordered[:most]
        ]

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, a few dozen KB at most: lists of files and buckets are cut, with their counts."""
        graphs = self.graphs
        return {
            "mode": self.mode,
            "mode_by_family": self.mode_by_family,
            "compile": self.compile,
            "static_token_count": self.static_token_count,
            "static_token_counts": list(self.static_token_counts),
            **({} if self.footage is None else {"clips": self.footage.to_dict()}),
            "text_length": self.text_length,
            "caption_buckets": list(self.caption_buckets) if self.caption_buckets else None,
            "batch_size": self.batch_size,
            "validation_batch": self.validation_batch,
            "images": len(self.items),
            "validation": {name: len(items) for name, items in self.validation.items()},
            "steps": self.steps.to_dict(),
            "buckets": self.bucket_rows(),
            "groups": [
                {"name": g.name, "entries": g.entries, "used": g.used, "batches": g.batches, "left": g.left}
                for g in self.steps.groups[:_MOST_BUCKETS]
            ],
            "graphs": {
                "planned": self.planned_graphs,
                "per_class": graphs.per_class,
                "training": graphs.training_graphs,
                "no_grad": graphs.no_grad_graphs,
                "classes": graphs.classes,
                "recompile_limit": self.recompile_limit,
                "words": graphs.words(),
                "unpadded": graphs.unpadded,
                "shapes": {
                    kind: [vars(shape).copy() for shape in shapes[:_MOST_BUCKETS]]
                    for kind, shapes in (
                        ("training", graphs.training),
                        ("validation", graphs.validation),
                        ("sampling", graphs.sampling),
                    )
                },
            },
            "modes": [mode.to_dict() for mode in self.modes.values()],
            "recommended": self.recommended,
            "reason": self.reason,
            "findings": [finding.to_dict(_MOST_FILES) for finding in self.findings],
        }


def size_of(row: Mapping[str, Any]) -> str:
    """The size of a bucket of `Plan.bucket_rows`: width x height, and x frames of clips."""
    frames = f"x{row['frames']}" if "frames" in row else ""
    return f"{row['width']}x{row['height']}{frames}"
