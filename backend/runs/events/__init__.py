"""Holds the rare events of a run: the kinds are in `kinds`, their file is written and read by `log`."""

from backend.runs.events.log import EventWriter, read_events

__all__ = ["EventWriter", "read_events"]
