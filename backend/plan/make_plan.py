"""Makes the shape plan: from scanned sizes and settings to shapes, graphs, batches and steps. Without torch.

`make_plan` is what the page shows, the log tells and the trainer runs by: the buckets, the batch order and the caption
dropout of a run come from its `Plan` and from nowhere else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from backend.config.family_defaults import SHAPE_MODES, shape_mode_of
from backend.dataset.augmentation import ImageDraw
from backend.dataset.items import DatasetScan, Finding
from backend.dataset.references import References
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts, Geometry, PictureTokens
from backend.families.table import family
from backend.plan import caption_findings
from backend.plan.caption_draw import caption_draw
from backend.plan.findings import plan_findings, recommend
from backend.plan.footage import Footage
from backend.plan.lora_findings import findings_of_base
from backend.plan.memory.parts import read_parts
from backend.plan.mode_plan import fitting_size, plan_mode, validation_batch
from backend.plan.plan import ModePlan, Plan
from backend.plan.texts import CountTokens, TextPlan, text_length_of, token_counter
from backend.plan.trained_blocks import TrainedBlocks, trained_blocks
from backend.plan.training_sample import training_sample

if TYPE_CHECKING:
    from backend.config.schema import Config

__all__ = ["ModePlan", "Plan", "fitting_size", "make_plan", "plan_for"]


def make_plan(
    cfg: Config,
    scan: DatasetScan,
    geometry: Geometry,
    facts: FamilyFacts,
    count_tokens: CountTokens | None = None,
    picture_tokens: PictureTokens | None = None,
    trained: TrainedBlocks | None = None,
) -> Plan:
    """The plan of a run of `cfg` on the pictures of `scan`.

    count_tokens: real tokens of a caption (see `token_counter`), asked only when captions are trimmed. What can't be
    planned is an error among the plan's findings; nothing raises. picture_tokens: of a control picture that is read
    with the caption (see `FamilyFacts.picture_tokens`). trained: as `trained_blocks` gives it; without, all blocks of
    a class are taken to train the same layers.
    """
    fixed = facts.fixed_text_length
    trimmed = None if fixed else cfg.compile.caption_buckets
    text = TextPlan(text_length_of(cfg, facts), fixed=fixed, before=facts.text_before, picture=picture_tokens)
    if trimmed and count_tokens is not None:
        text = replace(text, buckets=tuple(trimmed), count=count_tokens)
    modes = {each: plan_mode(cfg, scan, geometry, facts, text, each, trained or {}) for each in SHAPE_MODES}
    mode = shape_mode_of(cfg)
    plan = Plan(
        mode=mode,
        mode_by_family=cfg.compile.shape_mode == "auto",
        modes=modes,
        items=scan.train.items,
        validation={name: part.items for name, part in scan.validation.items()},
        text=replace(text, before=modes[mode].text_before),
        geometry=geometry,
        references=References.of(cfg, facts, geometry),
        batch_size=cfg.dataset.batch_size,
        validation_batch=validation_batch(cfg),
        training_sample=training_sample(cfg, scan),
        sample_ratio=cfg.dataset.sample_ratio,
        seed=cfg.training.seed,
        captions=caption_draw(cfg),
        images=ImageDraw.of(cfg),
        measures_each=cfg.validation.picture_losses,
        compile=cfg.compile.compile,
        set_limit=cfg.compile.compile_cache_size_limit,
        linear_out=cfg.compile.compile and cfg.compile.disable_linear == "on",
        footage=Footage.of(scan.train.clips),
    )
    recommended, reason = recommend(cfg, plan)
    findings = tuple(plan_findings(cfg, scan, plan))
    return replace(plan, recommended=recommended, reason=reason, findings=findings)


def plan_for(cfg: Config, scan: DatasetScan) -> Plan:
    """`make_plan` with geometry and tokenizer of the config's own base model, as far as it can be read.

    Without a readable base model the family's usual geometry is taken, and the plan says so.
    """
    row = family(cfg.model.family)
    geometry, warning = row.default_geometry, None
    base = None if cfg.model.base_model is None else BaseModelFiles.of(cfg.model)
    if base is not None:
        try:
            geometry = row.geometry(base)
        except ValueError as error:
            text = f"The base model can't be read ({error}); the plan uses the usual {row.title} sizes"
            warning = Finding("usual_geometry", "warning", text, "Check model.base_model.", (), "model.base_model")
    counter = token_counter(base, row) if base is not None and cfg.compile.caption_buckets else None
    facts = row if base is None else row.narrowed(base)
    known = base or BaseModelFiles(None)
    parts = read_parts(row, known)
    trained = trained_blocks(cfg, facts, parts)
    plan = make_plan(cfg, scan, geometry, facts, counter, row.picture_tokens(known), trained)
    saved = [*caption_findings.variants(cfg, plan, row, parts), *findings_of_base(cfg, row, parts)]
    return replace(plan, findings=(*(() if warning is None else (warning,)), *plan.findings, *saved))
