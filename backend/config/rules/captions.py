"""Lists rules about several captions for an image, and about tags."""

from __future__ import annotations

from backend.config.rules.rule import Rule
from backend.config.schema import by_path

_MOVES = ("captions.shuffle_caption", "captions.caption_tag_dropout_rate")
_MARKS = ("captions.keep_tokens_separator", "captions.secondary_separator")


def _needs_moving(path: str, *others: str) -> Rule:
    """A warning when a setting about tags is set, and tags are neither shuffled nor dropped."""
    name, default = path.rsplit(".", 1)[1], by_path()[path].default
    return Rule(
        (path, *_MOVES, *others),
        lambda value, *needed: value != default and not any(needed),
        f"{name} has no effect: tags are neither shuffled nor dropped",
        f"Set captions.shuffle_caption to true, or captions.caption_tag_dropout_rate above 0, or remove {name}",
        "warning",
    )


CAPTION_RULES: tuple[Rule, ...] = (
    _needs_moving("captions.keep_tokens"),
    _needs_moving("captions.caption_separator", *_MARKS),
    _needs_moving("captions.caption_variants", "captions.enable_wildcard"),
    Rule(
        ("captions.caption_tag_dropout_rate",),
        lambda rate: rate == 1,
        "every tag is dropped, but for those that are kept",
        "Set caption_tag_dropout_rate to 0.3 or less; dataset.caption_dropout_rate drops whole captions",
        "warning",
    ),
    Rule(
        ("captions.caption_separator", *_MARKS),
        lambda separator, *marks: any(mark is not None and mark == separator for mark in marks),
        "caption_separator is the same text as another separator, so that neither can be told from the other",
        "Choose another keep_tokens_separator or secondary_separator, such as ||| and ;;;",
    ),
    Rule(
        ("dataset.folders",),
        lambda rows: [number for number, row in enumerate(rows) if row.is_reg and row.trigger_word is not None],
        "trigger_word has no effect: regularization images have none",
        "Remove it, or write it into the captions",
        "warning",
        column="trigger_word",
    ),
)
