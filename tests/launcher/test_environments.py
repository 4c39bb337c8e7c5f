"""Activated environments, the torch they bring, and NVIDIA extras."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.tiny.clone import Clone, base_python, lose_pip_and_pins, make_source, make_wheel


def torch_clone(clone: Clone) -> Clone:
    """A copy that asks for torch as the project does, with tiny wheels that bear its name."""
    for version in ("2.5.0", "2.11.0+cu130", "2.13.0"):
        make_wheel(clone.wheels, "torch", version)
    clone.require("torch==2.13.0", "monotile-tiny==1.0")
    return clone


def make_environment(folder: Path, clone: Clone, *wheels: Path, keep: bool = False) -> Path:
    """A venv that a person made, with wheels already in it. keep: the copy's own environment, which else goes."""
    shutil.copytree(clone.venv, folder, symlinks=True)  # much sooner done than `python -m venv`
    (folder / "monotile-setup.json").unlink()
    if not keep:
        shutil.rmtree(clone.venv, ignore_errors=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for wheel in wheels:
        # as pip unpacks it, in a tenth of its time
        zipfile.ZipFile(wheel).extractall(packages)
    return folder


@pytest.mark.parametrize(("version", "after"), [("2.11.0+cu130", "2.11.0+cu130"), ("2.5.0", "2.13.0")])
def test_an_activated_environment_is_used_and_its_torch_is_kept_from_2_11_on(
    ready: Clone, tmp_path: Path, version: str, after: str
) -> None:
    torch_clone(ready)
    mine = make_environment(tmp_path / "mine", ready, ready.wheels / f"torch-{version}-py3-none-any.whl")
    done = ready.offline(VIRTUAL_ENV=str(mine))
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["prefix"]) == mine
    assert not ready.venv.exists()
    assert ready.installed(mine)["torch"] == after
    assert ("is kept" if version == after else "too old") in done.stderr
    again = ready.start(VIRTUAL_ENV=str(mine))
    assert (again.returncode, again.stderr) == (0, "Monotile: starting the page.\n")


def test_the_environment_whose_python_runs_the_launcher_counts_as_activated(ready: Clone, tmp_path: Path) -> None:
    mine = make_environment(tmp_path / "mine", ready)
    line = [str(mine / "bin" / "python"), *ready.line("--wheels", str(ready.wheels))[1:]]
    done = subprocess.run(line, env=ready.environment(), capture_output=True, text=True, timeout=240)
    assert Path(json.loads(done.stdout)["prefix"]) == mine
    assert not ready.venv.exists()


def test_our_own_environment_activated_is_still_our_own(ready: Clone) -> None:
    done = ready.start(VIRTUAL_ENV=str(ready.venv))
    assert (done.returncode, done.stderr) == (0, "Monotile: starting the page.\n")
    assert not (ready.venv / "monotile-setup.lock").exists()


def test_a_conda_environment_is_used_but_base_only_with_a_fitting_torch(ready: Clone, tmp_path: Path) -> None:
    conda = make_environment(tmp_path / "conda", ready, keep=True)
    # base without torch: our own environment
    done = ready.start(CONDA_PREFIX=str(conda), CONDA_DEFAULT_ENV="base")
    assert Path(json.loads(done.stdout)["prefix"]) == ready.venv
    # a named one: used
    torch_clone(ready)
    done = ready.offline(CONDA_PREFIX=str(conda), CONDA_DEFAULT_ENV="train")
    assert Path(json.loads(done.stdout)["prefix"]) == conda
    # base that holds torch 2.13 by now: used
    done = ready.start(CONDA_PREFIX=str(conda), CONDA_DEFAULT_ENV="base")
    assert Path(json.loads(done.stdout)["prefix"]) == conda


