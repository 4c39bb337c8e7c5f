"""Installs what the requirements files ask for into the Python environment; does nothing when all is installed."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from backend.setup import environment, extras, lock, machine, requirements, stamp
from backend.setup.environment import Environment, Facts
from backend.setup.errors import SetupError
from backend.setup.pip import Pip, PipFailed
from backend.setup.report import Report, span
from backend.setup.requirements import Requirement

GOOD_PIP = (25, 2)
"""From this version on pip resumes a broken download; an older one in `.venv` is updated first."""

WANTED_GB = 10.0
"""A first set-up warns when the disk has less free space than this."""

_SIZES = "The set-up needs 1.5 GB with PyTorch's CPU build, and several times that with its CUDA build."


@dataclass(frozen=True)
class Project:
    """Where Monotile is, and the Python versions (major, minor) that it runs on."""

    root: Path | str
    oldest: tuple[int, int]
    newest: tuple[int, int]

    def runs_on(self, facts: Facts) -> bool:
        """Whether an interpreter fits."""
        return facts.bits64 and self.oldest <= facts.python[:2] <= self.newest

    def file(self, name: str) -> Path:
        """A file at the project's root."""
        return Path(self.root) / name


@dataclass(frozen=True)
class Wishes:
    """Options of this start for the set-up; see `launcher.py --help`."""

    tests: bool = False
    torch_index: str | None = None
    wheels: str | None = None
    reinstall: bool = False


def ready_python(project: Project) -> Path | None:
    """The interpreter, if everything is installed already; never installs."""
    target = environment.choose(Path(project.root))
    return target.python if not _Work(project, target, Wishes()).left() else None


def prepare(project: Project, wishes: Wishes, report: Report) -> Path:
    """Install what is missing and return the interpreter to run with. Raises SetupError with a message for people."""
    if wishes.wheels is not None:
        _check_wheels(Path(wishes.wheels))
    target = environment.choose(Path(project.root))
    if not wishes.reinstall and not _Work(project, target, wishes).left():
        return target.python
    with lock.exclusive(target.lock, report) as held:
        work = _Work(project, target, wishes)
        left = work.all_parts() if wishes.reinstall else work.left()
        if left:  # else another launcher has just done it
            _SetUp(work, report, held).run(left)
    return target.python


def _check_wheels(folder: Path) -> None:
    if not folder.is_dir():
        raise SetupError(f"--wheels {folder}: there is no such folder. Check the path.")
    if not any(folder.glob("*.whl")):
        raise SetupError(
            f"--wheels {folder}: it has no .whl file. On a machine with a connection, the same system and the same "
            "Python, fill it with: python3 -m pip download -d wheels -r requirements.txt"
        )


class _Work:
    """What an environment has, compared with what the project needs."""

    def __init__(self, project: Project, target: Environment, wishes: Wishes) -> None:
        self.project, self.environment, self.wishes = project, target, wishes
        self.base = requirements.read(project.file("requirements.txt"))
        self.tests = requirements.read(project.file("requirements-test.txt")) if wishes.tests else []
        self.refresh()

    def refresh(self) -> None:
        """Read the stamp and ask the interpreter again."""
        self.stamp = stamp.read(self.environment.stamp)
        names = [each.name for each in self.base + self.tests]
        self.facts = environment.probe(self.environment.python, [*names, "pip", "torch"])

    def digest(self, name: str) -> str:
        """The hash of one of the requirements files."""
        return requirements.digest(self.project.file(name))

    def left(self) -> set[str]:
        """Which parts (base, tests, extras) are not done; empty when there is nothing to do."""
        parts = set()
        if self.facts is None or not self.project.runs_on(self.facts):
            return self.all_parts()
        if self.stamp.base != self.digest("requirements.txt") or self.absent(self.base) or self.other_index():
            parts.add("base")
        if self.wishes.tests and (self.stamp.tests != self.digest("requirements-test.txt") or self.absent(self.tests)):
            parts.add("tests")
        if self.stamp.extras != self.digest("requirements-gpu.txt") and machine.has_gpu():
            parts.add("extras")
        return parts

    def all_parts(self) -> set[str]:
        """What a new environment needs."""
        return {"base", "tests", "extras"} if self.wishes.tests else {"base", "extras"}

    def absent(self, wanted: list[Requirement]) -> list[Requirement]:
        """Pins that are not installed as asked. A torch that is kept counts as installed."""
        assert self.facts is not None
        packages = self.facts.packages
        return [
            each
            for each in wanted
            if not requirements.fits(packages[each.name], each) and not (each.name == "torch" and self.keeps_torch())
        ]

    def keeps_torch(self) -> bool:
        """Whether the torch of an activated environment stays: 2.11 or newer, and no index was given."""
        own = self.environment.own or self.wishes.torch_index or self.stamp.torch_index
        return not own and self.facts is not None and environment.keeps(self.facts.packages["torch"])

    def other_index(self) -> bool:
        """Whether torch is wanted from another index than the one it came from."""
        return self.wishes.torch_index is not None and self.wishes.torch_index != self.stamp.torch_index


