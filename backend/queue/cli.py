"""Works on the queue from a terminal: ``launcher.py queue [add | start | pause | skip | retry | now | ...]``.

It is the queue that the page shows: what is added here is seen there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from backend.base.errors import WriteFailed
from backend.base.paths import PROJECT_ROOT, resolve
from backend.config import load
from backend.plan.finish.earlier_runs import expected_seconds
from backend.plan.start_check import start_problems
from backend.queue import changes, process, view
from backend.queue.folder import QueueFolder
from backend.runs import supervise
from backend.runs.errors import RunError, RunNotFound
from backend.runs.eta import spoken
from backend.runs.folder import Run, list_runs

_STYLES = {"running": "cyan", "starting": "cyan", "stopping": "yellow", "done": "green", "failed": "red", "dead": "red"}
_WORDS = {"done": "finished", "dead": "ended unexpectedly", "missing": "deleted"}


def main(arguments: list[str], console: Console | None = None) -> int:
    """Run one command; returns 0, 1 when an entry can't be added, 2 for an entry that is not there."""
    console = console or Console(highlight=False)
    options = _parser().parse_args(arguments)
    place = PROJECT_ROOT / "runs" / ".page" if options.data is None else resolve(options.data) / "page"
    folder = QueueFolder.of_page(place)
    try:
        return options.command(options, folder, console)
    except (RunError, WriteFailed) as error:
        console.print(escape(str(error)), style="red")
        return 2


def _show(options: argparse.Namespace, folder: QueueFolder, console: Console) -> int:
    listed = view.rows(folder, _runs(folder))
    queue = folder.read()
    if options.json:
        rows = [row.to_dict() for row in listed]
        content = {
            "on": queue.on,
            "paused_by": queue.paused_by,
            "continue_ended": queue.continue_ended,
            "entries": rows,
        }
        console.file.write(json.dumps(content, ensure_ascii=False, indent=2) + "\n")
        return 0
    if not listed:
        console.print("The queue is empty. Add a run: launcher.py queue add CONFIG.toml")
        return 0
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("Entry", "Name", "State", "GPU", "Begins", "Ends", "Details"):
        table.add_column(title, no_wrap=title == "Entry")
    for row in listed:
        style, word = _STYLES.get(row.state, ""), _WORDS.get(row.state, row.state)
        times = [_clock(row.begins if row.state == "waiting" else None), _clock(row.ends)]
        shown = f"[{style}]{word}[/]" if style else word
        table.add_row(row.entry.id, escape(row.entry.name), shown, row.entry.gpu or "any", *times, escape(row.text))
    console.print(table)
    if queue.paused_by:
        console.print(escape(f"The queue has paused itself. {queue.paused_by}"), style="red", soft_wrap=True)
    console.print("The queue is on." if queue.on else "The queue is paused. Start it: launcher.py queue start")
    return 0


def _add(options: argparse.Namespace, folder: QueueFolder, console: Console) -> int:
    changes.check_gpu(options.gpu)
    for path in options.config:
        loaded = load.load(path)
        problems = [*loaded.problems, *(start_problems(loaded.config) if loaded.config is not None else [])]
        errors = [problem for problem in problems if problem.severity == "error"]
        if loaded.config is None or errors:
            for problem in errors:
                console.print(escape(f"{path}: {problem.sentence()}"), style="red")
            return 1
        entry = folder.add(loaded.config, options.gpu)
        console.print(escape(f"Added {entry.name} as {entry.id}."))
    _see_to(folder)
    return 0


def _start(options: argparse.Namespace, folder: QueueFolder, console: Console) -> int:
    if options.continue_ended is not None:
        changes.set_continue_ended(folder, options.continue_ended)
    changes.set_on(folder, True)
    _see_to(folder)
    waiting = folder.read().waiting()
    expected = [expected_seconds(config, _runs(folder)) for entry in waiting if (config := _config(folder, entry.id))]
    known = [seconds for seconds, _ in filter(None, expected)]
    console.print(f"The queue is on. Runs that wait: {len(waiting)}.")
    if known and len(known) == len(waiting):
        console.print(f"By earlier runs or probes of the same settings they take {spoken(sum(known))} together.")
    return 0


