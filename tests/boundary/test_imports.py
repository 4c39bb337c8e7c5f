"""What an import really loads, and that everything imported is pinned; floors.py says who may import whom."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

import pytest

from tests.boundary.floors import HEAVY, ROOT, TORCH_FREE, imports, module_name, package_of, project_sources

# Whatever the source looks like, this is what is loaded. `__main__` modules run when imported.
IMPORT = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted(name for name in sys.modules if name in json.loads(sys.argv[2]))))
"""


def loaded_heavy(names: list[str]) -> list[str]:
    """Which heavy modules a new process holds after importing `names`."""
    line = [sys.executable, "-c", IMPORT, json.dumps(names), json.dumps([*HEAVY, "av"])]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("packages", [TORCH_FREE, ("gui",)], ids=["backend", "page"])
def test_importing_what_lies_below_the_torch_line_loads_no_torch_and_no_pyav(packages: tuple[str, ...]) -> None:
    names = [module_name(path) for path in project_sources()]
    names = [name for name in names if package_of(name) in packages and not name.endswith("__main__")]
    assert len(names) > 20
    assert loaded_heavy(names) == []


def test_tools_that_read_lora_files_load_torch_and_no_library_of_models() -> None:
    """Those take twice as long as torch. And the proof sees a heavy module where there is one."""
    loaded = set(loaded_heavy(["backend.lora_tools.commands", "av"]))
    assert {"torch", "av"} <= loaded
    assert not loaded & {"diffusers", "transformers", "peft"}


def test_pyav_is_imported_only_where_a_clip_is_opened() -> None:
    # Inside of a function, above the torch line too: 18 MB that runs on pictures and the page do without.
    # tests/training/test_run.py trains one that could not import it.
    outside = []
    # only these are parsed: no import of it does without its name
    named = {path: source for path, source in project_sources().items() if re.search(r"\bav\b", source)}
    assert "backend/dataset/video_stream.py" in named
    for path, source in named.items():
        tree = ast.parse(source)
        inner = {each for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for each in ast.walk(node)}
        for node in {each for each in ast.walk(tree) if isinstance(each, ast.Import | ast.ImportFrom)} - inner:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
            outside += [f"{path}:{node.lineno}" for name in names if name.split(".")[0] == "av"]
    assert not outside


# Import name -> the name it is installed by, where they differ. `flash_attn` and its kin are extras for NVIDIA GPUs.
INSTALLED_AS = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "annotated_types": "pydantic",
    "pydantic_core": "pydantic",
    "flash_attn": "flash-attn",
    "flash_attn_interface": "flash-attn",  # a build of the same project for Hopper
    "lycoris": "lycoris-lora",
    "pynvml": "nvidia-ml-py",
    "tokenizers": "transformers",
    "triton": "torch",
}


def test_everything_imported_is_pinned_by_name() -> None:
    # A package that only comes along with another may go with that one's next version.
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("requirements.txt", "requirements-gpu.txt"))
    pinned = {re.split(r"[=<>;\s]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}
    known = sys.stdlib_module_names | {"backend", "gui", "__future__"}
    wrong = sorted(
        f"{path} imports {top}"
        for path, source in project_sources().items()
        for top in {each.target.split(".")[0] for each in imports(path, source)} - known
        if INSTALLED_AS.get(top, top) not in pinned
    )
    assert not wrong