class _SetUp:
    """One set-up, under the lock."""

    def __init__(self, work: _Work, report: Report, held: int) -> None:
        self.work, self.report, self.held = work, report, held
        self.environment = work.environment
        self.all_new = False

    def run(self, left: set[str]) -> None:
        started = time.monotonic()
        self._announce(left)
        self._check(self._interpreter())
        left |= self.work.left()  # more than was asked for when .venv had to be made again
        self.all_new = self.environment.own and self.work.stamp.base is None
        self.environment.log.write_text("", encoding="utf-8")
        for part, step in (("base", self._base), ("tests", self._tests), ("extras", self._extras)):
            if part in left:
                step()
        if self.all_new:
            self._pip().write_bytecode(self.environment.library)
        self.report.line(f"Set-up done in {span(time.monotonic() - started)}.")

    def _announce(self, left: set[str]) -> None:
        work, place = self.work, "the environment you activated, " + str(self.environment.prefix)
        stop_note = "You can stop it with Ctrl-C; the next start continues from there."
        if work.stamp.base is None and "base" in left:
            where = "the folder .venv here" if self.environment.own else place
            self.report.line(f"First start: installing what Monotile needs into {where}. {stop_note}")
        elif left == {"extras"}:
            self.report.line(f"An NVIDIA GPU was found: installing the extras for it. {stop_note}")
        elif left == {"tests"}:
            self.report.line("Installing what the tests need.")
        else:
            self.report.line(f"What Monotile needs has changed: updating the environment. {stop_note}")

    def _interpreter(self) -> Facts:
        """The environment's facts; makes `.venv`, and makes it again if what is there does not run or has no pip."""
        work, target = self.work, self.environment
        runs = work.facts is not None and environment.pip_runs(target.python)
        if not target.own and not runs:
            raise SetupError(
                f"The activated environment {target.prefix} does not work, or has no pip. Fix it, or leave it "
                "(deactivate) and start again: Monotile then makes its own."
            )
        if target.own and (not runs or not work.project.runs_on(work.facts) or work.wishes.reinstall):
            self._make()
        if work.facts is None:
            raise SetupError(f"{target.prefix} was made, but its Python does not run. Delete it and start again.")
        return work.facts

    def _make(self) -> None:
        target = self.environment
        complaint = machine.venv_complaint()
        if complaint:
            raise SetupError(complaint)
        if target.prefix.exists() or target.prefix.is_symlink():
            if not self.work.wishes.reinstall:
                self.report.line(".venv is incomplete or broken; making it again.")
            environment.remove(target)
        self.report.line(f"Making .venv with Python {'.'.join(str(part) for part in sys.version_info[:3])}")
        index = self.work.stamp.torch_index
        environment.make(target)
        self.work.refresh()
        self.work.stamp.torch_index = (
            index  # the choice of a PyTorch build stays when a broken environment is made again
        )

    def _check(self, facts: Facts) -> None:
        """Report what the machine lacks before anything is downloaded."""
        project = self.work.project
        if not project.runs_on(facts):
            span_text = " to ".join(f"{major}.{minor}" for major, minor in (project.oldest, project.newest))
            raise SetupError(
                f"The activated environment {self.environment.prefix} has Python "
                f"{'.'.join(str(part) for part in facts.python)}; Monotile needs a 64-bit Python {span_text}. "
                "Leave it (deactivate) and start again, or activate another one."
            )
        compiling = machine.compile_complaint(facts.headers)
        if compiling:
            self.report.line(compiling)
        free = shutil.disk_usage(self.environment.prefix).free / 1e9
        if facts.packages["torch"] is None and free < WANTED_GB:
            self.report.line(
                f"Only {free:.1f} GB of disk space are free. {_SIZES} Free some space if that is not enough."
            )

    def _pip(self) -> Pip:
        work = self.work
        wheels = work.wishes.wheels
        sources = ("--no-index", "--find-links", str(Path(wheels).resolve())) if wheels else ()
        assert work.facts is not None
        return Pip(
            self.environment.python,
            work.facts.packages["pip"],
            sources,
            self.environment.log,
            self.report,
            self.held,
            compiles=not self.all_new,
        )

    def _note(self, **done: str | None) -> None:
        for name, value in done.items():
            setattr(self.work.stamp, name, value)
        self.work.stamp.write(self.environment.stamp)

    def _base(self) -> None:
        work = self.work
        others = [each for each in work.base if each.name != "torch"]
        total = 1 + len([each for each in work.base if each.name == "torch"])
        self._note(base=None)
        self._update_pip()
        if total > 1:
            self._torch(next(each for each in work.base if each.name == "torch"), f"[1/{total}]")
        title = f"[{total}/{total}] The other packages: {len(others)}, and what they need"
        self.report.line(title)
        self._pip().install([*(each.text for each in others), *self._constraints()])
        work.refresh()
        self._note(base=work.digest("requirements.txt"))

    def _update_pip(self) -> None:
        """Update an older pip in our own environment, since it can't resume a broken download. It may fail."""
        assert self.work.facts is not None
        version = self.work.facts.packages["pip"]
        if (
            self.work.wishes.wheels
            or not self.environment.own
            or version is None
            or not requirements.older_than(version, GOOD_PIP)
        ):
            return
        try:
            self._pip().install(["--upgrade", f"pip>={'.'.join(map(str, GOOD_PIP))}"])
        except PipFailed:
            return  # the old one does the work too; the log has the reason
        self.work.refresh()

    def _torch(self, pin: Requirement, place: str) -> None:
        work, wishes = self.work, self.work.wishes
        assert work.facts is not None
        installed = work.facts.packages["torch"]
        if work.keeps_torch():
            self.report.line(f"{place} PyTorch {installed} of this environment is kept")
            return
        if installed and not self.environment.own:
            self.report.line(f"PyTorch {installed} of this environment is too old; installing {pin.version} instead.")
        index = wishes.torch_index or work.stamp.torch_index
        sources = ("--index-url", index) if index and not wishes.wheels else None
        if sources is None and not wishes.wheels and installed is None:
            self._announce_build()
        title = f"{place} PyTorch {pin.version}"
        self.report.line(title)
        if installed and work.other_index():
            # The same version from another index: pip would call it satisfied.
            self._pip().install(["--force-reinstall", "--no-deps", pin.text], sources)
        self._pip().install([pin.text], sources)
        work.refresh()
        self._note(torch_index=index)

    def _announce_build(self) -> None:
        gpu = machine.has_gpu()
        if sys.platform == "linux" and not gpu:
            build, platforms = (
                "Linux usually gets PyTorch's CUDA build, a download of about 3 GB",
                "CPU (or your GPU's)",
            )
            machine_text = "No NVIDIA GPU was found"
        elif sys.platform == "win32" and gpu:
            build, platforms, machine_text = "Windows gets PyTorch's CPU build", "CUDA", "An NVIDIA GPU was found"
        else:
            return
        self.report.line(
            f"{machine_text}. Without --torch-index, {build}. For another build press Ctrl-C and start again with "
            "--torch-index and the address that PyTorch's install page (pytorch.org) shows after --index-url "
            f"for {platforms}."
        )

    def _constraints(self) -> list[str]:
        """Hold torch at exactly the build that is installed, whatever version ranges the packages have."""
        assert self.work.facts is not None
        installed = self.work.facts.packages["torch"]
        if installed is None:
            return []
        path = self.environment.prefix / "monotile-constraints.txt"
        path.write_text(f"torch=={installed}\n", encoding="utf-8")
        return ["-c", str(path)]

    def _tests(self) -> None:
        work = self.work
        title = f"{len(work.tests)} packages for the tests"
        self.report.line(title)
        self._note(tests=None)
        self._pip().install([*(each.text for each in work.tests), *self._constraints()])
        self._note(tests=work.digest("requirements-test.txt"))

    def _extras(self) -> None:
        if not machine.has_gpu():
            return
        work = self.work
        work.refresh()
        optional = requirements.read(work.project.file("requirements-gpu.txt"))
        self.report.line("Extras for the NVIDIA GPU (optional: Monotile also trains without them)")
        work.stamp.left_out.clear()
        self._note(extras=work.digest("requirements-gpu.txt"))
        extras.install_each(self._pip(), optional, self._constraints(), self.report, self._leave_out)

    def _leave_out(self, name: str, why: str) -> None:
        self.work.stamp.left_out[name] = why
        self._note()