def _config(folder: QueueFolder, identity: str) -> object:
    return folder.config(identity).config


def _notify(options: argparse.Namespace, folder: QueueFolder, console: Console) -> int:
    folder.set_command(options.words)
    if not options.words:
        console.print("No command is run any more.")
        return 0
    console.print(escape(f"Run at the end of each entry: {' '.join(options.words)}"))
    console.print("It gets MONOTILE_RUN, MONOTILE_STATE, MONOTILE_TEXT, MONOTILE_FOLDER and MONOTILE_WAITING.")
    return 0


def _on_entry(change: Callable[[QueueFolder, str], object]) -> Callable[..., int]:
    def command(options: argparse.Namespace, folder: QueueFolder, console: Console) -> int:
        change(folder, _identity(folder, options.entry))
        _see_to(folder)
        return _show(argparse.Namespace(json=False), folder, console)

    return command


def _identity(folder: QueueFolder, text: str) -> str:
    """The id of the entry that a person means: its id, the end of it, or its name where only one has it."""
    entries = folder.read().entries
    # a short name may be the end of another entry's id, and then either may be meant
    ids = [entry.id for entry in entries if entry.id.endswith(text) or entry.name == text]
    if len(ids) == 1:
        return ids[0]
    problem = "Several entries are" if ids else "No entry of the queue is"
    raise RunNotFound(f"{problem} {text!r}.", "Give an id that launcher.py queue lists, or the end of it.")


def _see_to(folder: QueueFolder) -> None:
    """Start the queue's process. It knows the folders that the page trains in; here is the default one."""
    process.see_to(folder, [PROJECT_ROOT / "runs"], folder.path.parent / "preview")


def _runs(folder: QueueFolder) -> list[Run]:
    return [run for root in dict.fromkeys([*folder.roots(), PROJECT_ROOT / "runs"]) for run in list_runs(root)]


def _clock(moment: float | None) -> str:
    if moment is None:
        return ""
    same_day = time.strftime("%x") == time.strftime("%x", time.localtime(moment))
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", time.localtime(moment))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="launcher.py queue",
        description="Train several runs one after the other. Without a command: show the list.",
    )
    parser.add_argument("--data", help="the page's folder, where it was started with --data")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    parser.set_defaults(command=_show)
    commands = parser.add_subparsers(metavar="command")

    add = commands.add_parser("add", help="add runs to the end of the queue")
    add.add_argument("config", nargs="+", metavar="CONFIG.toml")
    add.add_argument("--gpu", help="number of the GPU that they train on (default: any)")
    add.set_defaults(command=_add)

    start = commands.add_parser("start", help="start the queue")
    choice = argparse.BooleanOptionalAction
    meaning = "continue runs that end without a word, such as after a power cut, from their saved state"
    start.add_argument("--continue-ended", action=choice, default=None, help=meaning)
    start.set_defaults(command=_start)
    pause = commands.add_parser("pause", help="start no further run; one at work continues")
    pause.set_defaults(command=lambda o, f, c: changes.set_on(f, False) or _show(o, f, c))

    for name, change, meaning in (
        ("now", changes.run_now, "make an entry the next one, and start the queue"),
        ("up", lambda f, entry: changes.move(f, entry, -1), "move an entry up"),
        ("down", lambda f, entry: changes.move(f, entry, 1), "move an entry down"),
        (
            "skip",
            lambda f, entry: changes.skip(f, entry, supervise.stop),
            "leave an entry out; one at work is stopped and saves first",
        ),
        ("retry", changes.retry, "let an entry wait again; it continues from its saved state"),
        ("remove", changes.remove, "take an entry off the list; its run folder stays"),
    ):
        command = commands.add_parser(name, help=meaning, description=meaning)
        command.add_argument("entry", metavar="ENTRY", help="its id, the end of its id, or its name")
        command.set_defaults(command=_on_entry(change))
    clear = commands.add_parser("clear", help="take all entries off the list that have ended")
    clear.set_defaults(command=lambda o, f, c: changes.remove_ended(f) or _show(o, f, c))
    notify = commands.add_parser("notify", help="a command of your own at the end of each entry; none to stop that")
    notify.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    notify.set_defaults(command=_notify)
    return parser
