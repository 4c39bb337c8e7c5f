"""The set-up in real subprocesses: first start, later starts, changes, damage and stops."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from backend.setup.environment import Environment, interpreter, pip_runs, probe, remove
from tests.tiny.clone import Clone, base_python, lose_pip_and_pins, make_source, make_wheel

posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals, links and file modes")


def test_first_start_makes_the_environment_says_so_and_starts_the_page(ready_clone: Path) -> None:
    first, lines = Clone(ready_clone), (ready_clone.parent / "said").read_text().splitlines()
    assert lines[0] == "Monotile: starting the page."
    assert "First start" in lines[1] and "Ctrl-C" in lines[1]
    assert any(line.startswith("Set-up done") for line in lines)
    page = json.loads((ready_clone.parent / "page.json").read_text())
    assert Path(page["prefix"]) == first.venv
    assert page["arguments"] == ["--port", "7999", "--no-browser"]
    assert first.installed()["monotile-tiny"] == "1.0"
    # by compileall, and so of the package that pip was told not to compile
    assert list(first.venv.glob("lib/python*/site-packages/monotile_tiny/__pycache__/__init__.*.pyc"))
    assert "$ compileall" in (first.venv / "monotile-setup.log").read_text()


def test_later_starts_install_nothing_and_say_nothing_of_it(ready: Clone) -> None:
    log = (ready.venv / "monotile-setup.log").stat().st_mtime_ns
    done = ready.start()
    assert (done.returncode, done.stderr) == (0, "Monotile: starting the page.\n")
    assert (ready.venv / "monotile-setup.log").stat().st_mtime_ns == log


def test_the_commands_own_exit_code_comes_back(ready: Clone) -> None:
    assert ready.start("gui", "--fail").returncode == 7


def test_a_folder_named_like_a_module_where_the_person_stands_does_not_shadow_it(ready: Clone, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "gui").mkdir(parents=True)
    (elsewhere / "gui" / "__init__.py").touch()
    (elsewhere / "gui" / "__main__.py").write_text("raise SystemExit('the wrong gui')")
    page = json.loads(ready.start(cwd=elsewhere).stdout)
    assert Path(page["folder"]) == elsewhere  # so that `train my.toml` means the person's own file
    assert Path(page["file"]) == ready.root / "gui" / "__main__.py"


@posix
def test_a_changed_requirements_file_is_installed_and_a_missing_compiler_is_told_with_its_command(
    ready: Clone, tmp_path: Path
) -> None:
    make_wheel(ready.wheels, "monotile-tiny", "1.1")
    ready.require("monotile-tiny==1.1")
    (tmp_path / "nothing").mkdir()
    done = ready.offline(PATH=str(tmp_path / "nothing"))
    assert done.returncode == 0 and "has changed" in done.stderr
    assert ready.installed()["monotile-tiny"] == "1.1"
    assert "Not found: a C++ compiler. torch.compile needs it. Without, training works, but" in done.stderr


def lose_package(venv: Path) -> None:
    for folder in venv.glob("lib/python*/site-packages/monotile_tiny*"):
        shutil.rmtree(folder)


def replace_package(venv: Path) -> None:
    (info,) = venv.glob("lib/python*/site-packages/monotile_tiny-1.0.dist-info")
    for file in (info / "METADATA", info / "RECORD"):
        file.write_text(file.read_text().replace("1.0", "0.9"))
    info.rename(info.with_name("monotile_tiny-0.9.dist-info"))


@pytest.mark.parametrize("damage", [lose_package, replace_package])
def test_a_package_that_is_not_as_pinned_is_put_back(ready: Clone, damage) -> None:
    damage(ready.venv)
    assert ready.installed().get("monotile-tiny") != "1.0"
    assert ready.offline().returncode == 0
    assert ready.installed()["monotile-tiny"] == "1.0"


def break_interpreter(venv: Path) -> None:
    python = venv / "bin" / "python"
    python.unlink()
    python.write_text("#!/nowhere/python\n")
    python.chmod(0o755)


def leave_half(venv: Path) -> None:
    shutil.rmtree(venv)
    (venv / "bin").mkdir(parents=True)


def be_a_file(venv: Path) -> None:
    shutil.rmtree(venv)
    venv.write_text("not an environment")


@pytest.mark.parametrize("damage", [break_interpreter, leave_half, lose_pip_and_pins, be_a_file])
def test_a_broken_or_half_made_environment_is_seen(ready: Clone, damage) -> None:
    python = interpreter(ready.venv)
    assert probe(python, []) is not None and pip_runs(python)
    damage(ready.venv)
    python = interpreter(ready.venv)
    assert (probe(python, []) is not None) == (damage is lose_pip_and_pins) and not pip_runs(python)


def test_a_file_in_place_of_the_environment_goes(tmp_path: Path) -> None:
    place = Environment(tmp_path / ".venv", own=True)
    place.prefix.write_text("not an environment")
    remove(place)
    assert not place.prefix.exists()


def test_reinstall_makes_the_environment_anew(ready: Clone) -> None:
    (ready.venv / "left-over").touch()
    assert ready.offline("--reinstall").returncode == 0
    assert not (ready.venv / "left-over").exists()


def test_a_missing_wheel_is_named_and_the_next_start_goes_on(ready: Clone) -> None:
    ready.require("monotile-tiny==1.0", "monotile-more==2.0")
    done = ready.offline()
    assert done.returncode == 1
    assert "The folder given with --wheels has no monotile-more==2.0 that fits Python" in done.stderr
    assert "monotile-setup.log" in done.stderr and "Traceback" not in done.stderr
    made = (ready.venv / "pyvenv.cfg").stat().st_mtime_ns
    make_wheel(ready.wheels, "monotile-more", "2.0")
    assert ready.offline().returncode == 0
    assert (ready.venv / "pyvenv.cfg").stat().st_mtime_ns == made  # it was resumed, not begun again
    assert ready.installed()["monotile-more"] == "2.0"


@pytest.mark.parametrize("folder", ["absent", "empty"])
def test_a_useless_wheels_folder_is_told_before_anything_is_made(fresh: Clone, folder: str) -> None:
    (fresh.root / "empty").mkdir()
    done = fresh.start("--wheels", str(fresh.root / folder))
    assert done.returncode == 1
    assert ("no such folder" if folder == "absent" else "has no .whl file") in done.stderr
    assert not fresh.venv.exists()


def test_two_launchers_do_not_install_at_once(ready: Clone) -> None:
    make_wheel(ready.wheels, "monotile-tiny", "1.1")
    ready.require("monotile-tiny==1.1")
    line = ready.line("--wheels", str(ready.wheels))
    both = [subprocess.Popen(line, env=ready.environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [each.communicate(timeout=240)[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], outputs
    assert sum("Set-up done" in text for text in outputs) == 1
    assert sum("Another launcher is already installing" in text for text in outputs) == 1


@posix
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_ends_pip_too_and_leaves_an_environment_that_is_resumed(ready: Clone, sign: signal.Signals) -> None:
    begun = ready.root / "begun"
    make_source(ready.wheels, "monotile-slow", "1.0", f"import time; open({str(begun)!r}, 'w'); time.sleep(300)")
    ready.require("monotile-tiny==1.0", "monotile-slow==1.0")
    line = ready.line("--wheels", str(ready.wheels))
    launcher = subprocess.Popen(
        line,
        env=ready.environment(),
        stderr=subprocess.PIPE,
        text=True,
        # A shell has what it starts in the background ignore Ctrl+C, these tests too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until = time.monotonic() + 240
    while not begun.exists():
        assert time.monotonic() < until and launcher.poll() is None, "the build never began"
        time.sleep(0.1)
    children = psutil.Process(launcher.pid).children(recursive=True)
    launcher.send_signal(sign)
    output = launcher.communicate(timeout=240)[1]
    assert launcher.returncode == 130
    assert "Stopped. The next start continues from here." in output and "Traceback" not in output
    assert children and not psutil.wait_procs(children, timeout=60)[1]
    if sign is signal.SIGTERM:
        return  # what is left of it is the same
    ready.require("monotile-tiny==1.0")
    done = ready.offline()
    assert done.returncode == 0 and "making it again" not in done.stderr and "Set-up done" in done.stderr


def test_a_python_without_venv_is_told_the_command_that_brings_it(fresh: Clone, tmp_path: Path) -> None:
    # Debian's python3 without python3-venv: the module is not there.
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "ensurepip.py").write_text("raise ModuleNotFoundError('No module', name='ensurepip')")
    done = fresh.offline(PYTHONPATH=str(tmp_path / "bare"))
    assert done.returncode == 1
    assert "its module 'ensurepip' is missing" in done.stderr
    assert not fresh.venv.exists()


def test_a_folder_that_cannot_be_written_is_told(fresh: Clone) -> None:
    (fresh.root / ".venv.lock").mkdir()
    done = fresh.offline()
    assert done.returncode == 1 and "can't be written" in done.stderr and "Traceback" not in done.stderr


def test_the_tests_packages_stay_apart(ready: Clone) -> None:
    make_wheel(ready.wheels, "monotile-tester", "3.0")
    ready.require("monotile-tester==3.0", name="requirements-test.txt")
    assert ready.start().returncode == 0
    assert "monotile-tester" not in ready.installed()
    # There is no ruff and no pytest in this copy: each is reported, and the exit code says so.
    done = ready.offline("test")
    assert done.returncode != 0 and "ruff check and ruff format found problems" in done.stderr
    assert ready.installed()["monotile-tester"] == "3.0"


def test_base_python_is_no_environment() -> None:
    # The tests above would otherwise set up the environment that they run in.
    code = "import sys; sys.exit(sys.prefix != sys.base_prefix)"
    assert subprocess.run([base_python(), "-c", code]).returncode == 0
