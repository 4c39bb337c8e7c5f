"""Describes what a preview is to draw, as data that page, terminal and worker share: settings, LoRA files, prompts.

A request is a list of pictures in rows and columns: a row is one set of LoRAs (a checkpoint, a strength), a column one
prompt. A single picture is a request of one row and one column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from backend.base.errors import Refused
from backend.base.problems import errors
from backend.config.experts import expert_file
from backend.config.load import Loaded, load, loads
from backend.config.schema import Config, SamplePrompt, with_values
from backend.config.sections.sampling import CONTROL_IMAGES
from backend.config.toml_io import dumps
from backend.families.files.base_model import BaseModelFiles
from backend.families.spec import FamilyFacts
from backend.families.table import family
from backend.runs.folder import Checkpoint, Run

_UNLIKE_TRAINING = {"compile.shape_mode": "auto", "compile.static_token_count": "none"}
"""Settings of a run's shapes that a preview, which draws any size, does not share unless they are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraUse:
    """A LoRA file and how strongly it acts."""

    path: str
    strength: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One set of LoRAs. facts: what pictures say of it besides, such as a run's name and step; no paths."""

    name: str
    loras: tuple[LoraUse, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    step: int | None = None
    """Of the checkpoint, where it is one of a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Follow:
    """How a run is followed while it trains: each new checkpoint is a row more, at this strength and with these."""

    strength: float = 1.0
    extra: tuple[LoraUse, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One picture to draw, by its row and column."""

    row: int
    column: int
    file: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewRequest:
    """What is to be drawn, all of it. run: folder of the run whose checkpoints the rows are, where there is one."""

    config: Config
    rows: tuple[Row, ...]
    prompts: tuple[SamplePrompt, ...]
    run: str | None = None
    follow: Follow | None = None
    """Rows are added as `run` saves checkpoints, until it ends."""
    copies: tuple[str, ...] = ()
    """Where the picture of each prompt is copied to, in a request of one row; empty where none is."""

    def cells(self) -> list[Cell]:
        """The pictures and clips in the order in which they are drawn: a row's prompts one after the other."""
        facts = family(self.config.model.family)
        video, geometry = facts.video, facts.default_geometry
        endings = [
            "png" if video is None or video.sample_frames(prompt.frames, geometry) == 1 else "mp4"
            for prompt in self.prompts
        ]
        return [
            Cell(row=row, column=column, file=f"{row + 1:02d}-{column + 1:02d}.{ending}")
            for row in range(len(self.rows))
            for column, ending in enumerate(endings)
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {
            "config": dumps(self.config, whole=True),
            "rows": [
                {
                    "name": row.name,
                    "loras": [{"path": use.path, "strength": use.strength} for use in row.loras],
                    "facts": dict(row.facts),
                    "step": row.step,
                }
                for row in self.rows
            ],
            "prompts": [prompt.model_dump() for prompt in self.prompts],
            "run": self.run,
            "follow": None if self.follow is None else asdict(self.follow),
            "copies": list(self.copies),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PreviewRequest:
        """What `to_json` gave. Refused, or ValueError, KeyError or TypeError, for anything else."""
        rows = tuple(
            Row(
                name=row["name"],
                loras=tuple(LoraUse(**use) for use in row["loras"]),
                facts=row["facts"],
                step=row["step"],
            )
            for row in data["rows"]
        )
        prompts = tuple(SamplePrompt(**prompt) for prompt in data["prompts"])
        config, follow = _usable(loads(data["config"])), data.get("follow")
        if follow is not None:
            follow = Follow(strength=follow["strength"], extra=tuple(LoraUse(**use) for use in follow["extra"]))
        copies = tuple(data.get("copies", ()))
        return cls(config=config, rows=rows, prompts=prompts, run=data["run"], follow=follow, copies=copies)


def settings_of_base(base: str, family_name: str, changes: Mapping[str, str]) -> Config:
    """Settings of a preview of a base model. changes: further settings by name. Refused with all problems."""
    cfg = _usable(loads("", {"model.base_model": base, "model.family": family_name, **changes}))
    return _with_both_experts(cfg)


def settings_of_run(run: Run, changes: Mapping[str, str]) -> Config:
    """Settings of a preview of a run: those it trains with, but one graph for all sizes where that can be."""
    if not run.config_path.is_file():
        raise Refused(f"{run.path} holds no config.toml", "Give the name or the folder of a run.")
    loaded = load(run.config_path, {**_UNLIKE_TRAINING, **changes})
    if loaded.partial is not None and loaded.partial.training.kind == "full":
        text = f"the run {run.name} trained the whole model, and the preview draws with LoRA files"
        raise Refused(text, "Draw with the model that it saved, as the base model.")
    return _usable(loaded)


def settings_of_form(cfg: Config, changes: Mapping[str, str]) -> Config:
    """Settings of a preview of the base model that other settings name, which may be those of full fine-tuning."""
    if cfg.training.kind == "full":
        # quantization and swap are refused there, and a preview trains nothing
        cfg = with_values(cfg, {"training.kind": "lora", "optimizer.fused_backward": False})
    return _with_both_experts(_usable(loads(dumps(cfg, whole=True), {**_UNLIKE_TRAINING, **changes})))


def _with_both_experts(cfg: Config) -> Config:
    """The settings, with both experts where the base model has two and none is chosen: clips need both."""
    facts = family(cfg.model.family)
    if facts.experts is None or cfg.timesteps.train_experts != "auto":
        return cfg
    second = BaseModelFiles.of(cfg.model).place(facts.part(facts.experts.part))
    return cfg if second is None else with_values(cfg, {"timesteps.train_experts": "both"})


def checkpoints_of(run: Run) -> list[Checkpoint]:
    """The LoRA files of a run that are rows of a preview; a pair for two experts is one, that for high noise."""
    files = run.checkpoints()
    there = {each.path for each in files}
    pairs = {path for each in there if (path := expert_file(each, "high")) != each and path in there}
    return [each for each in files if each.path in pairs or expert_file(each.path, "high") not in pairs]


def row_of_checkpoint(run: Run, checkpoint: Checkpoint, strength: float = 1.0) -> Row:
    """The row of one LoRA file of a run."""
    name = checkpoint.path.stem if checkpoint.step is None else f"step {checkpoint.step}"
    name = name if checkpoint.role is None else f"{name}, {checkpoint.role}"
    facts = {"run": run.name, "step": checkpoint.step}
    use = LoraUse(path=str(checkpoint.path), strength=strength)
    # the loss that the run measured at the step of an average is not that of the average
    step = None if checkpoint.role == "average" else checkpoint.step
    return Row(name=name, loras=(use,), facts=facts, step=step)


def find_checkpoint(run: Run, wanted: str | None) -> Checkpoint:
    """A run's LoRA file by step or file name; the newest for None. Refused, with those that are there, for another."""
    files = checkpoints_of(run)
    if not files:
        raise Refused(f"the run {run.name} has no LoRA file yet", "Wait until it saves one, or ask it to save now.")
    if wanted is None:
        return files[-1]
    for each in reversed(files):
        if wanted in (str(each.step), each.path.name, each.path.stem):
            return each
    steps = ", ".join(str(each.step) if each.step is not None else each.path.name for each in files)
    raise Refused(f"the run {run.name} has no checkpoint {wanted}", f"There are: {steps}.")


def with_new_rows(request: PreviewRequest, whole: bool) -> PreviewRequest:
    """The followed request with a row more for each checkpoint that its run has saved since.

    whole: the run has ended, and names every file that it has; before, one whose step it has not written down waits,
    and so does the best one, which a better one takes the place of.
    """
    assert request.run is not None and request.follow is not None
    run, follow = Run(request.run), request.follow
    known = {use.path for row in request.rows for use in row.loras}
    files = [
        each
        for each in checkpoints_of(run)
        if str(each.path) not in known and (whole or (each.step is not None and each.role is None))
    ]
    rows = [row_of_checkpoint(run, each, follow.strength) for each in files]
    return replace(request, rows=(*request.rows, *(replace(row, loras=(*row.loras, *follow.extra)) for row in rows)))


def rows_of_strengths(row: Row, strengths: Iterable[float]) -> tuple[Row, ...]:
    """The row once for each strength, by which that of each LoRA is multiplied."""
    return tuple(
        replace(
            row,
            name=f"strength {strength:g}",
            loras=tuple(replace(use, strength=use.strength * strength) for use in row.loras),
        )
        for strength in strengths
    )


def changed_prompts(prompts: Sequence[SamplePrompt], changes: Mapping[str, Any]) -> tuple[SamplePrompt, ...]:
    """The prompts with some values replaced. Refused for a value that is out of bounds, with its name."""
    try:
        return tuple(SamplePrompt(**{**prompt.model_dump(), **changes}) for prompt in prompts)
    except ValueError as error:
        details = getattr(error, "errors", list)()
        name = ".".join(map(str, details[0]["loc"])) if details else "a value"
        text = f"{name} can't be used: {details[0]['msg'] if details else error}"
        raise Refused(text, "Give another value.") from error


def _usable(loaded: Loaded) -> Config:
    """The settings that were read. Refused with all errors where there are some, and for what can't be drawn."""
    if loaded.config is None or errors(loaded.problems):
        raise Refused.of(errors(loaded.problems))
    return loaded.config


def control_images(paths: Sequence[str]) -> dict[str, str | None]:
    """Settings of a prompt that starts from these images, in their order. Refused for more than a prompt can have."""
    if len(paths) > len(CONTROL_IMAGES):
        text = f"{len(paths)} control images are given, and a prompt takes {len(CONTROL_IMAGES)} at most"
        raise Refused(text, "Leave the others out.")
    missing = [None] * (len(CONTROL_IMAGES) - len(paths))
    return dict(zip(CONTROL_IMAGES, [*map(path_of, paths), *missing], strict=True))


def check_controls(prompt: SamplePrompt, facts: FamilyFacts) -> None:
    """Refused where the prompt has control images that the family can't use, or lacks the one that it needs."""
    count, most = len(prompt.controls), facts.sample_controls
    if count > most:
        text = f"{facts.title} takes {f'at most {most}' if most else 'no'} control images, and {count} are given"
        raise Refused(text, "Leave the others out.")
    if not count and facts.needs_control(sample=True):
        raise Refused(f"{facts.title} starts from a control image, and none is given", "Choose an image to start from.")


def path_of(text: str) -> str:
    """A path as a request holds it: whole, so that it means the same to another process."""
    return str(Path(text).expanduser().absolute())
