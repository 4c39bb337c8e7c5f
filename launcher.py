#!/usr/bin/env python3
# -*- coding: utf-8 -*-
"""Starts Monotile: sets up its Python environment when needed, then runs the command asked for.

    python3 launcher.py [COMMAND] [options]

Only the standard library is used here. This one file keeps to syntax that Python 2.7 reads too, so that an old Python
gets a sentence and not a SyntaxError; whatever it imports from backend/setup is imported after that check.
"""

from __future__ import print_function

import contextlib
import os
import signal
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
OLDEST, NEWEST = (3, 11), (3, 14)

# command, in the order of the overview: (module, what it does, usage, message at the start; None where a program may
# read the output)
COMMANDS = {
    "gui": (
        "gui",
        "open the page in the browser (the default command)",
        "[--host ADDRESS] [--port NUMBER] [--no-browser] [--password WORD]",
        "starting the page",
    ),
    "train": (
        "backend.train",
        "train from a TOML file, in this terminal: a LoRA, or a whole model",
        "CONFIG.toml [--SETTING VALUE ...] | --resume RUN",
        "training",
    ),
    "resume": (
        "backend.training.resume",
        "continue a run exactly where it was saved; with --steps, a finished one for longer",
        "RUN [--steps N] [--schedule stretch|constant]",
        "resuming",
    ),
    "sample": (
        "backend.preview",
        "draw pictures with a base model and LoRA files, or with a checkpoint of a run",
        "--run RUN | --base PATH [--lora FILE[:STRENGTH]] [--prompt TEXT] ...",
        "drawing",
    ),
    "lora": (
        "backend.lora_tools",
        "extract, merge, resize, inspect and check LoRA files",
        "extract | merge | resize | inspect | check ...",
        None,
    ),
    "caption": (
        "backend.captioning",
        "caption images with a model on this disk; shows what would change, and undoes it",
        "FOLDER --model DIR [--write] [--overwrite] [--json]",
        None,
    ),
    "publish": (
        "backend.publish",
        "make a folder to publish from a run: LoRA, model card, samples; nothing is uploaded",
        "RUN [--out DIR] [--checkpoint STEP] [--license TEXT] [--base-model NAME] [--trigger WORDS]",
        None,
    ),
    "report": (
        "backend.publish.run_report",
        "write one HTML file about a run: curves, samples, settings, files; without personal paths",
        "RUN [--out FILE]",
        None,
    ),
    "plan": (
        "backend.plan",
        "show what a config needs: steps, epochs, buckets, graphs; trains nothing",
        "CONFIG.toml [--json]",
        None,
    ),
    "finish": (
        "backend.plan.finish",
        "tell when a run will end: trains its settings for about 20 seconds first",
        "CONFIG.toml [--known] [--price-per-hour PRICE] [--price-per-kwh PRICE --watts W]",
        "measuring",
    ),
    "tune": (
        "backend.plan.tune",
        "find the settings with which a run ends soonest, by short trainings",
        "CONFIG.toml [--write FILE.toml] [--allow precision] [--probes N] [--by-class] [--again] [--json]",
        "tuning",
    ),
    "import": (
        "backend.importers",
        "import settings of another trainer: from its file, its command or a LoRA that it made",
        "FILE [--dataset FILE] [--family NAME] [-o OUT.toml]",
        None,
    ),
    "doctor": ("backend.doctor", "check what this machine can and can't do, and how to fix it", "[--json]", None),
    "demo": ("backend.demo", "train the demo LoRA and show what it changed", "", "running the demo"),
    "test": (
        None,
        "run the tests (ruff and pytest; installs their packages)",
        "[PYTEST OPTIONS ...]",
        "running the tests",
    ),
    "bench": ("backend.bench", "measure compile variants with random weights", "[--size SIZE] ...", "measuring"),
    "status": ("backend.runs", "list runs, or show one", "[RUN]", None),
    "stop": ("backend.runs", "stop a run; it saves first", "RUN", None),
    "logs": ("backend.runs", "show a run's log", "RUN [--follow]", None),
    "queue": (
        "backend.queue",
        "train several runs one after the other: add, start, pause, skip, retry ...",
        "[ACTION] [CONFIG.toml ...]",
        None,
    ),
    "cache": (
        "backend.doctor.cache",
        "show the size of the compile cache; clear, export or import it",
        "[ACTION]",
        None,
    ),
}

