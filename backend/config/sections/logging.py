"""Declares [logging]: further records of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator

from backend.config.declare import Section, setting
from backend.config.sections.values import not_blank


class LoggingSection(Section):
    """Further logs of the run."""

    tensorboard: bool = setting(
        False,
        label="TensorBoard files",
        help="Also writes TensorBoard event files into the folder of the run. The Run tab does not need them.",
        aliases=("log_with", "use_tensorboard", "report_to"),
        advanced=True,
    )
    wandb: bool = setting(
        False,
        label="Weights & Biases",
        help="Also sends the run's numbers and settings, which hold paths and prompts, to Weights & Biases. Needs the "
        "package wandb and its login: run wandb login once, or set the environment variable WANDB_API_KEY. Monotile "
        "stores no key.",
        aliases=("use_wandb", "enable_wandb"),
        advanced=True,
    )
    wandb_project: Annotated[str, AfterValidator(not_blank)] = setting(
        "monotile",
        min_length=1,
        label="W&B project",
        help="Project that the run is listed in. It is made when there is none of this name.",
        aliases=("log_tracker_name", "tracker_project_name"),
        advanced=True,
    )
    wandb_run_name: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="W&B run name",
        help="What the run is called there. Empty: the name of the run's folder.",
        aliases=("tracker_run_name",),
        advanced=True,
    )
    wandb_entity: Annotated[str, AfterValidator(not_blank)] | None = setting(
        None,
        min_length=1,
        label="W&B entity",
        help="User or team that owns the project. Empty: the one of the login.",
        advanced=True,
    )
    wandb_mode: Literal["online", "offline"] = setting(
        "online",
        label="W&B mode",
        help="online: sent while the run trains. offline: only written into the folder of the run, without a login; "
        "wandb sync sends it later.",
        advanced=True,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        label="Log level",
        help="How much the run writes into its log. Use debug when you report an error.",
        aliases=("logging_level", "verbosity", "console_log_level"),
        advanced=True,
    )
