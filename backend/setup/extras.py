"""NVIDIA extras: each is tried once, and one that can't be had is named and left out."""

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
    pip: Pip, wanted: list[Requirement], constraints: list[str], report: Report, note: Callable[[str, str], None]
) -> None:
    """Try each of `wanted`, a ready-made wheel first, then a build against the torch that is there.

    Calls `note(name, reason)` for one that is left out. Ctrl-C notes what was not reached, so that the next start does
    not begin the same long build again, and goes on to end the launcher.
    """
    for place, requirement in enumerate(wanted):
        try:
            problem = _install(pip, requirement, constraints, report)
        except KeyboardInterrupt:
            for rest in wanted[place:]:
                note(rest.name, STOPPED)
            raise
        report.line(
            f"      {requirement.name}: {f'left out: {problem}' if problem else 'installed, or not for this system'}"
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
        f"      {requirement.name} has no ready-made wheel; trying to build it, at most {BUILD_LIMIT_S // 60} minutes "
        "(Ctrl-C stops; the next start leaves it out)"
    )
    try:
        pip.install([*BUILD_TOOLS, *constraints])
        pip.install(["--no-build-isolation", requirement.text, *constraints], limit_s=BUILD_LIMIT_S)
    except PipFailed as failure:
        return f"it can't be built here: {first_line(failure)}"
    return None


def first_line(failure: PipFailed) -> str:
    """The sentence without the hint at the log."""
    return str(failure).splitlines()[0]
