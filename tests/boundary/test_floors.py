"""The sources keep to the floors, and the check names each kind of import that doesn't."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from tests.boundary.floors import (
    FLOORS,
    LAUNCHES,
    LEVEL,
    NAMED_BY_SETTINGS,
    ONLY,
    ROOT,
    TABLES,
    TORCH_FREE,
    module_name,
    problems,
    project_sources,
)


@pytest.fixture(scope="module")
def sources() -> Mapping[str, str]:
    return project_sources()


@pytest.fixture(scope="module")
def problems_now(sources: Mapping[str, str]) -> frozenset[str]:
    """What the sources have before a test adds to them."""
    return frozenset(problems(sources))


def test_the_sources_keep_to_the_floors(problems_now: frozenset[str]) -> None:
    assert problems_now == frozenset()


def test_torch_begins_above_the_queue() -> None:
    assert TORCH_FREE[0] == "backend.queue" and TORCH_FREE[-1] == "backend.setup"
    assert FLOORS[11] == ("backend.compile",)


def test_the_list_in_the_documents_is_this_one() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`(?:gui|backend)/.*?) \|.*\| (yes|no) \|$", text.split("## ")[1], re.MULTILINE)
    listed = [
        (name.rstrip("/").removesuffix(".py"), torch) for names, torch in rows for name in names[1:-1].split("`, `")
    ]
    floors = [(name.replace(".", "/"), "no" if name in ONLY or name in TORCH_FREE else "yes") for name in LEVEL]
    assert listed == [each for each in floors if each[0] != "launcher"]


def test_what_the_rules_name_is_there(sources: Mapping[str, str]) -> None:
    modules = {module_name(path) for path in sources}
    assert modules.issuperset((*TABLES, *NAMED_BY_SETTINGS, *LAUNCHES))
    for name, targets in LAUNCHES.items():
        source = sources.get(f"{name.replace('.', '/')}.py", "")
        assert all(f'"{each}"' in source for each in targets), f"{name} starts other modules by now"


# Name of the case: path, the code added to it, and what the check says of it.
BAD: Mapping[str, tuple[str, str, str]] = {
    "up": ("backend/config/load.py", "from backend.plan.steps import StepPlan", "backend.plan.steps, which lies above"),
    "up in a function": (
        "backend/runs/folder.py",
        "def look():\n    import backend.training.loop",
        "backend.training.loop, which lies above",
    ),
    "up for types alone": (
        "backend/lora/load.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from backend.models.family import Family",
        "backend.models.family, which lies above",
    ),
    "up by a relative import": ("backend/base/files.py", "from ..runs import folder", "runs.folder, which lies above"),
    "a whole package": ("backend/base/files.py", "from backend import runs", "imports backend.runs, which lies above"),
    "sideways": ("backend/doctor/probe.py", "from backend.bench.sizes import SIZES", "lies on the same floor"),
    "to the page": ("backend/bench/work.py", "from gui.theme import head", "imports gui.theme, which lies above"),
    "the page to the trainer": ("gui/plans.py", "import backend.training.loop", "which is not for gui"),
    "the page to torch's floors": ("gui/plans.py", "from backend.lora import comfyui_keys", "which is not for gui"),
    "the launcher beyond the set-up": ("launcher.py", "from backend.base import paths", "which is not for launcher"),
    "to the launcher": ("backend/doctor/probe.py", "import launcher", "imports launcher, which is no part"),
    "to the tests": ("backend/doctor/probe.py", "from tests.tiny import flux", "imports tests, which is no part"),
    "between families": ("backend/models/flux/denoiser.py", "from backend.models.sd3 import denoiser", "family sd3"),
    "between facts": ("backend/families/sd3/facts.py", "from backend.families.flux import layout", "family flux"),
    "facts of another family": ("backend/models/sd3/denoiser.py", "import backend.families.flux.facts", "family flux"),
    "a family past its table": ("backend/training/loop.py", "from backend.models.flux import encoders", "family flux"),
    "a family from what families share": (
        "backend/models/common/vae.py",
        "from backend.models.anima import sinks",
        "family anima",
    ),
    "the UNet for a transformer": (
        "backend/models/flux/denoiser.py",
        "from backend.models.unet import clip_text",
        "alone",
    ),
    "between tabs": ("gui/tabs/run.py", "from gui.tabs import library", "from another tab"),
    "torch below its line": ("backend/plan/steps.py", "import torch", "imports torch below the torch line"),
    "torch in a function": (
        "backend/dataset/images.py",
        "def load():\n    from torch.utils.data import Dataset",
        "torch.utils.data.Dataset below the torch line",
    ),
    "torch by a string": (
        "backend/config/load.py",
        "import importlib\nimportlib.import_module('torch')",
        "torch below the torch line",
    ),
    "torch's files": ("backend/families/spec.py", "from safetensors.torch import load_file", "below the torch line"),
    "torch in the page": ("gui/plans.py", "import diffusers", "imports diffusers below the torch line"),
    "Gradio outside the page": ("backend/runs/folder.py", "import gradio as gr", "imports gradio outside the page"),
    "a package before the set-up": ("backend/setup/prepare.py", "import rich", "no part of the standard library"),
    "by import_module": (
        "backend/training/loop.py",
        "from importlib import import_module\nimport_module('backend.lora.load')",
        "imports backend.lora.load by a string",
    ),
    "by __import__": ("backend/training/loop.py", "__import__('backend.lora')", "imports backend.lora by a string"),
    "by a relative string": (
        "backend/runs/folder.py",
        "import importlib\nimportlib.import_module('.status', __package__)",
        "imports backend.runs.status by a string",
    ),
    "by a name that is put together": (
        "backend/models/family_classes.py",
        "import importlib\nname = 'flux'\nimportlib.import_module(f'backend.models.{name}')",
        "holds 'backend.models.'",
    ),
    "by a variable": (
        "backend/models/family_classes.py",
        "import importlib\ndef load(name):\n    importlib.import_module(name)",
        "by a string",
    ),
    "code in a string": (
        "backend/doctor/probe.py",
        "CODE = 'import re; from backend.lora import comfyui_keys'",
        "in a string",
    ),
    "an unlisted start": ("gui/plans.py", "COMMAND = ['-m', 'backend.bench']", "holds 'backend.bench'"),
    "a module that is not there": ("gui/plans.py", "from backend.plan.nothing import here", "which is not there"),
    "a loose module": ("backend/helpers.py", "", "backend/helpers.py:1 lies loose in backend"),
    "an unlisted package": ("backend/extras/table.py", "", "is in no package of the list"),
    "a circle": ("backend/plan/steps.py", "from backend.plan import plan", "circle: backend.plan."),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_import_is_named(sources: Mapping[str, str], problems_now: frozenset[str], case: str) -> None:
    path, code, expected = BAD[case]
    changed = {**sources, path: f"{sources.get(path, '')}\n{code}\n"}
    new = set(problems(changed)) - problems_now
    assert any(expected in each for each in new), new
    assert all(each.startswith((path, "circle")) for each in new)


def test_a_floor_without_a_package_is_named(sources: Mapping[str, str]) -> None:
    fewer = {path: text for path, text in sources.items() if not path.startswith("backend/demo/")}
    assert "backend.demo is in the list, but has no source" in problems(fewer)
