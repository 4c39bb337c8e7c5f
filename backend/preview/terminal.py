"""Shows a preview in a terminal: a bar with the time that is left, and a line for each picture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from backend.runs.preview.request import Cell, PreviewRequest

_PHASES = {
    "load": "Loading the model",
    "controls": "Encoding control images",
    "text": "Encoding prompts",
    "sample": "Sampling",
    "decode": "Decoding",
    "wait": "Waiting for a checkpoint",
    "turn": "Waiting for the run to give the GPU",
}


class TerminalWatch:
    """A bar over the steps of the picture in hand."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self.bar.add_task("Starting", total=None)

    def phase(self, name: str, total: int | None = None) -> None:
        """Begin a bar of `total` steps."""
        self.bar.reset(self._task, description=_PHASES.get(name, name), total=total)

    def advance(self) -> None:
        """One more step."""
        self.bar.advance(self._task)

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._console.print(f"note: {text}", markup=False, soft_wrap=True)

    def picture(self, folder: Path, request: PreviewRequest, cell: Cell) -> None:
        """A picture is there."""
        row, prompt = request.rows[cell.row], request.prompts[cell.column]
        path = request.copies[cell.column] if request.copies else folder / cell.file
        self._console.print(f"{path}  {row.name}, seed {prompt.seed}: {prompt.prompt}", markup=False, soft_wrap=True)


@contextmanager
def showing(console: Console) -> Iterator[TerminalWatch]:
    """A bar on `console` until the block ends."""
    watch = TerminalWatch(console)
    with watch.bar:
        yield watch
