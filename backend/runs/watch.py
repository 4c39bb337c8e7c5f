"""Follow a run in a terminal: what happens as lines, the progress as a bar. The run itself needs no watcher."""

from __future__ import annotations

import threading
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from backend.runs.control import Control
from backend.runs.eta import spoken
from backend.runs.events import read_events
from backend.runs.folder import Run
from backend.runs.metrics import MetricsReader
from backend.runs.status import RunStatus, StatusReader
from backend.runs.supervise import stop

# Without a terminal (a log of CI, a pipe) a line stands for so many seconds of the bar.
_LINE_EVERY_S = 15.0


def watch(run: Run, console: Console, every_s: float = 0.5) -> int:
    """Show a run until it ends.

    Ctrl+C asks the trainer to save and stop and goes on watching; a second one ends it by force.

    Args:
        run: a started run.
        console: where to write.
        every_s: seconds between two looks.

    Returns:
        0 when the run is done, 130 when it was stopped, 1 when it failed.
    """
    watcher = _Watcher(run, console)
    while True:
        try:
            status = watcher.until_end(every_s)
            break
        except KeyboardInterrupt:
            if "stop" in Control(run).pending():
                console.print("Ending the run by force.")
                console.print(stop(run, grace_s=0, say=lambda _: None).sentence())
            else:
                console.print("Stopping: the trainer saves first. Press Ctrl+C again to end it at once.")
                Control(run).request("stop")
    watcher.say_end(status)
    return {"done": 0, "stopped": 130}.get(status.state, 1)


class _Watcher:
    def __init__(self, run: Run, console: Console) -> None:
        self.run = run
        self.console = console
        self._reader = StatusReader(run)
        self._metrics = MetricsReader(run)
        self._offset = int(run.record().get("events_offset") or 0)
        self._phase: str | None = None
        self._line_at = float("-inf")

    def until_end(self, every_s: float) -> RunStatus:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
        pause = threading.Event()
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task("", total=None, numbers="")
            while True:
                status = self._reader.read()
                self._say_events()
                if not status.active:
                    return status
                bar.update(
                    task,
                    description=escape(status.text),
                    total=status.total,
                    completed=status.done or 0,
                    numbers=self._numbers(),
                )
                if not self.console.is_terminal and time.monotonic() - self._line_at >= _LINE_EVERY_S:
                    self._line_at = time.monotonic()
                    self.console.print(escape(f"{status.text} {self._numbers()}".rstrip()), highlight=False)
                pause.wait(every_s)

    def _numbers(self) -> str:
        row = self._metrics.last()
        if row is None:
            return ""
        loss = row["loss_smooth"] if row["loss_smooth"] is not None else row["loss"]
        parts = [f"loss {loss:.4f}" if loss is not None else "", _seconds(row["s_per_step"])]
        parts += [f"{row['graphs']} graphs" if row["graphs"] else ""]
        parts += [f"{row['recompiles']} recompiles" if row["recompiles"] else ""]
        return ", ".join(part for part in parts if part)

    def _say_events(self) -> None:
        events, self._offset = read_events(self.run.events_path, self._offset)
        for event in events:
            line, style = self._line(event)
            if line:
                self.console.print(escape(line), style=style, highlight=False)

    def _line(self, event: dict) -> tuple[str, str]:
        """What an event says in one line, and its style; an empty line for events that the bar shows already."""
        kind, step = event["kind"], event.get("step")
        if kind == "validation":
            name = f" on {event['set']}" if event.get("set") else ""
            loss = event.get("loss")
            return (f"Step {step}: validation loss{name} {loss:.4f}" if isinstance(loss, int | float) else "", "")
        if kind == "sample":
            return f"Step {step}: drew {event.get('file')}", ""
        if kind == "checkpoint":
            return f"Step {step}: saved {event.get('file')}", ""
        if kind == "resumed":
            return f"Resumed from step {step}.", ""
        if kind == "recompile":
            return f"Recompiled {event.get('block') or 'a block'}: {event.get('reason')}", "yellow"
        if kind == "graph_break":
            return f"Graph break at {event.get('file')}:{event.get('line')}: {event.get('reason')}", "yellow"
        if kind == "warning":
            return f"{event.get('text', '')} {event.get('remedy') or ''}".strip(), "yellow"
        return "", ""

    def say_end(self, status: RunStatus) -> None:
        style = {"done": "green", "stopped": ""}.get(status.state, "red")
        self.console.print(escape(status.text), style=style, highlight=False)
        for line in failure_lines(status):
            self.console.print(escape(line), highlight=False)
        if status.state == "failed":
            self.console.print(escape(f"The whole log: {self.run.log_path}"), highlight=False)


def failure_lines(status: RunStatus) -> list[str]:
    """Cause, remedy and Python's own words of a run that failed, a line each; nothing for others."""
    error = status.error
    if error is None:
        return []
    pairs = (("Likely cause", error.cause), ("What to change", error.remedy), ("Python said", error.exception or ""))
    return [f"{title}: {text}" for title, text in pairs if text]


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} s/step" if value < 100 else f"{spoken(value)} a step"
