"""Who may import whom. Read from the source by `ast`, and proven by importing for real in a new process."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "diffusers", "transformers", "accelerate", "peft")

# What a family is, as data: below the settings, which are made of it.
MODELS = (
    "backend.models.files",
    "backend.families.activations",
    "backend.families.shift",
    "backend.families.spec",
    "backend.models.*facts",
    "backend.models.*.layout",
    "backend.families.table",
)

# The page and the terminal's quick commands live on these alone. A name stands for the module or the whole package;
# packages that hold both kinds name their torch-free modules.
TORCH_FREE = (
    "gui",
    "backend.config",
    "backend.plan",
    "backend.runs",
    "backend.setup",
    "backend.dataset",
    "backend.dataset.captions",
    "backend.dataset.buckets",
    "backend.dataset.batches",
    *MODELS,
    "backend.plan.base_model_check",
    "backend.config.layer_patterns",
    "backend.lora.comfyui_keys",
    "backend.lora.native_names",
)


def modules() -> dict[str, Path]:
    """Every module of ours, dotted name -> file."""
    found = {}
    for top in ("backend", "gui"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def torch_free(patterns: Sequence[str] = TORCH_FREE) -> list[str]:
    """The modules that `patterns` name."""
    names = []
    for pattern in patterns:
        head, star, tail = pattern.partition("*")
        found = [
            name
            for name in modules()
            if name == pattern
            or (not star and name.startswith(pattern + "."))
            or (star and name.startswith(head) and name.endswith(tail))
        ]
        assert found, f"{pattern} names no module any more"
        names += found
    return sorted(set(names))


def imports(name: str, path: Path, lazy: bool = True) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of what a module imports. `lazy`: also inside functions; type-checking blocks never."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if not lazy and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            base = f"{above}{node.module or ''}".rstrip(".")
            yield from ((node.lineno, f"{base}.{each.name}") for each in node.names)
        waiting += ast.iter_child_nodes(node)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_the_backend_never_imports_the_page() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        if within(name, "backend")
        for line, target in imports(name, path)
        if within(target, "gui") or within(target, "gradio")
    ]
    assert not wrong


def test_no_module_above_imports_the_launcher_or_the_tests() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        for line, target in imports(name, path)
        if within(target, "launcher") or within(target, "tests")
    ]
    assert not wrong


def families() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "backend" / "models").glob("*/facts.py"))


def test_families_never_import_each_other() -> None:
    assert families(), "there is no family any more"
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        for own in families()
        if within(name, f"backend.models.{own}")
        for line, target in imports(name, path)
        for other in families()
        if other != own and within(target, f"backend.models.{other}")
    ]
    assert not wrong


def test_families_are_reached_only_through_the_table() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        if name not in ("backend.families.table", "backend.models.family_classes")
        and not any(within(name, f"backend.models.{own}") for own in families())
        for line, target in imports(name, path)
        if any(within(target, f"backend.models.{own}") for own in families())
    ]
    assert not wrong


def test_only_families_import_what_the_unets_share() -> None:
    # It is no family, but belongs to some of them: nothing else may know how their denoiser is built.
    shared = "backend.models.unet"
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        if not within(name, shared) and not any(within(name, f"backend.models.{own}") for own in families())
        for line, target in imports(name, path)
        if within(target, shared)
    ]
    assert not wrong


def test_what_a_family_is_lies_below_the_settings() -> None:
    below = ("backend.base.problems", "backend.base.paths", "backend.base.tensor_names")
    known = torch_free(MODELS)
    wrong = [
        f"{name}:{line} imports {target}"
        for name in known
        for line, target in imports(name, modules()[name])
        if within(target, "backend") and not any(within(target, each) for each in (*below, *known))
    ]
    assert not wrong


def test_tabs_never_import_each_other() -> None:
    tabs = [name for name in modules() if name.startswith("gui.tabs.")]
    wrong = [
        f"{name}:{line} imports {target}"
        for name in tabs
        for line, target in imports(name, modules()[name])
        for other in tabs
        if other != name and within(target, other)
    ]
    assert not wrong


def test_the_torch_free_set_names_no_heavy_import() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name in torch_free()
        for line, target in imports(name, modules()[name])
        if any(within(target, heavy) for heavy in HEAVY)
    ]
    assert not wrong


def test_the_set_up_uses_the_standard_library_alone() -> None:
    before_set_up = ("backend.setup", "backend.setup.toolchain")
    wrong = [
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        if any(within(name, own) for own in before_set_up)
        for line, target in imports(name, path)
        if target.split(".")[0] not in sys.stdlib_module_names and not any(within(target, own) for own in before_set_up)
    ]
    assert not wrong


# The import that counts: whatever the source looks like, this is what is loaded. `__main__` modules run when imported.
IMPORT = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted(name for name in sys.modules if name.split(".")[0] in json.loads(sys.argv[2]))))
"""


def loaded_heavy(names: list[str]) -> list[str]:
    """Which heavy modules a new process holds after importing `names`."""
    line = [sys.executable, "-c", IMPORT, json.dumps(names), json.dumps(HEAVY)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_torch_free_backend_loads_no_torch() -> None:
    names = [name for name in torch_free() if within(name, "backend") and not name.endswith("__main__")]
    assert loaded_heavy(names) == []


def test_importing_the_page_loads_no_torch() -> None:
    names = [name for name in torch_free() if within(name, "gui") and not name.endswith("__main__")]
    assert "gui.app" in names
    assert loaded_heavy(names) == []


@pytest.mark.parametrize("heavy", ["torch", "diffusers"])
def test_the_proof_sees_a_heavy_module_when_there_is_one(heavy: str) -> None:
    assert heavy in loaded_heavy([heavy])


# Import name -> the name it is installed by, where they differ. `flash_attn` and its kin are the extras of a card.
INSTALLED_AS = {
    "PIL": "pillow",
    "yaml": "pyyaml",
    "annotated_types": "pydantic",
    "pydantic_core": "pydantic",
    "flash_attn": "flash-attn",
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
        f"{name}:{line} imports {target}"
        for name, path in modules().items()
        for line, target in imports(name, path)
        if (top := target.split(".")[0]) not in known and INSTALLED_AS.get(top, top) not in pinned
    )
    assert not wrong
