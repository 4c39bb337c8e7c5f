"""Checks the rules between settings: which contradict each other, and what to do about it.

The rules are data, one module a section. They run on whatever could be read, together with the type errors: a rule is
left out only where one of its own settings could not be read.
"""

from __future__ import annotations

from collections.abc import Collection

from backend.base.problems import Problem
from backend.config.rules.captions import CAPTION_RULES
from backend.config.rules.compile import COMPILE_RULES
from backend.config.rules.dataset import DATASET_RULES
from backend.config.rules.full import FULL_RULES
from backend.config.rules.loss import LOSS_RULES
from backend.config.rules.masks import MASK_RULES
from backend.config.rules.memory import MEMORY_RULES
from backend.config.rules.model import MODEL_RULES
from backend.config.rules.network import NETWORK_RULES
from backend.config.rules.optimizer import OPTIMIZER_RULES
from backend.config.rules.packages import PACKAGE_RULES
from backend.config.rules.rule import Rule, When
from backend.config.rules.sampling import SAMPLING_RULES
from backend.config.rules.saving import SAVING_RULES
from backend.config.rules.training import TRAINING_RULES
from backend.config.rules.video import VIDEO_RULES
from backend.config.schema import Config, by_path

_ORDER = list(by_path())

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (
            *MODEL_RULES,
            *DATASET_RULES,
            *CAPTION_RULES,
            *MASK_RULES,
            *VIDEO_RULES,
            *NETWORK_RULES,
            *OPTIMIZER_RULES,
            *TRAINING_RULES,
            *FULL_RULES,
            *LOSS_RULES,
            *COMPILE_RULES,
            *MEMORY_RULES,
            *SAMPLING_RULES,
            *SAVING_RULES,
            *PACKAGE_RULES,
        ),
        key=lambda rule: _ORDER.index(rule.paths[0]),
    )
)
"""Every rule, in the order in which the settings are declared."""


def check(cfg: Config, when: When = "always", without: Collection[str] = ()) -> list[Problem]:
    """Problems between settings.

    when: ``always`` checks what holds for any file, ``start`` what a run needs as well. without: paths of settings
    whose value could not be read; rules about them are left out.
    """
    applied = [rule for rule in RULES if rule.when == when and not set(rule.paths) & set(without)]
    return [problem for rule in applied for problem in rule.problems(cfg)]
