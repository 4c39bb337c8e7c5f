"""Brings the Python environment to what the requirements files ask for, and does nothing when it is there already."""

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
"""From here on pip takes up a download again that broke off; an older one in `.venv` is renewed first."""

WANTED_GB = 10.0
"""Less free disk than this is told before a first set-up."""

_SIZES = "The set-up takes 1.5 GB with PyTorch's CPU build, several times that with its CUDA build."


@dataclass(frozen=True)
class Project:
    """Where Monotile lies, and the Python versions (major, minor) that it runs on."""

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
    """What this start asks of the set-up; see `launcher.py --help`."""

    tests: bool = False
    torch_index: str | None = None
    wheels: str | None = None
    reinstall: bool = False


def ready_python(project: Project) -> Path | None:
    """The interpreter, if everything is installed already; never installs."""
    chosen = environment.choose(Path(project.root))
    return chosen.python if not _Work(project, chosen, Wishes()).left() else None


def prepare(project: Project, wishes: Wishes, report: Report) -> Path:
    """Set up what is missing and return the interpreter to run with. Raises SetupError in words."""
    if wishes.wheels is not None:
        _check_wheels(Path(wishes.wheels))
    chosen = environment.choose(Path(project.root))
    if not wishes.reinstall and not _Work(project, chosen, wishes).left():
        return chosen.python
    with lock.exclusive(chosen.lock, report) as held:
        work = _Work(project, chosen, wishes)
        left = work.all_parts() if wishes.reinstall else work.left()
        if left:  # else another launcher has just done it
            _SetUp(work, report, held).run(left)
    return chosen.python


def _check_wheels(folder: Path) -> None:
    if not folder.is_dir():
        raise SetupError(f"--wheels {folder}: there is no such folder.")
    if not any(folder.glob("*.whl")):
        raise SetupError(
            f"--wheels {folder}: it holds no .whl file. On a machine with a connection, the same system and the same "
            "Python, fill it with: python3 -m pip download -d wheels -r requirements.txt"
        )


