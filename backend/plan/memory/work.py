"""Describes what a run puts through its models at once, for its memory: from the plan, or from settings alone."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.dataset.buckets import tokens_of
from backend.dataset.references import References, sizes_of
from backend.dataset.windows import ClipRule
from backend.families.spec import FamilyFacts, Geometry
from backend.families.table import family
from backend.plan.graphs import Shape
from backend.plan.memory.activations import Work
from backend.plan.mode_plan import (
    fitting_frames,
    fitting_size,
    measures,
    prompt_tokens,
    sampling_is_on,
    validation_batch,
)

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.plan.plan import Plan


@dataclass(frozen=True)
class RunWork:
    """The largest of each kind. None: the run does not do that."""

    training: Work
    largest_picture: int
    """Pixels."""
    validation: Work | None = None
    sampling: Work | None = None
    sample_pixels: int = 0
    """Pixels that the VAE decodes at a time."""
    sample_result: int = 0
    """Pixels of a whole sample, which for a clip are those of all frames."""
    encodes_text: bool = True
    encodes_pictures: bool = True
    fixed: int = 0
    """Image tokens of a row that its resolution does not change: of control pictures at an area of their own."""

    def at_resolution(self, before: int, after: int) -> RunWork:
        """The same work with pictures of another resolution; samples stay as they are."""
        share = (after / before) ** 2

        def scaled(work: Work | None) -> Work | None:
            if work is None:
                return None
            return replace(work, image=max(1, round((work.image - self.fixed) * share)) + self.fixed)

        training = scaled(self.training)
        assert training is not None
        return replace(
            self,
            training=training,
            validation=scaled(self.validation),
            largest_picture=round(self.largest_picture * share),
        )

    def at_batch(self, batch: int) -> RunWork:
        """The same work with another number of rows in training."""
        return replace(self, training=replace(self.training, batch=batch))


def work_of(cfg: Config, plan: Plan) -> RunWork:
    """What the plan lists; where it has no pictures yet, what the settings alone say."""
    graphs = plan.graphs
    usual = work_of_settings(cfg, plan.geometry, plan.text_tokens)
    if not graphs.training:
        return usual
    sets = [(plan.items, plan.fits), *((plan.validation[name], fits) for name, fits in plan.validation_fits.items())]
    pairs = [pair for items, fits in sets for pair in zip(items, fits, strict=True)]
    beside = [plan.references.sizes(sizes_of(item.controls), fit.bucket.size) for item, fit in pairs]
    facts = family(cfg.model.family)
    sizes = [math.prod(fit.bucket.size) * _encoded_together(fit.bucket.frames, facts) for _, fit in pairs]
    sizes += [math.prod(size) for controls in beside for size in controls]
    tokens = max(sum(plan.geometry.image_tokens(*size) for size in controls) for controls in beside)
    training = _largest(graphs.training)
    assert training is not None
    return replace(
        usual,
        training=training,
        validation=_largest(graphs.validation),
        sampling=_largest(graphs.sampling) if usual.sampling else None,
        largest_picture=max(sizes, default=usual.largest_picture),
        fixed=0 if plan.references.rule.area is None else tokens,
    )


def work_of_settings(cfg: Config, geometry: Geometry, text_tokens: int) -> RunWork:
    """The work of a run whose pictures nobody has looked at yet: all as large as the resolution says.

    A family that starts from control pictures has one square one.
    """
    facts, clips = family(cfg.model.family), ClipRule.of(cfg)
    frames = 1 if clips is None else clips.lengths[-1]
    picture = tokens_of(cfg.dataset.resolution, geometry) * geometry.latent_frames(frames)
    references = References.of(cfg, facts, geometry)
    beside = 0 if facts.controls is None else tokens_of(references.rule.area or cfg.dataset.resolution, geometry)
    image = max(picture + beside, (cfg.compile.static_token_count or 0) * geometry.latent_frames(frames))
    pixels = max(picture, beside, image - beside) // geometry.latent_frames(frames) * geometry.pixels_per_token**2
    prompts = cfg.sampling.prompts or ()
    sizes = [math.prod(fitting_size(prompt.width, prompt.height, geometry)) for prompt in prompts]
    lengths = [fitting_frames(prompt.frames, geometry, facts.video) for prompt in prompts]
    pieces = [_encoded_together(length, facts) for length in lengths]
    drawn = max((prompt_tokens(prompt, references) for prompt in prompts), default=0)
    on = sampling_is_on(cfg) and drawn > 0
    return RunWork(
        training=Work(cfg.dataset.batch_size, image, text_tokens),
        largest_picture=pixels * _encoded_together(frames, facts),
        validation=Work(validation_batch(cfg), image, text_tokens) if measures(cfg) else None,
        sampling=Work(1, drawn, text_tokens) if on else None,
        sample_pixels=max(map(operator.mul, sizes, pieces), default=0) if on else 0,
        sample_result=max(map(operator.mul, sizes, lengths), default=0) if on else 0,
        fixed=0 if references.rule.area is None else beside,
    )


def _encoded_together(frames: int, facts: FamilyFacts) -> int:
    """Frames of a clip that the VAE works on at a time; 1 of a picture."""
    piece = None if facts.video is None else facts.video.vae_frames
    return frames if piece is None else min(frames, piece)


def _largest(shapes: Iterable[Shape]) -> Work | None:
    works = [Work(shape.batch, shape.image_tokens, shape.text_tokens) for shape in shapes]
    return max(works, key=lambda work: work.tokens("joint"), default=None)
