"""Declares [logging]: further records of a run."""

from __future__ import annotations

from typing import Literal

from backend.config.declare import Section, setting


class LoggingSection(Section):
    """Further logs of the run."""

    tensorboard: bool = setting(
        False,
        label="TensorBoard files",
        help="Also writes TensorBoard event files into the folder of the run. The Run tab does not need them.",
        aliases=("log_with", "use_tensorboard", "report_to"),
        advanced=True,
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        label="Log level",
        help="How much the run writes into its log. Use debug when you report an error.",
        aliases=("logging_level", "verbosity", "console_log_level"),
        advanced=True,
    )
