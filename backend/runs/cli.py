"""Shows and stops runs from a terminal: ``status``, ``stop`` and ``logs``.

``launcher.py status | stop | logs`` calls ``python -m backend.runs`` with the same words.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backend.base.errors import WriteFailed
from backend.base.paths import resolve
from backend.base.problems import sentences
from backend.runs.errors import RunError
from backend.runs.eta import spoken
from backend.runs.folder import find, list_runs
from backend.runs.logs import read_log, tail_log
from backend.runs.status import RunStatus
from backend.runs.status_reader import StatusReader, statuses
from backend.runs.supervise import stop

_STYLES = {"running": "cyan", "starting": "cyan", "stopping": "yellow", "done": "green", "failed": "red", "dead": "red"}


def main(arguments: list[str], console: Console | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after ``python -m backend.runs``.
        console: where to write; the terminal when None.

    Returns:
        The exit status: 0, 1 when the run failed or can't be stopped, 2 for a run that is not there.
    """
    console = console or Console()
    options = _parser().parse_args(arguments)
    try:
        return options.command(options, console)
    except (RunError, WriteFailed) as error:
        console.print(escape(str(error)), style="red", highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130


def show_status(root: Path, name: str | None, console: Console, as_json: bool = False) -> int:
    """Write how one run stands, or all runs in ``root`` when ``name`` is None; 1 when that one run failed."""
    if name is None:
        listed = statuses(list_runs(root))
        if as_json:
            _write_json([status.to_dict() for status in listed], console)
        elif listed:
            console.print(_table(listed))
        else:
            console.print(escape(f"There are no runs in {root} yet."), highlight=False)
        return 0
    status = find(root, name, paths=True).status()
    if as_json:
        _write_json(status.to_dict(), console)
    else:
        for line in _lines(status):
            console.print(escape(line), highlight=False)
    return 1 if status.state in ("failed", "dead") else 0


def stop_run(root: Path, name: str, console: Console, grace_s: float) -> int:
    """Stop a run and wait until nothing of it is left; 1 when something could not be ended."""
    run = find(root, name, paths=True)
    result = stop(run, grace_s, say=lambda line: console.print(escape(line), highlight=False))
    console.print(escape(result.sentence()), highlight=False)
    if result.stopped and result.how != "not running":
        console.print(escape(run.status().text), highlight=False)
    return 0 if result.stopped else 1


def show_logs(root: Path, name: str, console: Console, lines: int, follow: bool) -> int:
    """Write the end of a run's log; with ``follow`` continue until the run ends (or Ctrl+C)."""
    run = find(root, name, paths=True)
    text, offset = tail_log(run.log_path, lines), _size(run.log_path)
    _write(text, console)
    reader = StatusReader(run)
    while follow:
        # The state is read first: what the trainer wrote before it ended is read after that.
        active = reader.read().active
        text, offset = read_log(run.log_path, offset)
        _write(text, console)
        if not active:
            break
        time.sleep(0.5)
    return 0


def _parser() -> argparse.ArgumentParser:
    # Usage lines show what a person typed, which is the launcher.
    parser = argparse.ArgumentParser(prog="launcher.py", description="See and stop training runs.")
    commands = parser.add_subparsers(required=True, metavar="command")

    def add(name: str, text: str, run: str | None = None) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        meaning = "a run's name, the beginning of it, 'latest', or the path of its folder"
        command.add_argument("run", nargs=run, metavar="RUN", help=meaning)
        command.add_argument("--root", default="runs", help="the folder of run folders (default: runs)")
        return command

    status = add("status", "Show the status of a run, or of all runs.", "?")
    status.add_argument("--json", action="store_true", help="write JSON, for programs")
    status.set_defaults(command=lambda o, c: show_status(resolve(o.root), o.run, c, o.json))

    halt = add("stop", "Stop a run: it saves its state first.")
    halt.add_argument(
        "--grace", type=float, default=120.0, help="seconds to wait before the run is ended by force (default: 120)"
    )
    halt.add_argument("--now", action="store_true", help="don't wait for it to save")
    halt.set_defaults(command=lambda o, c: stop_run(resolve(o.root), o.run, c, 0.0 if o.now else o.grace))

    logs = add("logs", "Show the end of a run's log.")
    logs.add_argument("-n", "--lines", type=int, default=50, help="how many lines (default: 50)")
    logs.add_argument("-f", "--follow", action="store_true", help="keep showing new lines until the run ends")
    logs.set_defaults(command=lambda o, c: show_logs(resolve(o.root), o.run, c, o.lines, o.follow))

    return parser


def _table(listed: list[RunStatus]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("Run", "State", "Step", "Time left", "Details"):
        table.add_column(title, no_wrap=title == "Run")
    for status in listed:
        total = f" / {status.total_steps}" if status.total_steps else ""
        left = spoken(status.eta_s) if status.eta_s is not None else ""
        style = _STYLES.get(status.state, "")
        table.add_row(
            escape(status.name),
            f"[{style}]{status.state}[/]" if style else status.state,
            f"{status.step}{total}",
            left,
            escape(status.text),
        )
    return table


def _lines(status: RunStatus) -> list[str]:
    lines = [f"{status.name}: {status.state}", status.text, *_failure(status)]
    lines += [f"Warning: {sentences(warning['text'], warning['remedy'])}" for warning in status.warnings]
    if status.s_per_step is not None:
        lines.append(f"{status.s_per_step:.3f} s a step")
    if status.result.get("lora"):
        lines.append(f"LoRA: {status.result['lora']}")
    lines.append(f"Folder: {status.path}")
    return lines


def _failure(status: RunStatus) -> list[str]:
    """Cause, remedy and Python's own words of a run that failed, a line each; nothing for others."""
    error = status.error
    if error is None:
        return []
    pairs = (("Likely cause", error.cause), ("What to change", error.remedy), ("Python said", error.exception or ""))
    return [f"{title}: {text}" for title, text in pairs if text]


def _write_json(value: object, console: Console) -> None:
    # Not through the console's own layout, which wraps at the width of the terminal.
    console.file.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def _write(text: str, console: Console) -> None:
    if text:
        console.file.write(text if text.endswith("\n") else text + "\n")
        console.file.flush()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
