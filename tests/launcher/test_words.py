"""What the launcher says: old Pythons, help, mistakes, remedies for each system, reasons for pip's failures."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backend.setup import pip, requirements, system
from tests.tiny.clone import ROOT, Clone, base_python

COMMANDS = ["gui", "train", "resume", "sample", "lora", "caption", "publish", "report", "plan", "finish", "tune"]
COMMANDS += ["import", "doctor", "demo", "test", "bench", "status", "stop", "logs", "queue", "cache"]


def pythons() -> list[Path]:
    """Interpreters of other versions on this machine: those on PATH and pyenv's."""
    named = [
        shutil.which(name) for name in ("python2.7", "python3.6", "python3.7", "python3.8", "python3.9", "python3.10")
    ]
    # pyenv's own names for them may lead nowhere, so they are started once.
    named = [each for each in named if each and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    return [Path(each) for each in named] + sorted(pyenv.glob("*/bin/python"))


@pytest.mark.parametrize("python", pythons(), ids=str)
def test_an_old_python_is_told_in_words_which_one_is_needed(python: Path, fresh: Clone) -> None:
    version = subprocess.run([python, "-c", "import sys; print('%d %d' % sys.version_info[:2])"], capture_output=True)
    done = subprocess.run([python, fresh.root / "launcher.py", "--help"], capture_output=True, env=fresh.environment())
    message = done.stderr.decode()
    if tuple(int(part) for part in version.stdout.split()) >= (3, 11):
        assert done.returncode == 0 and b"python3 launcher.py" in done.stdout
    else:
        assert done.returncode == 1
        assert message.startswith("Monotile needs Python 3.11 to 3.14. This is Python "), message
        assert "Traceback" not in message


def test_the_launcher_keeps_to_syntax_that_python_2_reads() -> None:
    tree = ast.parse((ROOT / "launcher.py").read_text(encoding="utf-8"))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.YieldFrom, ast.Match)
    for node in ast.walk(tree):
        assert not isinstance(node, newer), f"line {node.lineno}: {type(node).__name__}"
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None and not node.args.kwonlyargs and not node.args.posonlyargs, node.name
            assert all(each.annotation is None for each in node.args.args), node.name
        if isinstance(node, ast.Raise):
            assert node.cause is None, f"line {node.lineno}: raise from"


@pytest.mark.parametrize(
    ("version", "bits64", "words"),
    [
        ((2, 7, 18), True, "needs Python 3.11 to 3.14. This is Python 2.7.18"),
        ((3, 10, 9), True, "This is Python 3.10.9"),
        ((3, 15, 0), True, "This is Python 3.15.0"),
        ((3, 12, 0), False, "64-bit"),
    ],
)
def test_a_python_outside_the_range_is_refused(version: tuple[int, ...], bits64: bool, words: str) -> None:
    import launcher

    assert words in launcher.python_complaint(version, bits64)


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 14, 2)])
def test_a_python_inside_the_range_is_taken(version: tuple[int, ...]) -> None:
    import launcher

    assert launcher.python_complaint(version, True) is None


def run(*arguments: str, clone: Clone) -> subprocess.CompletedProcess[str]:
    return clone.start(*arguments)


def test_help_lists_every_command_and_installs_nothing(fresh: Clone) -> None:
    done = run("--help", clone=fresh)
    assert done.returncode == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\S", done.stdout, re.MULTILINE), command
    for option in ("--torch-index", "--wheels", "--reinstall"):
        assert option in done.stdout
    assert not fresh.venv.exists()


def test_each_command_has_its_help_before_anything_is_installed(fresh: Clone) -> None:
    import launcher

    for command in COMMANDS:
        assert launcher.command_help(command).startswith(f"python3 launcher.py {command}")
    # the three ways that the launcher treats a command
    for command in ("train", "lora", "test"):
        done = run(command, "--help", clone=fresh)
        assert done.returncode == 0, command
        assert done.stdout.startswith(f"python3 launcher.py {command}")
        assert not fresh.venv.exists(), command


@pytest.mark.parametrize("command", ["gui", "lora", "test"])
def test_the_launcher_asks_the_command_for_its_help_in_this_environment(command: str) -> None:
    # The real tree. Where the launcher made this environment, as in CI, the answer is the module's own.
    line = [sys.executable, str(ROOT / "launcher.py"), command, "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert command in done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_its_help(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the launcher starts, in this process: most of the time of one of its own would go into imports."""
    import launcher

    if launcher.COMMANDS[command][0] is None:
        return  # of the launcher itself, above
    module, *arguments = launcher.command_line("python", command, ["--help"])[3:]
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    main = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
    # else Python warns of a module that another test has imported
    monkeypatch.delitem(sys.modules, main, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert not ended.value.code
    assert command in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], "There is no command 'trian'. Did you mean 'train'?"),
        (["zzz"], "Commands: gui, train, resume"),
        (["my.toml"], "python3 launcher.py train my.toml"),
        (["--torch-index"], "--torch-index needs a web address after it."),
        (["gui", "--wheels", "--no-browser"], "--wheels needs a folder after it."),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(fresh: Clone, arguments: list[str], words: str) -> None:
    done = run(*arguments, clone=fresh)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not fresh.venv.exists()