class _Work:
    """What an environment holds, against what the project wants of it."""

    def __init__(self, project: Project, chosen: Environment, wishes: Wishes) -> None:
        self.project, self.environment, self.wishes = project, chosen, wishes
        self.base = requirements.read(project.file("requirements.txt"))
        self.tests = requirements.read(project.file("requirements-test.txt")) if wishes.tests else []
        self.look()

    def look(self) -> None:
        """Read the stamp and ask the interpreter, anew."""
        self.stamp = stamp.read(self.environment.stamp)
        names = [each.name for each in self.base + self.tests]
        self.facts = environment.probe(self.environment.python, [*names, "pip", "torch"])

    def digest(self, name: str) -> str:
        """The hash of one of the requirements files."""
        return requirements.digest(self.project.file(name))

    def left(self) -> set[str]:
        """Which parts (base, tests, extras) are not done; empty when there is nothing to do."""
        found = set()
        if self.facts is None or not self.project.runs_on(self.facts):
            return self.all_parts()
        if self.stamp.base != self.digest("requirements.txt") or self.absent(self.base) or self.other_index():
            found.add("base")
        if self.wishes.tests and (self.stamp.tests != self.digest("requirements-test.txt") or self.absent(self.tests)):
            found.add("tests")
        if self.stamp.extras != self.digest("requirements-gpu.txt") and machine.has_card():
            found.add("extras")
        return found

    def all_parts(self) -> set[str]:
        """What a new environment needs."""
        return {"base", "tests", "extras"} if self.wishes.tests else {"base", "extras"}

    def absent(self, wanted: list[Requirement]) -> list[Requirement]:
        """Pins that are not installed as asked. A torch that is kept counts as there."""
        assert self.facts is not None
        packages = self.facts.packages
        return [
            each
            for each in wanted
            if not requirements.fits(packages[each.name], each) and not (each.name == "torch" and self.keeps_torch())
        ]

    def keeps_torch(self) -> bool:
        """Whether the torch that an activated environment brought stays: 2.11 or newer, and no index was named."""
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

    def run(self, left: set[str]) -> None:
        started = time.monotonic()
        self._announce(left)
        self._check(self._interpreter())
        left |= self.work.left()  # more than was asked for when .venv had to be made anew
        self.environment.log.write_text("", encoding="utf-8")
        for part, step in (("base", self._base), ("tests", self._tests), ("extras", self._extras)):
            if part in left:
                step()
        self.report.line(f"Set-up done in {span(time.monotonic() - started)}.")

    def _announce(self, left: set[str]) -> None:
        work, place = self.work, "the environment you activated, " + str(self.environment.prefix)
        goes_on = "It can be stopped with Ctrl-C; the next start goes on from there."
        if work.stamp.base is None and "base" in left:
            where = "the folder .venv here" if self.environment.own else place
            self.report.line(f"First start: what Monotile needs is installed into {where}. {goes_on}")
        elif left == {"extras"}:
            self.report.line(f"An NVIDIA card is here: trying the extras for it. {goes_on}")
        elif left == {"tests"}:
            self.report.line("What the tests need is installed.")
        else:
            self.report.line(f"What Monotile needs has changed: bringing the environment up to it. {goes_on}")

    def _interpreter(self) -> Facts:
        """The environment's facts; makes `.venv`, and makes it again if what is there does not run or has no pip."""
        work, chosen = self.work, self.environment
        runs = work.facts is not None and environment.pip_runs(chosen.python)
        if not chosen.own and not runs:
            raise SetupError(
                f"The activated environment {chosen.prefix} does not run, or has no pip. Mend it, or leave it "
                "(deactivate) and start again: Monotile then makes its own."
            )
        if chosen.own and (not runs or not work.project.runs_on(work.facts) or work.wishes.reinstall):
            self._make()
        if work.facts is None:
            raise SetupError(f"{chosen.prefix} was made, but its Python does not run. Remove it and start again.")
        return work.facts

    def _make(self) -> None:
        chosen = self.environment
        complaint = machine.venv_complaint()
        if complaint:
            raise SetupError(complaint)
        if chosen.prefix.exists() or chosen.prefix.is_symlink():
            if not self.work.wishes.reinstall:
                self.report.line(".venv is half-made or broken; it is made anew.")
            environment.remove(chosen)
        self.report.line(f"Making .venv with Python {'.'.join(str(part) for part in sys.version_info[:3])}")
        index = self.work.stamp.torch_index
        environment.make(chosen)
        self.work.look()
        self.work.stamp.torch_index = index  # the choice of a PyTorch build outlives a broken environment

    def _check(self, facts: Facts) -> None:
        """Say what the machine lacks before anything is downloaded."""
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
            self.report.line(f"Only {free:.1f} GB of the disk are free. {_SIZES}")

    def _pip(self) -> Pip:
        work = self.work
        wheels = work.wishes.wheels
        sources = ("--no-index", "--find-links", str(Path(wheels).resolve())) if wheels else ()
        assert work.facts is not None
        return Pip(
            self.environment.python, work.facts.packages["pip"], sources, self.environment.log, self.report, self.held
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
        self._renew_pip()
        if total > 1:
            self._torch(next(each for each in work.base if each.name == "torch"), f"[1/{total}]")
        title = f"[{total}/{total}] The rest: {len(others)} packages and what these need"
        self.report.line(title)
        self._pip().install([*(each.text for each in others), *self._constraints()])
        work.look()
        self._note(base=work.digest("requirements.txt"))

    def _renew_pip(self) -> None:
        """An older pip in our own environment is renewed, since it can't take up a broken download. It may fail."""
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
        self.work.look()

    def _torch(self, pin: Requirement, place: str) -> None:
        work, wishes = self.work, self.work.wishes
        assert work.facts is not None
        found = work.facts.packages["torch"]
        if work.keeps_torch():
            self.report.line(f"{place} PyTorch {found} of this environment is kept")
            return
        if found and not self.environment.own:
            self.report.line(f"PyTorch {found} of this environment is too old; {pin.version} takes its place.")
        index = wishes.torch_index or work.stamp.torch_index
        sources = ("--index-url", index) if index and not wishes.wheels else None
        if sources is None and not wishes.wheels and found is None:
            self._say_which_build()
        title = f"{place} PyTorch {pin.version}"
        self.report.line(title)
        if found and work.other_index():
            # The same version from another index: pip would call it satisfied.
            self._pip().install(["--force-reinstall", "--no-deps", pin.text], sources)
        self._pip().install([pin.text], sources)
        work.look()
        self._note(torch_index=index)

    def _say_which_build(self) -> None:
        card = machine.has_card()
        if sys.platform == "linux" and not card:
            said, platforms = (
                "Linux usually gets PyTorch's CUDA build, a download of about 3 GB",
                "CPU (or your card's)",
            )
            found = "No NVIDIA card was found"
        elif sys.platform == "win32" and card:
            said, platforms, found = "Windows gets PyTorch's CPU build", "CUDA", "An NVIDIA card is here"
        else:
            return
        self.report.line(
            f"{found}. Without --torch-index, {said}. For another build press Ctrl-C and start again with "
            "--torch-index and the address that PyTorch's install page (pytorch.org) shows after --index-url "
            f"for {platforms}."
        )

    def _constraints(self) -> list[str]:
        """Hold torch at exactly the build that is installed, whatever the packages' own ranges would like."""
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
        if not machine.has_card():
            return
        work = self.work
        work.look()
        wanted = requirements.read(work.project.file("requirements-gpu.txt"))
        self.report.line("Extras for the NVIDIA card; Monotile trains without them too")
        work.stamp.left_out.clear()
        self._note(extras=work.digest("requirements-gpu.txt"))
        extras.install_each(self._pip(), wanted, self._constraints(), self.report, self._leave_out)

    def _leave_out(self, name: str, why: str) -> None:
        self.work.stamp.left_out[name] = why
        self._note()
