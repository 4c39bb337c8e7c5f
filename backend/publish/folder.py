"""Puts a LoRA file of a run, with its model card and pictures, into a folder to publish."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from backend.base.errors import Refused
from backend.base.files import atomic_folder, write_atomic
from backend.config.experts import ENDINGS, expert_file, sides_of
from backend.config.load import load
from backend.config.schema import Config
from backend.families.files.headers import Unreadable, read_header
from backend.families.table import family
from backend.lora.save import write_lora
from backend.publish.card import CardFacts, Statement, model_card
from backend.publish.cleaner import Cleaner
from backend.publish.load_check import load_check
from backend.publish.pictures import preview_png, samples_of, sheet_png
from backend.runs.folder import Checkpoint, Run
from backend.runs.preview.request import find_checkpoint
from backend.runs.samples import Sample

CARD, SHEET = "README.md", "samples.png"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A folder that was made. checked: what the load check found. notes: what a person should know of it."""

    folder: Path
    files: tuple[str, ...]
    checked: str
    notes: tuple[str, ...]


def publish(run: Run, checkpoint: str | None, folder: Path | None, statement: Statement) -> Published:
    """Make the folder, whole or not at all.

    checkpoint: step or file name; the newest for None. Of a run of two experts the files of both are taken. folder: in
    the run where None. Refused, with the reason, for a run that trained a whole model, for a folder that is there
    already, a LoRA that does not load, and a private path that is left in a file. WriteFailed where the disk has no
    room.
    """
    cfg = _settings(run)
    if cfg.training.kind == "full":
        raise Refused(
            f"the run {run.name} trained a whole model, and a folder to publish is made of a LoRA",
            "Make a LoRA of it with launcher.py lora extract, or publish the model's file as it is.",
        )
    source = find_checkpoint(run, checkpoint)
    files = _files(source.path, cfg)
    name = source.path.stem if len(files) == 1 else next(iter(files)).stem.removesuffix(ENDINGS["high"])
    target = folder or run.path / "publish" / name
    if target.exists() or target.is_symlink():
        raise Refused(f"{target} is there already", "Choose another folder with --out, or remove that one.")
    cleaner = Cleaner.of(cfg, run.path, run.path.parent)
    stated = _stated(statement, cfg, cleaner)
    samples = samples_of(run.samples(), source.step)
    shown = [replace(sample, prompt=cleaner.text(sample.prompt or "")) for sample in samples]
    with atomic_folder(target) as place:
        for path, ending in files.items():
            own = replace(stated, title=f"{stated.title}{ending}") if stated.title else stated
            write_lora(place / path.name, _tensors(path), _metadata(path, own, cleaner))
        checked = " ".join(dict.fromkeys(load_check(place / path.name, cfg) for path in files))
        _write_pictures(place, [path.stem for path in files], samples)
        facts = CardFacts(
            statement=stated,
            cfg=cfg,
            family=family(cfg.model.family),
            files=[path.name for path in files],
            step=source.step,
            samples=shown,
            checked=checked,
        )
        write_atomic(place / CARD, cleaner.text(model_card(facts, SHEET if samples else None)))
        _refuse_private(place, cleaner)
        written = tuple(sorted(path.name for path in place.iterdir()))
    return Published(folder=target, files=written, checked=checked, notes=tuple(_notes(stated, samples, source)))


def _files(path: Path, cfg: Config) -> dict[Path, str]:
    """The file, or those of both experts -> what its title ends in. Refused where one of the two is missing."""
    sides = sides_of(cfg)
    if len(sides) < 2:
        return {path: ""}
    pair = {expert_file(path, side): ENDINGS[side] for side in sides}
    if len(pair) < 2:
        return {path: ""}
    for each in pair:
        if not each.is_file():
            raise Refused(f"{path.name} has no {each.name} beside it", "Publish a step of which both files are there.")
    return pair


def _settings(run: Run) -> Config:
    """The settings of a run, with defaults where a value can't be read any more."""
    if not run.config_path.is_file():
        raise Refused(f"{run.path} holds no config.toml", "Give the name or the folder of a run.")
    loaded = load(run.config_path)
    cfg = loaded.config or loaded.partial
    if cfg is None:
        raise Refused.of(loaded.errors)
    return cfg


def _stated(statement: Statement, cfg: Config, cleaner: Cleaner) -> Statement:
    """The statement, with what the settings of the run state already."""
    saving = cfg.saving
    usual = {
        "license": saving.metadata_license,
        "trigger": saving.metadata_trigger or cfg.dataset.trigger_word,
        "title": saving.metadata_title,
        "base_model": None,
    }
    values = {name: (getattr(statement, name) or "").strip() or text for name, text in usual.items()}
    return Statement(**{name: cleaner.text(" ".join(text.split())) if text else None for name, text in values.items()})


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        read_header(path)
        return safetensors.torch.load_file(path)
    except Unreadable as error:
        raise Refused(f"{path.name} {error}", error.remedy) from error
    except (OSError, safetensors.SafetensorError) as error:
        raise Refused(f"{path.name} can't be read: {error}", "Publish another checkpoint of the run.") from error


def _metadata(path: Path, stated: Statement, cleaner: Cleaner) -> dict[str, str]:
    """The file's own metadata, cleaned, with what the person states in ModelSpec's words."""
    own = {name: str(value) for name, value in read_header(path).metadata.items()}
    fields = {"title": stated.title, "license": stated.license, "trigger_phrase": stated.trigger}
    return cleaner.metadata(own) | {f"modelspec.{name}": text for name, text in fields.items() if text}


def _write_pictures(place: Path, stems: list[str], samples: list[Sample]) -> None:
    """The sheet of all samples, and one with each LoRA file's name, which programs show beside the file."""
    if samples:
        write_atomic(place / SHEET, sheet_png(samples))
        for stem in stems:
            write_atomic(place / f"{stem}.png", preview_png(samples[0]))


def _refuse_private(place: Path, cleaner: Cleaner) -> None:
    """Refused where a file holds a path of this machine; of a LoRA file its header counts, the rest is numbers."""
    for path in place.iterdir():
        data = path.read_bytes()
        if path.suffix == ".safetensors":
            data = data[8 : 8 + int.from_bytes(data[:8], "little")]
        left = cleaner.leftover(data)
        if left is not None:
            text = f"{path.name} would hold the path {left} of this machine"
            raise Refused(text, "Take it out of the run's settings or captions, and publish again.")


def _notes(stated: Statement, samples: list[Sample], source: Checkpoint) -> list[str]:
    notes = [
        f"The {name.replace('_', ' ')} is to be stated: add it to {CARD}, or state it and publish again."
        for name in stated.lacking()
    ]
    if not stated.trigger:
        notes.append("No trigger words are stated.")
    if not samples:
        notes.append("The run has no sample up to this step, so that there is no picture.")
    if read_header(source.path).metadata.get("ss_tag_frequency", "{}") != "{}":
        notes.append("The LoRA file's metadata counts the words of the captions, as other trainers have it.")
    return notes
