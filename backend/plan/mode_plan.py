"""Plans one shape mode for the scanned images: buckets, groups, steps, and the shapes that reach the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from backend.config.family_defaults import ShapeMode
from backend.dataset.batches import Group, epoch_batches, group
from backend.dataset.buckets import BucketTable, Fit, table_for
from backend.dataset.controls import sample_sizes
from backend.dataset.items import DatasetScan, Item
from backend.dataset.references import References, Size, sizes_of
from backend.families.spec import FamilyFacts, Geometry, VideoRule
from backend.plan.caption_draw import caption_draw
from backend.plan.graphs import GraphPlan, Shape, count_graphs
from backend.plan.plan import ModePlan
from backend.plan.static_counts import padded_size, static_counts
from backend.plan.steps import StepPlan, plan_steps
from backend.plan.texts import TextPlan
from backend.plan.trained_blocks import TrainedBlocks, graph_variants
from backend.plan.training_sample import training_sample

if TYPE_CHECKING:
    from backend.config.schema import Config, SamplePrompt

# Rows whose text lengths are played through when captions are trimmed in batches.
_MOST_ROWS = 200_000


def fitting_size(width: int, height: int, geometry: Geometry) -> tuple[int, int]:
    """The size in px that the model can draw: the asked one rounded down to whole tokens, at least one."""
    unit = geometry.pixels_per_token
    return max(unit, width // unit * unit), max(unit, height // unit * unit)


def fitting_frames(frames: int | None, geometry: Geometry, video: VideoRule | None) -> int:
    """Frames of a sample that asks for `frames`, rounded down to what the family makes; None takes its usual length."""
    return 1 if video is None else video.sample_frames(frames, geometry)


def sampling_is_on(cfg: Config) -> bool:
    """Whether the run draws samples at some time."""
    settings = cfg.sampling
    times = (
        settings.sample_at_start,
        settings.sample_at_end,
        settings.sample_every_n_steps,
        settings.sample_every_n_epochs,
    )
    return bool(settings.prompts) and any(times)


def validation_is_on(cfg: Config) -> bool:
    """Whether the run measures validation sets at some time, if there are any."""
    settings = cfg.validation
    return any(
        (
            settings.validate_at_start,
            settings.validate_at_end,
            settings.validate_every_n_steps,
            settings.validate_every_n_epochs,
        )
    )


def measures(cfg: Config) -> bool:
    """Whether the run measures pictures without training them: validation sets, or each training picture."""
    sets = cfg.dataset.validation_split or cfg.validation.validation_folders
    return cfg.validation.picture_losses or bool(validation_is_on(cfg) and sets)


def validation_batch(cfg: Config) -> int:
    """Rows of a validation forward: 1 where samples (1 too) are drawn, to share their graphs; else as in training."""
    return 1 if sampling_is_on(cfg) else cfg.dataset.batch_size


def plan_mode(
    cfg: Config,
    scan: DatasetScan,
    geometry: Geometry,
    facts: FamilyFacts,
    text: TextPlan,
    mode: ShapeMode,
    trained: TrainedBlocks,
) -> ModePlan:
    """Buckets, groups, steps and graphs of one shape mode."""
    if mode in facts.lacks_modes:
        return ModePlan(mode, impossible=f"{facts.title} can't have shape_mode {mode}: {facts.lacks_modes[mode]}")
    try:
        table = table_for(cfg, geometry, mode)
    except ValueError as error:
        return ModePlan(mode, impossible=str(error))
    items = scan.train.items
    fits = _fit_all(table, items)
    held = {name: _fit_all(table, part.items) for name, part in scan.validation.items()}
    references = References.of(cfg, facts, geometry)
    own = tokens_of_all(items, fits, references)
    beside = [tokens - fit.bucket.tokens for tokens, fit in zip(own, fits, strict=True)]
    padded_to = _static_counts(cfg, references, scan, own, held) if mode == "static" else ()
    padded = [padded_size(tokens, padded_to) for tokens in own] if len(padded_to) > 1 else None
    kind = "off" if facts.one_size_batches else mode
    groups = group(kind, fits, [item.repeats for item in items], beside, padded)
    steps = plan_steps(
        images=len(items),
        buckets=len({fit.bucket for fit in fits}),
        groups=groups,
        batch_size=cfg.dataset.batch_size,
        sample_ratio=cfg.dataset.sample_ratio,
        accumulation=cfg.training.gradient_accumulation_steps,
        max_steps=cfg.training.step_limit,
        max_epochs=cfg.training.max_train_epochs,
        processes=cfg.training.num_processes,
    )
    pairs = [*zip(items, fits, strict=True)]
    measured = [pair for name, each in held.items() for pair in zip(scan.validation[name].items, each, strict=True)]
    text = text.reading(_read_sizes(cfg, references, pairs + measured))
    work = _Work(cfg, scan, references, text, mode, fits, held, groups, steps, padded_to)
    whole = sum(padded_size(tokens, padded_to) * item.repeats for tokens, item in zip(own, items, strict=True))
    used = sum(tokens * item.repeats for tokens, item in zip(own, items, strict=True))
    reached = {index for each, count in zip(groups, steps.groups, strict=True) if count.used for index in each.indices}
    return ModePlan(
        mode=mode,
        table=table,
        fits=fits,
        validation_fits=held,
        groups=groups,
        graphs=work.graphs(graph_variants(cfg, facts, trained)),
        steps=steps,
        static_token_counts=padded_to,
        padding=1 - used / whole if padded_to and whole else 0.0,
        crop=sum(fit.crop for fit in fits) / len(fits) if fits else 0.0,
        never=tuple(index for index in range(len(items)) if index not in reached),
        text_before=text.before,
    )


def _fit_all(table: BucketTable, items: Iterable[Item]) -> tuple[Fit, ...]:
    known: dict[tuple[int, int, int], Fit] = {}
    result = []
    for item in items:
        size = (item.width, item.height, item.frames)
        fit = known.get(size)
        if fit is None:
            fit = known[size] = table.assign(*size)
        result.append(fit)
    return tuple(result)


def _read_sizes(cfg: Config, references: References, pairs: Iterable[tuple[Item, Fit]]) -> set[tuple[Size, ...]]:
    """Sizes in px of the control pictures that a text encoder may read with a caption, of pictures and samples."""
    read = {tuple(references.sizes(sizes_of(item.controls), fit.bucket.size, read=True)) for item, fit in pairs}
    for prompt in cfg.sampling.prompts if sampling_is_on(cfg) else []:
        size = fitting_size(prompt.width, prompt.height, references.geometry)
        read.add(tuple(references.sizes(sample_sizes(prompt), size, read=True)))
    return read


def tokens_of_all(items: Sequence[Item], fits: Sequence[Fit], references: References) -> list[int]:
    """Image tokens of each picture's row: its own, and those of its control pictures."""
    return [
        fit.bucket.tokens + references.tokens(sizes_of(item.controls), fit.bucket.size)
        for item, fit in zip(items, fits, strict=True)
    ]