OPTIONS = """Set-up options, before or after the command:
  --torch-index URL   install PyTorch from this index: the address that PyTorch's install page shows for
                      your GPU (or for CPU). Needed for NVIDIA GPUs on Windows, and for AMD GPUs
  --wheels DIR        install offline, from a folder of wheel files
  --reinstall         make .venv again, or install again into an activated environment; NVIDIA extras too
  -h, --help          show this text; after a command, show the help of that command
"""


class Mistake(Exception):
    """Raised when a command line can't be run; the text says why and what to type instead."""


def say(text):
    # Everything the launcher says goes to stderr, so that `plan --json > file` holds JSON and nothing else.
    print(text, file=sys.stderr)
    sys.stderr.flush()


def version_text(version):
    return "%d.%d" % (version[0], version[1])


def fitting_python():
    """A command that starts a usable Python, or None. Each is started to check, since a name may lead nowhere."""
    import subprocess

    check = "import sys; sys.exit(not (%r <= sys.version_info[:2] <= %r and sys.maxsize > 2**32))" % (OLDEST, NEWEST)
    with open(os.devnull, "w") as nowhere:
        for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
            line = ["py", "-3.%d" % minor] if os.name == "nt" else ["python3.%d" % minor]
            try:
                if subprocess.call(line + ["-c", check], stdout=nowhere, stderr=nowhere) == 0:
                    return " ".join(line)
            except OSError:
                continue
    return None


def python_complaint(version, bits64):
    """The message for a person whose Python can't be used, or None.

    version: (major, minor, ...); bits64: whether it is a 64-bit build, the only kind that PyTorch is built for.
    """
    span = "%s to %s" % (version_text(OLDEST), version_text(NEWEST))
    here = "This is Python %s (%s)." % (".".join(str(part) for part in version[:3]), sys.executable)
    if not OLDEST <= tuple(version[:2]) <= NEWEST:
        complaint = "Monotile needs Python %s. %s" % (span, here)
    elif not bits64:
        complaint = "Monotile needs a 64-bit Python %s, since PyTorch has no 32-bit build. This one is 32-bit (%s)." % (
            span,
            sys.executable,
        )
    else:
        return None
    other = fitting_python()
    if other:
        return complaint + "\nThis Python works: %s launcher.py" % other
    source = "python.org" if os.name == "nt" else "your system's package manager, or python.org"
    return complaint + "\nInstall one from %s, then start Monotile with it." % source


def overview():
    lines = [
        "Monotile trains LoRAs of diffusion transformers, with a torch.compile that works.",
        "",
        "  python3 launcher.py [COMMAND] [options]",
        "",
    ]
    lines += ["  %-8s %s" % (name, COMMANDS[name][1]) for name in COMMANDS]
    return "\n".join(lines + ["", OPTIONS])


def command_help(name):
    _, summary, usage, _ = COMMANDS[name]
    start = "python3 launcher.py %s %s" % (name, usage)
    return "%s\n\n%s.\n\n%s" % (start.strip(), summary[0].upper() + summary[1:], OPTIONS)


