"""Declares [captions]: several captions for an image, and how tags are shuffled, dropped and chosen."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from backend.config.declare import Section, setting
from backend.config.sections.values import caption_ending, not_blank

_Ending = Annotated[str, AfterValidator(caption_ending)]
_Separator = Annotated[str, AfterValidator(not_blank)]


class CaptionsSection(Section):
    """What an image is trained with where its caption is not the same each time."""

    more_caption_extensions: list[_Ending] = setting(
        list,
        label="More caption extensions",
        help="Endings of further caption files with the same name as the image, for example .caption next to .txt. "
        "An image with several captions is trained with each of them in turn, at random.",
        aliases=("additional_caption_extensions", "caption_extensions"),
    )
    caption_lines: bool = setting(
        False,
        label="One caption per line",
        help="Each line of a caption file is a caption of its own, and one of them is drawn at random each time. Off: "
        "the lines of a file are one caption.",
        aliases=("multiline_captions", "caption_per_line"),
    )
    shuffle_caption: bool = setting(
        False,
        label="Shuffle tags",
        help="Puts the tags of a caption in another order each time, so that none is learned by its place. For "
        "captions of tags with commas between them, not for sentences.",
        aliases=("shuffle_tags", "shuffle_tokens", "tag_shuffle"),
    )
    keep_tokens: int = setting(
        0,
        ge=0,
        le=1000,
        unit="tags",
        label="Keep first tags",
        help="So many tags at the start of a caption stay in their place and are never dropped. The trigger word "
        "always stays in front.",
        aliases=("keep_tags", "keep_tags_count", "num_keep_tokens"),
    )
    keep_tokens_separator: _Separator | None = setting(
        None,
        min_length=1,
        label="Separator of kept tags",
        help="In captions that contain this text, such as |||, what is before it stays in its place instead of the "
        "first tags; what is after a second one stays at the end. The separator itself is not trained.",
        aliases=("keep_tags_separator",),
        advanced=True,
    )
    caption_separator: str = setting(
        ",",
        min_length=1,
        label="Tag separator",
        help="What is between two tags of a caption.",
        aliases=("tag_separator", "tag_delimiter"),
        advanced=True,
    )
    secondary_separator: _Separator | None = setting(
        None,
        min_length=1,
        label="Separator within a group of tags",
        help="Tags with this text between them, such as ;;;, stay together when tags are shuffled or dropped. It is "
        "replaced by the tag separator.",
        advanced=True,
    )
    caption_tag_dropout_rate: float = setting(
        0.0,
        ge=0,
        le=1,
        unit="share",
        label="Tag dropout rate",
        help="How often each single tag is left out (0.1 is 10 %), so that the model learns what is in the image "
        "without being told each time. Kept tags and the trigger word stay. 0 is off.",
        aliases=("tag_dropout_rate", "token_dropout_rate", "tag_dropout"),
    )
    enable_wildcard: bool = setting(
        False,
        label="Wildcards",
        help="Writes one of the words in braces, drawn at random: {red|blue} becomes red or blue. {{ and }} are braces "
        "that stay.",
        aliases=("wildcard", "wildcards", "enable_wildcards"),
    )
    caption_variants: int = setting(
        8,
        ge=1,
        le=1000,
        unit="variants",
        label="Caption variants",
        help="So many versions of each caption are encoded once and kept, and each time one of them is drawn: "
        "shuffled, with dropped tags, or with other wildcards. More take more disk space and time before the first "
        "step; the plan shows how much. Where text encoders are trained each time is a new version.",
        aliases=("num_caption_variants",),
    )