def _static_counts(
    cfg: Config, references: References, scan: DatasetScan, own: Sequence[int], held: Mapping[str, Sequence[Fit]]
) -> tuple[int, ...]:
    """The counts that static pads rows of training, of `own` tokens each, validation and samples to."""
    rows = [*zip(scan.train.items, own, strict=True)]
    for name, fits in held.items():
        items = scan.validation[name].items
        rows += zip(items, tokens_of_all(items, fits, references), strict=True)
    samples = [prompt_tokens(prompt, references) for prompt in cfg.sampling.prompts] if sampling_is_on(cfg) else []
    frames = references.geometry.latent_frames
    return static_counts(
        cfg.compile.static_token_count, [(frames(item.frames), tokens) for item, tokens in rows], samples
    )


def prompt_tokens(prompt: SamplePrompt, references: References) -> int:
    """Image tokens of a sample, those of its control pictures included."""
    size = fitting_size(prompt.width, prompt.height, references.geometry)
    frames = fitting_frames(prompt.frames, references.geometry, references.video)
    return references.geometry.image_tokens(*size, frames) + references.tokens(sample_sizes(prompt), size)


@dataclass(frozen=True)
class _Work:
    """One mode's shapes on their way to graphs."""

    cfg: Config
    scan: DatasetScan
    references: References
    text: TextPlan
    mode: ShapeMode
    fits: tuple[Fit, ...]
    validation_fits: Mapping[str, tuple[Fit, ...]]
    groups: tuple[Group, ...]
    steps: StepPlan
    static: tuple[int, ...]

    def graphs(self, variants: Sequence[tuple[bool, int]]) -> GraphPlan:
        """Shapes of training, validation and sampling, and the graphs they cost. variants: of `graph_variants`."""
        graphs = self._graphs(variants, self.sampling() if sampling_is_on(self.cfg) else [])
        if sampling_is_on(self.cfg) or not self.cfg.sampling.prompts:
            return graphs
        more = self._graphs(variants, self.sampling())
        return replace(graphs, asked=(more.total - graphs.total, more.no_grad_graphs - graphs.no_grad_graphs))

    def _graphs(self, variants: Sequence[tuple[bool, int]], sampling: list[Shape]) -> GraphPlan:
        cfg = self.cfg
        training, measured = self.training(), self.measured()
        validation = list(dict.fromkeys([*self.validation(), *measured]))
        start = [*(self.validation() if cfg.validation.validate_at_start else ()), *measured]
        start += sampling if cfg.sampling.sample_at_start else []
        dynamic = cfg.compile.compile_dynamic
        calls = start, training, [*validation, *sampling]
        counted = count_graphs(self.mode, dynamic, *calls)
        joined = count_graphs(self.mode, dynamic, *([shape.joined for shape in each] for each in calls))
        shared = (sum(counted) - sum(joined)) * sum(count for joint, count in variants if joint)
        counts = [count for _, count in variants]
        classes, most = sum(counts), max(counts, default=1)
        native = replace(self, static=())
        others = (*native.validation(), *native.measured(), *(native.sampling() if sampling else ()))
        unpadded = len({*native.training(), *others})
        return GraphPlan(tuple(training), tuple(validation), tuple(sampling), *counted, classes, most, unpadded, shared)

    def image_size(self, tokens: int) -> int:
        """Image tokens that the blocks see: padded in static mode, where they fit."""
        return padded_size(tokens, self.static)

    def training(self) -> list[Shape]:
        """Distinct training shapes, in the order of the groups, or as they come when captions are trimmed."""
        if self.text.buckets is not None:
            return self._training_by_rows()
        shapes: dict[Shape, None] = {}
        own = tokens_of_all(self.scan.train.items, self.fits, self.references)
        size = self.cfg.dataset.batch_size
        for each, count in zip(self.groups, self.steps.groups, strict=True):
            whole = [size] if count.used >= size else []
            rest = [count.used % size] if count.used % size else []
            sizes = dict.fromkeys(self.image_size(own[index]) for index in each.indices)
            for rows in (*whole, *rest):
                shapes |= dict.fromkeys(Shape(tokens, self.text.tokens, rows) for tokens in sizes)
        return list(shapes)

    def _training_by_rows(self) -> list[Shape]:
        data, seed = self.cfg.dataset, self.cfg.training.seed
        rows_per_epoch = max(1, sum(count.used for count in self.steps.groups))
        epochs = min(-(-self.steps.batches // max(1, self.steps.batches_per_epoch)), -(-_MOST_ROWS // rows_per_epoch))
        draw, fit = caption_draw(self.cfg), cache(self.text.fit)
        members = [each.indices for each in self.groups]
        own = tokens_of_all(self.scan.train.items, self.fits, self.references)
        shapes: dict[Shape, None] = {}
        for epoch in range(epochs):
            drop_last = data.sample_ratio >= 1.0
            for number, batch in enumerate(
                epoch_batches(members, data.batch_size, seed, epoch, drop_last, data.sample_ratio)
            ):
                longest = 0
                for row, index in enumerate(batch):
                    place = number * data.batch_size + row
                    longest = max(longest, fit(draw.caption(self.scan.train.items[index], epoch, place)))
                sizes = {self.image_size(own[index]) for index in batch}
                shapes |= dict.fromkeys(Shape(tokens, longest, len(batch)) for tokens in sorted(sizes))
        return list(shapes)

    def validation(self) -> list[Shape]:
        """Distinct shapes of the validation loss."""
        if not validation_is_on(self.cfg):
            return []
        sample = training_sample(self.cfg, self.scan)
        compared = self._one_by_one([self.scan.train.items[n] for n in sample], [self.fits[n] for n in sample])
        return list(dict.fromkeys([*self._held_out(), *compared]))

    def measured(self) -> list[Shape]:
        """Distinct shapes of the loss of each picture, in the order in which it is measured."""
        if not self.cfg.validation.picture_losses:
            return []
        learnt = [pair for pair in zip(self.scan.train.items, self.fits, strict=True) if not pair[0].is_reg]
        items, fits = [item for item, _ in learnt], [fit for _, fit in learnt]
        return list(dict.fromkeys([*self._one_by_one(items, fits), *self._held_out()]))

    def _held_out(self) -> list[Shape]:
        sets = ((self.scan.validation[name].items, fits) for name, fits in self.validation_fits.items())
        return list(dict.fromkeys(shape for each in sets for shape in self._one_by_one(*each)))

    def _one_by_one(self, items: Sequence[Item], fits: Sequence[Fit]) -> Iterator[Shape]:
        """The shape in which each picture is measured, alone in its batch."""
        rows = validation_batch(self.cfg)
        for item, tokens in zip(items, tokens_of_all(items, fits, self.references), strict=True):
            yield Shape(self.image_size(tokens), self.text.fit(item.caption), rows)

    def sampling(self) -> list[Shape]:
        """Distinct shapes of the sample prompts: one row each, the negative's as well where it takes part."""
        shapes: dict[Shape, None] = {}
        for prompt in self.cfg.sampling.prompts:
            texts = [prompt.prompt, *([prompt.negative_prompt] if prompt.true_cfg_scale > 1 else [])]
            tokens = self.image_size(prompt_tokens(prompt, self.references))
            for text in texts:
                length = self.text.fit(text, prompt.text_length)
                if self.static and self.text.buckets is None:
                    # Static mode pads shorter text as well, exactly masked.
                    length = max(length, self.text.tokens)
                shapes.setdefault(Shape(tokens, length, 1))
        return list(shapes)
