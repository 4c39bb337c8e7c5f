"""Installs NVIDIA extras: each is tried once; one that can't be installed is named and skipped."""

from __future__ import annotations

from collections.abc import Callable

from backend.setup.pip import Pip, PipFailed
from backend.setup.report import Report
from backend.setup.requirements import Requirement

BUILD_LIMIT_S = 600
"""Seconds that one extra may take to be built from source; flash-attn without a ready-made wheel can take hours."""

BUILD_TOOLS = ["wheel", "ninja"]
STOPPED = "stopped with Ctrl-C"


def install_each(
    pip: Pip, requested: list[Requirement], constraints: list[str], report: Report, note: Callable[[str, str], None]
) -> None:
    """Try each of `requested`, a ready-made wheel first, then a build against the torch that is there.

    Calls `note(name, reason)` for one that is skipped. Ctrl-C notes what was not reached, so that the next start does
    not begin the same long build again, and then ends the launcher.
    """
    for place, requirement in enumerate(requested):
        try:
            problem = _install(pip, requirement, constraints, report)
        except KeyboardInterrupt:
            for rest in requested[place:]:
                note(rest.name, STOPPED)
            raise
        report.line(
            f"      {requirement.name}: {f'skipped: {problem}' if problem else 'installed, or not for this system'}"
        )
        if problem:
            note(requirement.name, problem)


def _install(pip: Pip, requirement: Requirement, constraints: list[str], report: Report) -> str | None:
    try:
        pip.install(["--only-binary=:all:", requirement.text, *constraints])
        return None
    except PipFailed as failure:
        no_wheel = first_line(failure)
    if "fits Python" not in no_wheel:
        return no_wheel
    report.line(
        f"      {requirement.name} has no ready-made wheel. Building it takes at most {BUILD_LIMIT_S // 60} minutes "
        "(Ctrl-C stops; the next start skips it)"
    )
    try:
        pip.install([*BUILD_TOOLS, *constraints])
        pip.install(["--no-build-isolation", requirement.text, *constraints], limit_s=BUILD_LIMIT_S)
    except PipFailed as failure:
        return f"it can't be built here: {first_line(failure)}"
    return None


def first_line(failure: PipFailed) -> str:
    """The message without the line about the log."""
    return str(failure).splitlines()[0]