def test_set_up_options_may_stand_anywhere_and_the_rest_reaches_the_command() -> None:
    import launcher

    command, rest, options = launcher.split_arguments(
        ["--wheels=here", "train", "a.toml", "--network_dim", "32", "--torch-index", "address", "--reinstall"]
    )
    assert (command, rest) == ("train", ["a.toml", "--network_dim", "32"])
    assert options == {"wheels": "here", "torch_index": "address", "reinstall": True}
    assert launcher.split_arguments(["--host", "0.0.0.0"])[:2] == (None, ["--host", "0.0.0.0"])


def test_every_command_leads_to_its_module() -> None:
    import launcher

    assert list(launcher.COMMANDS) == COMMANDS
    assert launcher.command_line("python", "train", ["a.toml"]) == ["python", "-P", "-m", "backend.train", "a.toml"]
    assert launcher.command_line("python", "stop", ["run"]) == ["python", "-P", "-m", "backend.runs", "stop", "run"]


@pytest.mark.parametrize(
    ("release", "needs", "command"),
    [
        ({"ID": "debian"}, ["venv"], "apt install python3.12-venv"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, ["compiler", "headers"], "apt install g++ python3.12-dev"),
        ({"ID": "fedora"}, ["compiler", "headers"], "dnf install gcc-c++ python3-devel"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, ["compiler"], "dnf install gcc-c++"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, ["headers"], "zypper install python312-devel"),
        ({"ID": "arch"}, ["compiler"], "pacman -S --needed gcc"),
        ({"ID": "unheard-of"}, ["compiler", "headers"], "Install a C++ compiler and Python's development headers with"),
        ({}, ["venv"], "Install Python's venv module with your system's package manager."),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Linux distributions")
def test_each_distribution_gets_its_own_command(release: dict[str, str], needs: list[str], command: str) -> None:
    assert command in system.remedy(needs, release, (3, 12))


def test_the_systems_own_description_is_read(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text('NAME="Linux Mint"\nID=linuxmint\nID_LIKE="ubuntu debian"\n\n# nothing\n')
    assert system.family(system.os_release(tmp_path / "os-release")) == "debian"
    assert system.os_release(tmp_path / "absent") == {}


@pytest.mark.parametrize(
    ("tail", "offline", "words"),
    [
        (
            ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"],
            False,
            "disk is full",
        ),
        (
            [
                "WARNING: Retrying ... NewConnectionError(': Failed to establish a new connection: [Errno 101]",
                "ERROR: No matching distribution found for torch==2.13.0",
            ],
            False,
            "could not be reached",
        ),
        (
            ["ERROR: No matching distribution found for torch==2.13.0"],
            False,
            "The index has no torch==2.13.0 that fits Python",
        ),
        (
            ["ERROR: No matching distribution found for gradio==6.31.0"],
            True,
            "given with --wheels has no gradio==6.31.0",
        ),
        (["ERROR: ResolutionImpossible: for help visit"], False, "do not fit together"),
        (["SSLCertVerificationError: CERTIFICATE_VERIFY_FAILED"], False, "certificate"),
        (["fatal error: Python.h: No such file or directory"], False, "headers are missing"),
        (["ERROR: something new"], False, "something new"),
        ([], False, "gave no reason"),
    ],
)
def test_pips_failures_are_put_into_words(tail: list[str], offline: bool, words: str) -> None:
    assert words in pip.reason(tail, offline)


def test_progress_of_a_download_is_read_from_pip() -> None:
    follower = pip._Follower()
    follower.read("Collecting torch==2.13.0")
    assert follower.doing == "checking torch==2.13.0"
    milestone = follower.read("  Downloading torch-2.13.0-cp312-cp312-manylinux_2_28_x86_64.whl (526.6 MB)")
    assert milestone == "downloading torch-2.13.0, 526.6 MB"
    follower.read("Progress 263300000 of 526600000")
    assert follower.doing == "torch-2.13.0: 263 of 527 MB"
    assert follower.read("  Downloading toml-0.10.2-py2.py3-none-any.whl (16 kB)") is None
    assert follower.read("Installing collected packages: a, b, c") == "unpacking 3 packages"


@pytest.mark.parametrize(
    ("version", "floor", "older"),
    [
        ("2.11.0+cu130", (2, 11), False),
        ("2.9.1", (2, 11), True),
        ("2.11.0a0+git", (2, 11), False),
        ("dev", (2, 11), True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, floor: tuple[int, ...], older: bool) -> None:
    assert requirements.older_than(version, floor) is older


def test_requirement_lines_are_read_with_their_markers(tmp_path: Path) -> None:
    path = tmp_path / "r.txt"
    path.write_text('# head\n\ntorch==2.13.0   # why\ntriton-windows>=3.7,<3.8; sys_platform == "win32"  # why\n')
    first, second = requirements.read(path)
    assert (first.name, first.version, first.text) == ("torch", "2.13.0", "torch==2.13.0")
    assert (second.name, second.version) == ("triton-windows", None)
    assert second.text == 'triton-windows>=3.7,<3.8; sys_platform == "win32"'
    assert requirements.fits("2.13.0+cpu", first) and not requirements.fits("2.12.0", first)


def test_the_windows_starter_finds_a_fitting_python_and_passes_everything_on() -> None:
    text = (ROOT / "monotile.bat").read_text(encoding="ascii")
    assert "launcher.py" in text and "%*" in text and "pause" in text
    tried = re.search(r"in \(([^)]*)\)", text)
    assert tried and sorted(tried[1].split()) == ["3.11", "3.12", "3.13", "3.14"]
    assert "*.bat text eol=crlf" in (ROOT / ".gitattributes").read_text()


def test_base_python_exists() -> None:
    assert Path(base_python()).exists()
