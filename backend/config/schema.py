"""Joins the declared settings into one schema, in sections as the TOML has them; everything else reads it from here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from backend.config.declare import Bounds, Section, Setting, read_section, setting
from backend.config.sections.augmentation import AugmentationSection
from backend.config.sections.captions import CaptionsSection
from backend.config.sections.compile import BlockChoice, CompileSection
from backend.config.sections.dataset import DatasetSection, ImageFolder
from backend.config.sections.logging import LoggingSection
from backend.config.sections.loss import LossSection
from backend.config.sections.masks import MasksSection
from backend.config.sections.memory import MemorySection
from backend.config.sections.model import ModelSection
from backend.config.sections.network import NetworkSection
from backend.config.sections.optimizer import OptimizerSection
from backend.config.sections.sampling import SamplePrompt, SamplingSection
from backend.config.sections.saving import SavingSection
from backend.config.sections.timesteps import TimestepsSection
from backend.config.sections.training import DEFAULT_TRAIN_STEPS, TrainingSection
from backend.config.sections.validation import ValidationFolder, ValidationSection
from backend.config.sections.video import VideoSection

__all__ = [
    "DEFAULT_TRAIN_STEPS",
    "SCHEMA_VERSION",
    "SECTIONS",
    "BlockChoice",
    "Bounds",
    "Config",
    "ImageFolder",
    "SamplePrompt",
    "Section",
    "Setting",
    "ValidationFolder",
    "by_name",
    "by_path",
    "get",
    "setting",
    "settings",
    "with_values",
]

SCHEMA_VERSION = 2

SECTIONS: dict[str, type[Section]] = {
    "model": ModelSection,
    "dataset": DatasetSection,
    "captions": CaptionsSection,
    "masks": MasksSection,
    "augmentation": AugmentationSection,
    "video": VideoSection,
    "network": NetworkSection,
    "optimizer": OptimizerSection,
    "training": TrainingSection,
    "timesteps": TimestepsSection,
    "loss": LossSection,
    "compile": CompileSection,
    "memory": MemorySection,
    "sampling": SamplingSection,
    "validation": ValidationSection,
    "saving": SavingSection,
    "logging": LoggingSection,
}


class Config(Section):
    """All settings of one run. ``Config()`` holds the defaults; ``cfg.dataset.batch_size`` reads one."""

    model: ModelSection = setting(ModelSection, label="Model", help="The base model and how it is loaded.")
    dataset: DatasetSection = setting(DatasetSection, label="Dataset", help="The images and how they become batches.")
    captions: CaptionsSection = setting(
        CaptionsSection, label="Captions", help="Several captions for an image, and what is done with tags."
    )
    masks: MasksSection = setting(MasksSection, label="Masks", help="Which parts of an image count in the loss.")
    augmentation: AugmentationSection = setting(
        AugmentationSection,
        label="Augmentation",
        help="Images that are mirrored, cropped or coloured otherwise from time to time.",
    )
    video: VideoSection = setting(
        VideoSection, label="Video clips", help="Which frames of a clip are trained on, of models that make clips."
    )
    network: NetworkSection = setting(NetworkSection, label="LoRA network", help="Type, size and layers of the LoRA.")
    optimizer: OptimizerSection = setting(
        OptimizerSection, label="Optimizer", help="Optimizer, learning rate and its schedule."
    )
    training: TrainingSection = setting(TrainingSection, label="Training", help="Length and precision of the run.")
    timesteps: TimestepsSection = setting(
        TimestepsSection, label="Timesteps", help="Which noise levels are trained, and how much each counts."
    )
    loss: LossSection = setting(
        LossSection, label="Loss", help="How a prediction is compared with its target, and the noise that is added."
    )
    compile: CompileSection = setting(
        CompileSection, label="Torch Compile Settings", help="What is compiled, and how many different shapes reach it."
    )
    memory: MemorySection = setting(
        MemorySection, label="Memory", help="What saves GPU memory, and what it costs in time."
    )
    sampling: SamplingSection = setting(
        SamplingSection, label="Sampling", help="Sample images that are made during training."
    )
    validation: ValidationSection = setting(
        ValidationSection,
        label="Validation",
        help="Loss on images that are not trained, with the same noise every time.",
    )
    saving: SavingSection = setting(SavingSection, label="Saving", help="LoRA files, training state and metadata.")
    logging: LoggingSection = setting(LoggingSection, label="Logging", help="Further logs of the run.")


@cache
def settings() -> tuple[Setting, ...]:
    """Every setting, section by section, in the order of declaration (columns of tables inside their table)."""
    return tuple(s for section, model in SECTIONS.items() for s in read_section(section, model))


@cache
def by_path() -> dict[str, Setting]:
    """Settings by ``section.name``."""
    return {s.path: s for s in settings()}


@cache
def by_name() -> dict[str, Setting]:
    """Settings by their flat name, which is unique: ``batch_size``."""
    return {s.name: s for s in settings()}


def section_title(section: str) -> tuple[str, str]:
    """Label and one-line help of a section."""
    extra: Any = Config.model_fields[section].json_schema_extra
    return extra["setting"]["label"], extra["setting"]["help"]


def get(cfg: Config, path: str) -> Any:
    """The value at ``section.name``; KeyError when there is no such setting."""
    declared = by_path()[path]
    return getattr(getattr(cfg, declared.section), declared.name)


def with_values(cfg: Config, values: Mapping[str, Any]) -> Config:
    """A copy with other values by ``section.name``, checked by type and bounds (pydantic.ValidationError)."""
    data = cfg.model_dump()
    for path, value in values.items():
        declared = by_path()[path]
        data[declared.section][declared.name] = value.model_dump() if isinstance(value, Section) else value
    return Config.model_validate(data)
