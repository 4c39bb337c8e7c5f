"""Prepares the shape plan for the page: a headline, the shape modes side by side, and what happens to which image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.config.schema import Config
from backend.dataset.buckets import Bucket
from backend.dataset.items import DatasetScan, Finding
from backend.plan.make_plan import plan_for
from backend.plan.plan import ModePlan, Plan
from backend.plan.static_counts import padded_size
from gui import messages

# Findings that are lists of images rather than advice; the page shows their files in folds.
_LISTS = {
    "never_trained": "Never trained",
    "enlarged": "Enlarged",
    "scaled_to_fit": "Scaled down to fit",
    "beyond_limits": "Cropped by the size limits",
    "cropped": "Cropped by the bucket",
}
_MOST_FILES = 500
# A bucket with a smaller share than this of the fullest one is marked.
_SMALL_SHARE = 0.1


def for_page(config: Config, scan: DatasetScan) -> dict[str, Any]:
    """Headline, table of shape modes, lists of images, the plan as text; bars, buckets and crops for the images."""
    plan = plan_for(config, scan)
    return {
        "headline": headline(plan),
        "steps": _typeset(plan.steps.sentence()),
        "modes": [_mode(plan, mode) for mode in plan.modes.values()],
        "recommended": messages.sentence(f"Recommended: {plan.recommended}. {plan.reason}"),
        "legend": _legend(plan),
        "lines": plan.lines(),
        "lists": _lists(plan),
        "findings": [_advice(finding) for finding in plan.findings],
        "bars": _bars(plan),
        "fit_of": {item.key: fit for item, fit in zip(plan.items, plan.fits, strict=False)},
        "never": frozenset(plan.items[index].path for index in plan.chosen.never),
        "bucket_of": {item.key: _size(fit.bucket, " × ") for item, fit in zip(plan.items, plan.fits, strict=False)},
    }


def _advice(finding: Finding) -> dict[str, Any]:
    """One finding of the plan; images with a list of their own are not listed with it again."""
    facts = messages.finding_facts(finding)
    return facts | {"files": []} if finding.kind in _LISTS else facts


def headline(plan: Plan) -> str:
    """The plan in one line, e.g. ``23 shapes → 1 graph × 2 block classes``."""
    if plan.chosen.impossible is not None:
        return messages.sentence(plan.chosen.impossible)
    if not plan.compile:
        return "Compile is off: no graphs are compiled."
    return _typeset(plan.graphs.words())


def _legend(plan: Plan) -> str:
    """What the columns of the table count, for people who see the words for the first time."""
    classes = plan.graphs.classes
    per_class = f", for each of the {classes} block classes" if classes > 1 else ""
    return (
        "A graph is one shape of the model's blocks, compiled once at its first use: training graphs for the steps, "
        f"other graphs for validation and samples{per_class}. With fewer graphs, training starts sooner. "
        "Images left out: those that an epoch has no full batch for. Padding: share of the tokens. "
        "Cropping: share of the image area."
    )


def _typeset(line: str) -> str:
    """A line made for a terminal, with the characters that a page can show."""
    return line.replace("->", "→").replace(" x ", " × ")


def _mode(plan: Plan, mode: ModePlan) -> dict[str, Any]:
    facts = mode.to_dict()
    possible = mode.impossible is None
    shown = {
        "buckets": facts["buckets"],
        "training": facts["training_graphs"],
        "no_grad": facts["no_grad_graphs"],
        "graphs": facts["graphs"],
        "left": facts["left_per_epoch"] + facts["never"],
        "padding": f"{100 * mode.padding:.1f} %",
        "crop": f"{100 * mode.crop:.1f} %",
    }
    return {
        "name": mode.mode,
        "chosen": mode.mode == plan.mode,
        "recommended": mode.mode == plan.recommended,
        "note": messages.sentence(mode.impossible or ""),
        **(shown if possible else dict.fromkeys(shown)),
    }


def _lists(plan: Plan) -> list[dict[str, Any]]:
    lists = [_file_list(_LISTS[finding.kind], finding) for finding in plan.findings if finding.kind in _LISTS]
    counts = plan.chosen.static_token_counts
    if counts:
        more = [padded_size(fit.bucket.tokens, counts) - fit.bucket.tokens for fit in plan.fits]
        padded = [
            {"name": item.path.name, "note": f"{fit.bucket.tokens} tokens, padded by {padding}"}
            for item, fit, padding in zip(plan.items, plan.fits, more, strict=False)
            if padding > 0
        ]
        lists.append({"title": "Padded", "items": padded[:_MOST_FILES]})
    return lists


def _file_list(title: str, finding: Finding) -> dict[str, Any]:
    return {"title": title, "items": [{"name": Path(path).name, "note": ""} for path in finding.files[:_MOST_FILES]]}


def _bars(plan: Plan) -> list[tuple[str, int, bool]]:
    """Images per bucket, the narrowest first; marked where a bucket has far fewer than the fullest."""
    counts: dict[Bucket, int] = {}
    for item, fit in zip(plan.items, plan.fits, strict=False):
        counts[fit.bucket] = counts.get(fit.bucket, 0) + item.repeats
    fullest = max(counts.values(), default=0)
    ordered = sorted(counts, key=lambda bucket: (bucket.width / bucket.height, bucket.frames))
    return [(_size(bucket, "×"), counts[bucket], counts[bucket] < _SMALL_SHARE * fullest) for bucket in ordered]


def _size(bucket: Bucket, times: str) -> str:
    """Width and height, and of clips their frames."""
    sides = [bucket.width, bucket.height, *((bucket.frames,) if bucket.frames > 1 else ())]
    return times.join(map(str, sides))