def test_an_activated_environment_without_pip_is_told_and_left_alone(ready: Clone, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    subprocess.run([base_python(), "-m", "venv", "--without-pip", str(mine)], check=True, env=ready.environment())
    done = ready.offline(VIRTUAL_ENV=str(mine))
    assert done.returncode == 1 and "has no pip" in done.stderr and "deactivate" in done.stderr
    assert (mine / "pyvenv.cfg").exists()


def card(tmp_path: Path) -> dict[str, str]:
    """A PATH on which an NVIDIA GPU answers."""
    folder = tmp_path / "driver"
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\n")
    tool.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_extras_are_tried_one_by_one_and_a_failing_one_is_named_and_left_out(ready: Clone, tmp_path: Path) -> None:
    make_wheel(ready.wheels, "extra-good", "1.0")
    make_source(ready.wheels, "extra-built", "1.0", "")
    for tool in ("wheel", "ninja"):
        make_wheel(ready.wheels, tool, "1.0")
    wanted = ["extra-built==1.0", "extra-good==1.0"]
    ready.require(*wanted, name="requirements-gpu.txt")
    done = ready.offline(**card(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "extra-built: skipped: it can't be built here" in done.stderr
    assert "extra-good: installed" in done.stderr
    assert "extra-good" in ready.installed()
    left_out = json.loads((ready.venv / "monotile-setup.json").read_text())["left_out"]
    assert list(left_out) == ["extra-built"]
    # The next start does not try them again.
    again = ready.start(PATH=f"{tmp_path / 'driver'}:/usr/bin:/bin")
    assert again.stderr == "Monotile: starting the page.\n"


def test_without_a_card_no_extra_is_tried(ready: Clone) -> None:
    make_wheel(ready.wheels, "extra-good", "1.0")
    ready.require("extra-good==1.0", name="requirements-gpu.txt")
    assert ready.offline(PATH="/usr/bin:/bin").returncode == 0
    assert "extra-good" not in ready.installed()


def index_of(folder: Path, *wheels: Path) -> str:
    """A package index in a folder, as `--torch-index` takes one."""
    for wheel in wheels:
        shelf = folder / wheel.name.split("-")[0].replace("_", "-")
        shelf.mkdir(parents=True, exist_ok=True)
        (shelf / wheel.name).write_bytes(wheel.read_bytes())
        (shelf / "index.html").write_text(
            "".join(f"<a href='{each.name}'>{each.name}</a>" for each in shelf.glob("*.whl"))
        )
    return folder.as_uri()


def test_torch_comes_first_and_its_index_is_used_for_it_alone_and_remembered_when_a_broken_environment_is_made_again(
    ready: Clone, tmp_path: Path
) -> None:
    torch_clone(ready)
    everything = index_of(tmp_path / "everything", *ready.wheels.glob("*.whl"))
    done = ready.start(PIP_INDEX_URL=everything, PATH="/usr/bin:/bin")
    assert done.returncode == 0 and ready.installed()["torch"] == "2.13.0"
    first, second = ready.pip_calls()[-2:]
    assert first.endswith("torch==2.13.0")
    assert "-c" in second and "torch==" not in second
    assert (ready.venv / "monotile-constraints.txt").read_text() == "torch==2.13.0\n"
    assert "No NVIDIA GPU was found. Without --torch-index, Linux usually gets PyTorch's CUDA build" in done.stderr
    gpu = index_of(tmp_path / "gpu", make_wheel(tmp_path, "torch", "2.13.0+cu130"))
    others = index_of(tmp_path / "others", *ready.wheels.glob("monotile*.whl"))
    done = ready.start("--torch-index", gpu, PIP_INDEX_URL=others)
    assert done.returncode == 0, done.stderr
    assert "Without --torch-index" not in done.stderr
    assert ready.installed()["torch"] == "2.13.0+cu130"
    assert (ready.venv / "monotile-constraints.txt").read_text() == "torch==2.13.0+cu130\n"
    assert json.loads((ready.venv / "monotile-setup.json").read_text())["torch_index"] == gpu
    assert ready.start().stderr == "Monotile: starting the page.\n"
    # The choice outlives the environment that it was made for. Of a link in its place only the link goes.
    ready.venv.rename(tmp_path / "precious")
    ready.venv.symlink_to(tmp_path / "precious")
    lose_pip_and_pins(ready.venv)
    done = ready.start(PIP_INDEX_URL=others)
    assert done.returncode == 0 and "making it again" in done.stderr
    assert ready.installed()["torch"] == "2.13.0+cu130" and ready.installed()["monotile-tiny"] == "1.0"
    assert not ready.venv.is_symlink() and (tmp_path / "precious" / "monotile-setup.json").exists()
