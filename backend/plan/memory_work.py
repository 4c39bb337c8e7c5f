"""What a run puts through its models at once, as far as memory is concerned: from the plan, or from settings alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backend.data.buckets import tokens_of
from backend.models.spec import FamilyFacts, Geometry
from backend.models.table import family
from backend.plan.activations import Work
from backend.plan.graphs import Shape
from backend.plan.modes import fitting_size, prompt_tokens, sampling_is_on, validation_batch, validation_is_on

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.plan.plan import Plan


@dataclass(frozen=True)
class RunWork:
    """The largest of each kind. largest_picture, sample_pixels: pixels. None: the run does not do that."""

    training: Work
    largest_picture: int
    validation: Work | None = None
    sampling: Work | None = None
    sample_pixels: int = 0
    encodes_text: bool = True
    encodes_pictures: bool = True

    def at_resolution(self, before: int, after: int) -> RunWork:
        """The same work with pictures of another resolution; samples stay as they are."""
        share = (after / before) ** 2

        def scaled(work: Work | None) -> Work | None:
            return None if work is None else replace(work, image=max(1, round(work.image * share)))

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
    sizes = [fit.bucket.width * fit.bucket.height for fit in plan.fits]
    sizes += [fit.bucket.width * fit.bucket.height for fits in plan.validation_fits.values() for fit in fits]
    training = _largest(graphs.training)
    assert training is not None
    return replace(
        usual,
        training=training,
        validation=_largest(graphs.validation),
        sampling=_largest(graphs.sampling) if usual.sampling else None,
        largest_picture=max(sizes, default=usual.largest_picture),
    )


def work_of_settings(cfg: Config, geometry: Geometry, text_tokens: int) -> RunWork:
    """The work of a run whose pictures nobody has looked at yet: all as large as the resolution says.

    A family that starts from a control picture sees as many tokens again of it.
    """
    picture = tokens_of(cfg.dataset.resolution, geometry)
    pictures = 2 if family(cfg.model.family).facts.control else 1
    image = max(pictures * picture, cfg.compile.static_token_count or 0)
    measured = validation_is_on(cfg) and (cfg.dataset.validation_split or cfg.validation.validation_folders)
    sizes = [fitting_size(prompt.width, prompt.height, geometry) for prompt in cfg.sampling.prompts or ()]
    drawn = max((prompt_tokens(prompt, geometry) for prompt in cfg.sampling.prompts or ()), default=0)
    on = sampling_is_on(cfg) and drawn > 0
    return RunWork(
        training=Work(cfg.dataset.batch_size, image, text_tokens),
        largest_picture=max(picture, image // pictures) * geometry.pixels_per_token**2,
        validation=Work(validation_batch(cfg), image, text_tokens) if measured else None,
        sampling=Work(1, drawn, text_tokens) if on else None,
        sample_pixels=max((math.prod(size) for size in sizes), default=0) if on else 0,
    )


def trains_text(cfg: Config, facts: FamilyFacts) -> bool:
    """Whether a run of `cfg` trains the text encoders too."""
    return cfg.network.train_text_encoder and bool(facts.text_targets)


def _largest(shapes: Iterable[Shape]) -> Work | None:
    works = [Work(shape.batch, shape.image_tokens, shape.text_tokens) for shape in shapes]
    return max(works, key=lambda work: work.tokens("joint"), default=None)