def split_arguments(arguments):
    """(command, what the command gets, set-up options). Raises Mistake."""
    import difflib

    setup_options, rest = {"torch_index": None, "wheels": None, "reinstall": False}, []
    words = list(arguments)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--torch-index", "--wheels"):
            if not equals:
                if not words or words[0].startswith("--"):
                    what = "a web address" if name == "--torch-index" else "a folder"
                    raise Mistake("%s needs %s after it." % (name, what))
                value = words.pop(0)
            setup_options[name[2:].replace("-", "_")] = value
        elif word == "--reinstall":
            setup_options["reinstall"] = True
        else:
            rest.append(word)
    if not rest or rest[0].startswith("-"):
        return None, rest, setup_options
    command = rest.pop(0)
    if command not in COMMANDS:
        if command.lower().endswith(".toml"):
            raise Mistake("To train with a config, write: python3 launcher.py train %s" % command)
        near = difflib.get_close_matches(command, list(COMMANDS), 1)
        hint = "Did you mean '%s'?" % near[0] if near else "Commands: %s." % ", ".join(COMMANDS)
        raise Mistake("There is no command '%s'. %s" % (command, hint))
    return command, rest, setup_options


def command_line(python, command, arguments):
    """The process that does the work. -P keeps the folder a person stands in from shadowing our modules."""
    verb = [command] if command in ("status", "stop", "logs") else []
    return [str(python), "-P", "-m", COMMANDS[command][0]] + verb + arguments


def child_environment():
    environment = dict(os.environ)
    before = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = ROOT + (os.pathsep + before if before else "")
    return environment


def wait(line, environment, folder=None):
    """Run a child to its end and return its exit code. Ctrl-C reaches the child too, which answers it."""
    import subprocess

    child = subprocess.Popen(line, env=environment, cwd=folder)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def hand_over(line):
    """Become the command. On Windows, where a process can't be replaced, wait for it instead."""
    if os.name == "nt":
        return wait(line, child_environment())
    sys.stdout.flush()
    os.execve(line[0], line, child_environment())


def run_tests(python, arguments):
    """ruff, then pytest, whose closing line is the last thing seen when all is well."""
    environment = child_environment()
    environment.setdefault("OMP_NUM_THREADS", "1")  # three workers on two cores: more threads only slow each other down
    lint = [("ruff check", ["ruff", "check", "."]), ("ruff format", ["ruff", "format", "--check", "."])]
    python = [str(python), "-P", "-m"]
    failed = [name for name, line in lint if wait(python + line, environment, ROOT)]
    workers = [] if "-n" in arguments else ["-n", "3", "--dist", "worksteal", "--durations=25"]
    code = wait(python + ["pytest"] + workers + arguments, environment, ROOT)
    if failed:
        say("%s found problems; see above the tests." % " and ".join(failed))
    return code or int(bool(failed))


@contextlib.contextmanager
def stopping_by_signal():
    """While setting up, a closed terminal and `kill` end pip cleanly, as Ctrl-C does."""
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {each: signal.signal(each, signal.default_int_handler) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def start(arguments):
    from backend.setup import prepare, report

    command, rest, setup_options = split_arguments(arguments)
    helping = "-h" in rest or "--help" in rest
    if helping and command is None:
        print(overview())
        return 0
    command = command or "gui"
    project = prepare.Project(ROOT, OLDEST, NEWEST)
    if helping and command != "test":
        python = prepare.ready_python(project)
        if python is not None:
            # its commands have a help each
            return hand_over(command_line(python, command, rest if command == "lora" else ["--help"]))
    if helping:
        print(command_help(command))
        return 0
    if COMMANDS[command][3]:
        say("Monotile: %s." % COMMANDS[command][3])
    with stopping_by_signal():
        wishes = prepare.Wishes(tests=command == "test", **setup_options)
        python = prepare.prepare(project, wishes, report.Report(sys.stderr))
    if command == "test":
        return run_tests(python, rest)
    return hand_over(command_line(python, command, rest))


def main(arguments):
    complaint = python_complaint(tuple(sys.version_info), sys.maxsize > 2**32)
    if complaint:
        say(complaint)
        return 1
    from backend.setup.errors import SetupError

    try:
        return start(arguments)
    except Mistake as mistake:
        say(str(mistake))
        return 2
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("\nStopped. The next start continues from here.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
