"""Asks for the class images of DreamBooth: what a regularization folder still lacks, drawn with the base model.

The rows of ``dataset.folders`` say which: those with ``class_images``, drawn from their ``class_tokens``. Each image is
a file of its own, whole or not there, and has a seed of its own by its number: drawing again continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.base.errors import Refused
from backend.base.paths import resolve
from backend.base.problems import errors
from backend.config.load import load
from backend.config.schema import Config, SamplePrompt, with_values
from backend.config.sections.dataset import ImageFolder
from backend.dataset.class_images import missing_names
from backend.families.spec import FamilyFacts
from backend.families.table import family
from backend.runs.preview.request import PreviewRequest, Row, settings_of_form


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassFolder:
    """What one folder lacks. names: files to draw, each with its number from 0. total: that it is to have."""

    path: Path
    words: str
    names: Mapping[str, int]
    total: int


def class_folders(cfg: Config) -> list[ClassFolder]:
    """The folders of a training that have class images, with what is to be drawn."""
    return [_folder(row) for row in cfg.dataset.folders if row.class_images]


def _folder(row: ImageFolder) -> ClassFolder:
    path, count = resolve(row.path), row.class_images or 0
    return ClassFolder(path=path, words=row.class_tokens or "", names=missing_names(path, count), total=count)


def settings_of_training(path: Path, changes: Mapping[str, str]) -> Config:
    """Settings of a training, from its TOML. changes: further ones by name. Refused with all problems."""
    loaded = load(path, changes)
    if loaded.config is None or errors(loaded.problems):
        raise Refused.of(errors(loaded.problems))
    return loaded.config


def class_images_request(cfg: Config, folders: Sequence[ClassFolder], most: int | None = None) -> PreviewRequest:
    """The images that the folders lack, `most` of them at once, as a request whose pictures are copied there.

    As large as the training's resolution, with the steps and guidance of its first sample prompt, or what is usual for
    the family. Refused where no folder asks for class images, where none lacks one, and for a family that draws nothing
    without a control image.
    """
    if not folders:
        text, remedy = "no image folder asks for class images", "Set is_reg, class_tokens and class_images of a folder."
        raise Refused(text, remedy, "dataset.folders")
    wanted = [(folder, name, number) for folder in folders for name, number in folder.names.items()][:most]
    if not wanted:
        raise Refused("all class images are there", "Raise class_images of the folder to draw more.", "dataset.folders")
    facts = family(cfg.model.family)
    if facts.needs_control(sample=True):
        text = f"{facts.title} draws from a control image, and class images are drawn from words alone"
        raise Refused(text, "Put images of the class into the folder yourself.", "model.family")
    like = cfg.sampling.prompts[0] if cfg.sampling.prompts else _usual(facts)
    kept = {name: getattr(like, name) for name in ("steps", "guidance_scale", "true_cfg_scale", "negative_prompt")}
    side = cfg.dataset.resolution
    kept |= {"width": side, "height": side} | ({} if facts.video is None else {"frames": 1})
    return PreviewRequest(
        # folders mean nothing to a drawing, and rules between them would be in its way
        config=settings_of_form(with_values(cfg, {"dataset.folders": []}), {}),
        rows=(Row(name="base model"),),
        prompts=tuple(
            SamplePrompt(prompt=folder.words, seed=cfg.training.seed + number, **kept) for folder, _, number in wanted
        ),
        copies=tuple(str(folder.path / name) for folder, name, _ in wanted),
    )


def _usual(facts: FamilyFacts) -> SamplePrompt:
    """How pictures of the family are drawn: those that take no guidance as an input are guided by two passes."""
    own = 1.0 if "guidance_scale" in facts.options else 7.0 if facts.objective == "diffusion" else 4.0
    return SamplePrompt(prompt="", true_cfg_scale=own)
