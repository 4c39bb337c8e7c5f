"""Lists what a run needs encoded: pictures in all versions that are trained, captions in all of theirs, prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backend.dataset.controls import sample_items
from backend.dataset.references import Cut
from backend.plan.mode_plan import fitting_size

if TYPE_CHECKING:
    from backend.config.schema import Config
    from backend.plan.plan import Plan


class Words(NamedTuple):
    """Something to encode: a caption at a text length in tokens, and the pictures that it is read with."""

    caption: str
    length: int
    controls: tuple[Cut, ...] = ()


def wanted_latents(plan: Plan) -> list[Cut]:
    """Every picture of training and validation with its bucket, all versions of those that are trained, and their
    control pictures."""
    plain = set(plan.measured)
    pairs = [
        (item, each)
        for number, (item, fit) in enumerate(zip(plan.items, plan.fits, strict=True))
        # what is measured is measured as it is
        for each in dict.fromkeys([*([fit] if number in plain else []), *plan.images.fits(item, fit)])
    ]
    pairs += _pictures(plan)[len(plan.items) :]
    return pairs + [cut for item, fit in pairs for cut in plan.references.cuts(item.controls, fit.bucket.size)]


def _pictures(plan: Plan) -> list[Cut]:
    sets = [(plan.items, plan.fits)]
    sets += [(items, plan.validation_fits[name]) for name, items in plan.validation.items()]
    return [pair for items, fits in sets for pair in zip(items, fits, strict=True)]


def wanted_text(cfg: Config, plan: Plan) -> list[Words]:
    """All that the run needs encoded, once each: captions, the empty one, prompts and negatives.

    Where captions are read with their control pictures, the empty one is only wanted if captions are dropped.
    """
    reads, length = plan.text.reads_control, plan.text_length
    plain, trained = set(plan.measured), len(plan.items)
    captions = [
        (caption, plan.references.cuts(item.controls, fit.bucket.size, read=True) if reads else ())
        for number, (item, fit) in enumerate(_pictures(plan))
        # what is measured has its plain caption
        for caption in [
            *([item.caption] if number in plain or number >= trained else []),
            *(plan.captions.captions(item) if number < trained else []),
        ]
    ]
    wanted = [Words("", length)] if not reads else []
    if reads and plan.drops_captions:
        wanted += [Words("", length, controls) for _, controls in captions]
    wanted += [Words(caption, length, controls) for caption, controls in captions]
    for number, prompt in enumerate(cfg.sampling.prompts):
        length = plan.text.asked(prompt.text_length)
        size = fitting_size(prompt.width, prompt.height, plan.geometry)
        controls = plan.references.cuts(sample_items(prompt, number), size, read=True) if reads else ()
        wanted += [Words(prompt.prompt, length, controls), Words(prompt.negative_prompt, length, controls)]
    return list(dict.fromkeys(wanted))
