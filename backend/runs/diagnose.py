"""Diagnoses why a trainer ended: what happened, the likely cause, what to change."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass, replace

from backend.base.files import is_disk_full
from backend.base.redact import redact
from backend.runs.diagnose_rules import RULES, Rule
from backend.runs.events.kinds import ErrorEvent
from backend.runs.exit_codes import EXIT_CODES
from backend.runs.remedy_filter import Settings, unfollowed

# "pkg.module.SomeError: message" at the start of a line, as the last line of a traceback has it.
_EXCEPTION = re.compile(r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (?P<message>.*))?$")
_TRACEBACK = re.compile(r"^(?:[\d:. -]*\w* *\|? *)?Traceback \(most recent call last\):\s*$")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_FAULT = re.compile(r"^(?:Fatal Python error: .+|Windows fatal exception: .+)$", re.MULTILINE)
# Failures that libraries write without a traceback, on a line of their own.
_BARE = re.compile(
    r"^.*(?:CUDA out of memory|No space left on device|std::bad_alloc|terminate called after throwing|Killed process|"
    r"ModuleNotFoundError|No module named).*$",
    re.MULTILINE,
)
# A line that the trainer's own logging wrote: it ends the message of an exception above it.
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
# Ended from outside: the trainer survived whatever exception the log holds.
_OUTSIDE = {9, 15, 1, 2, 0xC000013A, 0x40010004}
_LONGEST = 2000


@dataclass(frozen=True)
class Diagnosis:
    """Why a run ended, for people."""

    kind: str
    """A short word that stays the same (``cuda_oom``, ``disk_full`` ... or ``unknown``)."""
    text: str
    """What happened."""
    cause: str
    """The likely cause."""
    remedy: str
    """What to change."""
    exception: str | None = None
    """The last exception as Python wrote it; None when there was none."""

    def as_event(self) -> ErrorEvent:
        """The event that tells it."""
        return ErrorEvent(
            text=self.text, cause=self.cause, remedy=self.remedy, exception=self.exception, error_kind=self.kind
        )


def explain(error: BaseException, settings: Settings | None = None) -> Diagnosis:
    """Diagnose an exception, for the trainer's own ``error`` event.

    settings: values by ``section.name``, so that no advice repeats what is set already; None where they are not known.

    An error with its own ``text`` and ``remedy`` (as those of this project) gives the words; otherwise the rules are
    tried on it, and then on what caused it.
    """
    own_text, own_remedy = getattr(error, "text", None), getattr(error, "remedy", None)
    line = redact(_one_exception(error))
    if isinstance(own_text, str) and isinstance(own_remedy, str):
        kind = "disk_full" if is_disk_full(error) else getattr(error, "kind", "said")
        return Diagnosis(kind, redact(own_text), redact(getattr(error, "cause", "") or ""), redact(own_remedy), line)
    seen: BaseException | None = error
    while seen is not None:
        diagnosis = _match(_one_exception(seen))
        if diagnosis is not None:
            return replace(diagnosis, remedy=unfollowed(diagnosis.remedy, settings))
        seen = seen.__cause__ or seen.__context__
    return _unknown(line)


def diagnose(log_tail: str, exit_code: int | None = None) -> Diagnosis:
    """Diagnose a trainer that ended by itself, from the end of its log and its exit code.

    Args:
        log_tail: the last lines of ``log.txt``; some tens of kilobytes are plenty.
        exit_code: as ``subprocess`` gives it; None when it is not known.
    """
    text = redact(log_tail.replace("\r\n", "\n"))
    number = _signal_or_status(exit_code)
    chain = [] if number in _OUTSIDE else last_exceptions(text, at_end=not exit_code)
    for exception in reversed(chain):
        diagnosis = _match(exception)
        if diagnosis is not None:
            return diagnosis
    if number in EXIT_CODES:
        return Diagnosis(*EXIT_CODES[number], chain[-1] if chain else _fault(text))
    if chain:
        return _unknown(chain[-1])
    for line in reversed(_BARE.findall(text) if exit_code else []):
        diagnosis = _match(line.strip())
        if diagnosis is not None:
            return diagnosis
    return _silent(exit_code, text)


def last_exceptions(text: str, at_end: bool = False) -> list[str]:
    """The exceptions of the last traceback in a text, first cause first, each as ``Type: message`` (maybe more lines).

    Args:
        text: a log.
        at_end: only a traceback after which the trainer logged nothing more, which it may have died of.
    """
    lines = text.split("\n")
    starts = [number for number, line in enumerate(lines) if _TRACEBACK.match(line)]
    if not starts or (at_end and any(_LOG_LINE.match(line) for line in lines[starts[-1] :])):
        return []
    # Walk back over the parts of one chain: they are joined by Python's own two sentences.
    first = len(starts) - 1
    while first > 0 and any(line.startswith(_CHAIN) for line in lines[starts[first - 1] : starts[first]]):
        first -= 1
    exceptions = []
    for number, start in enumerate(starts[first:], first):
        end = starts[number + 1] if number + 1 < len(starts) else len(lines)
        exception = _exception_in(lines[start + 1 : end])
        if exception:
            exceptions.append(exception)
    return exceptions


def _exception_in(lines: list[str]) -> str | None:
    """The exception that ends one traceback: the first line that is not indented, and what belongs to its message."""
    for number, line in enumerate(lines):
        if line and not line[0].isspace() and _EXCEPTION.match(line):
            message = [line]
            for more in lines[number + 1 :]:
                if more.startswith(_CHAIN) or _TRACEBACK.match(more) or _LOG_LINE.match(more):
                    break
                message.append(more)
            return "\n".join(message).strip()[:_LONGEST]
    return None


def _match(exception: str) -> Diagnosis | None:
    for rule in RULES:
        match = rule.pattern.search(exception)
        if match is not None:
            return _filled(rule, match.groupdict(), exception)
    return None


def _filled(rule: Rule, groups: dict[str, str | None], exception: str) -> Diagnosis:
    values = {name: _in_units(redact(value or "")) for name, value in groups.items()}
    text, cause, remedy = (sentence.format(**values) for sentence in (rule.text, rule.cause, rule.remedy))
    return Diagnosis(rule.kind, text, cause, remedy, redact(exception)[:_LONGEST])


def _in_units(value: str) -> str:
    """A long number of bytes as people say it; anything else as it is."""
    return f"{int(value) / 2**30:.1f} GB" if value.isdigit() and len(value) > 8 else value


def _signal_or_status(exit_code: int | None) -> int | None:
    """The signal number or NTSTATUS behind an exit code; None for an ordinary one, which says nothing."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code if exit_code > -256 else exit_code & 0xFFFFFFFF
    if 128 < exit_code < 160:
        return exit_code - 128
    return exit_code if exit_code >= 0x40000000 else None


def _unknown(exception: str) -> Diagnosis:
    first = exception.split("\n", 1)[0]
    return Diagnosis(
        "unknown",
        f"The trainer stopped with an error: {redact(first)[:300]}",
        "Monotile does not know the cause.",
        "The end of log.txt shows where it happened; if the settings look right, please report it with that log.",
        redact(exception)[:_LONGEST],
    )


def _silent(exit_code: int | None, text: str) -> Diagnosis:
    if exit_code is None:
        return Diagnosis(
            "vanished",
            "The trainer ended without a message.",
            "The machine was switched off or restarted, the process was ended from outside, or memory (RAM) ran out.",
            "Resume the run. If it ends this way again, watch the RAM while it trains.",
        )
    last = next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")
    ending = f" Its last line was: {last[:200]}" if last else " It wrote nothing."
    return Diagnosis(
        "unknown",
        f"The trainer ended with exit code {exit_code}.{ending}",
        "Monotile does not know the cause.",
        "Look at the end of log.txt; launcher.py doctor checks the installation.",
    )


def _fault(text: str) -> str | None:
    faults = _FAULT.findall(text)
    return faults[-1] if faults else None


def _one_exception(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:_LONGEST]
