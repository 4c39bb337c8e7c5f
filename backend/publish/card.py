"""Writes the README.md of a published LoRA: a model card with the front matter that Hugging Face reads."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from backend.config.experts import sides_of
from backend.config.schema import Config, SamplePrompt
from backend.families.spec import FamilyFacts
from backend.runs.samples import Sample

TO_BE_STATED = "to be stated"
# Hugging Face's own names of licenses are short words; anything else is a license with a name of its own.
_LICENSE_ID = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")
_SHOWN = ("seed", "steps", "guidance_scale", "true_cfg_scale")


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What only a person can state of a LoRA. None: not stated."""

    license: str | None = None
    base_model: str | None = None
    """As others name it, such as ``black-forest-labs/FLUX.1-dev``."""
    trigger: str | None = None
    title: str | None = None

    def lacking(self) -> list[str]:
        """What is left to be stated, as options of the command line are called."""
        return [name for name in ("license", "base_model") if getattr(self, name) is None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CardFacts:
    """What the card tells.

    files: names of the LoRA file, or of those of two experts. samples: those on the sheet. checked: of the load check.
    """

    statement: Statement
    cfg: Config
    family: FamilyFacts
    files: Sequence[str]
    step: int | None
    samples: Sequence[Sample]
    checked: str


def model_card(facts: CardFacts, sheet: str | None) -> str:
    """The card, in Markdown. sheet: file name of the samples' sheet."""
    statement, cfg = facts.statement, facts.cfg
    title = statement.title or (cfg.saving.output_name if len(facts.files) > 1 else facts.files[0].rpartition(".")[0])
    parts = [_front_matter(facts), f"# {title}", _intro(facts)]
    if statement.trigger:
        parts.append(f"**Trigger words:** `{statement.trigger}`")
    if sheet is not None:
        parts += ["## Samples", f"![Samples]({sheet})", _prompts(cfg, facts.samples)]
    parts += ["## Settings", _table(_settings(facts)), "## License", statement.license or _open_point("license")]
    parts.append(f"Load check: {facts.checked}")
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(facts: CardFacts) -> str:
    statement = facts.statement
    lines = ["---"]
    lines.append(f"base_model: {_yaml(statement.base_model)}" if statement.base_model else "# base_model: to be stated")
    if statement.license is None:
        lines.append("# license: to be stated")
    elif _LICENSE_ID.fullmatch(statement.license):
        lines.append(f"license: {statement.license}")
    else:
        lines += ["license: other", f"license_name: {_yaml(statement.license)}"]
    lines.append(f"pipeline_tag: {_pipeline_tag(facts.family)}")
    lines += ["tags:", *(f"- {_yaml(tag)}" for tag in _tags(facts))]
    if statement.trigger:
        lines.append(f"instance_prompt: {_yaml(statement.trigger)}")
    return "\n".join([*lines, "---"])


def _tags(facts: CardFacts) -> list[str]:
    own = (facts.cfg.saving.metadata_tags or "").split(",")
    return list(dict.fromkeys(["lora", facts.family.name, *(tag.strip() for tag in own if tag.strip())]))


def _pipeline_tag(family: FamilyFacts) -> str:
    if family.video is not None:
        return "image-to-video" if family.video.starts else "text-to-video"
    return "text-to-image" if family.controls is None else "image-to-image"


def _intro(facts: CardFacts) -> str:
    base = facts.statement.base_model or _open_point("base model")
    kind = facts.cfg.network.network_type
    name = {"lora": "A LoRA", "dora": "A DoRA", "lokr": "A LoKr", "loha": "A LoHa"}[kind]
    files = " and ".join(f"`{each}`" for each in facts.files)
    noun = "File" if len(facts.files) == 1 else "Files, one for each expert"
    return (
        f"{name} for {facts.family.title}. Base model: {base}. {noun}: {files}, with the layer names of "
        f"{facts.cfg.saving.save_layout}."
    )


def _open_point(what: str) -> str:
    return f"*{what} {TO_BE_STATED}*"


def _prompts(cfg: Config, samples: Sequence[Sample]) -> str:
    """The prompt of each sample, in the order of the sheet, with the settings it was drawn with where known."""
    lines = []
    for number, sample in enumerate(samples, 1):
        prompt = _prompt_of(cfg, sample)
        settings = ", ".join(f"{name} {getattr(prompt, name):g}" for name in _SHOWN) if prompt is not None else ""
        lines.append(f"{number}. {_one_line(sample.prompt or '')}" + (f" ({settings})" if settings else ""))
    return "\n".join(lines)


def _prompt_of(cfg: Config, sample: Sample) -> SamplePrompt | None:
    """The settings of a sample, where its prompt is still the one that it was drawn with."""
    prompts = cfg.sampling.prompts
    if sample.prompt_index is None or not 0 <= sample.prompt_index < len(prompts):
        return None
    prompt = prompts[sample.prompt_index]
    return prompt if prompt.prompt == sample.prompt else None


def _settings(facts: CardFacts) -> list[tuple[str, str]]:
    cfg, step = facts.cfg, facts.step
    data, optimizer = cfg.dataset, cfg.optimizer
    batch = data.batch_size * cfg.training.batches_per_step
    return [
        ("Network", cfg.network.network_type),
        ("Rank", str(cfg.network.network_dim)),
        ("Alpha", f"{cfg.network.network_alpha:g}"),
        *(("Expert", f"for {side} noise") for side in sides_of(cfg)),
        ("Steps", "unknown" if step is None else f"{step:,}"),
        ("Images a step", str(batch)),
        ("Resolution", f"{data.resolution} x {data.resolution} px in area"),
        ("Optimizer", optimizer.optimizer),
        ("Learning rate", f"{optimizer.learning_rate:g}"),
        ("Schedule", optimizer.lr_scheduler),
        ("Trained with", "Monotile"),
    ]


def _table(rows: list[tuple[str, str]]) -> str:
    return "\n".join(
        ["| Setting | Value |", "|---|---|", *(f"| {name} | {_one_line(value)} |" for name, value in rows)]
    )


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _yaml(text: str) -> str:
    """A text as YAML, of which JSON's strings are a part."""
    return json.dumps(text, ensure_ascii=False)
