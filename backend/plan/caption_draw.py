"""Decides from the settings which caption each image is trained with at each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backend.dataset.caption_variants import CaptionDraw, CaptionRule
from backend.families.spec import FamilyFacts
from backend.families.table import family

if TYPE_CHECKING:
    from backend.config.schema import Config


def trains_text(cfg: Config, facts: FamilyFacts) -> bool:
    """Whether a run of `cfg` trains the text encoders too."""
    return cfg.network.train_text_encoder and bool(facts.text_targets)


def caption_draw(cfg: Config) -> CaptionDraw:
    """Which caption each image of a run of `cfg` is trained with, and when."""
    data, fresh = cfg.dataset, trains_text(cfg, family(cfg.model.family))
    dropout = (data.caption_dropout_rate, data.caption_dropout_every_n_epochs)
    return CaptionDraw(rule=CaptionRule.of(cfg.captions, fresh), seed=cfg.training.seed, dropout=dropout)
