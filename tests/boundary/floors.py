"""Checks sources against the list of floors: who may import whom, what may import torch, and which packages there are.

Sources are a dict from path to text (`backend/plan/plan.py` -> its code), so that a test can add a bad import to them.
Imports count wherever they stand: in a function, below TYPE_CHECKING, or as a string that import_module takes.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# From top to bottom. A package imports from itself and from the floors below its own, never up, never sideways.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("launcher", "gui"),
    (
        *("backend.train", "backend.bench", "backend.doctor", "backend.demo"),
        *("backend.lora_tools", "backend.publish"),
    ),
    ("backend.preview", "backend.captioning"),
    ("backend.training",),
    ("backend.latents",),
    ("backend.optimizers",),
    ("backend.objectives",),
    ("backend.models",),
    ("backend.lora",),
    ("backend.memory",),
    ("backend.shapes",),
    ("backend.compile",),
    # The torch line: what follows imports no torch.
    ("backend.queue",),
    ("backend.plan",),
    ("backend.runs",),
    ("backend.dataset",),
    ("backend.importers",),
    ("backend.config",),
    ("backend.families",),
    ("backend.base",),
    ("backend.setup",),
)
TORCH_FREE = tuple(name for floor in FLOORS[12:] for name in floor)
LEVEL = {name: number for number, floor in enumerate(FLOORS) for name in floor}
# Fewer floors than lie below them: these start before there is an environment, or never load torch.
ONLY = {"launcher": ("backend.setup",), "gui": TORCH_FREE}

HEAVY = ("torch", "torchvision", "diffusers", "transformers", "accelerate", "peft", "lycoris", "bitsandbytes", "triton")
HEAVY += ("flash_attn", "flash_attn_interface", "safetensors.torch")
PAGE_LIBRARIES = ("gradio", "gradio_client")

# The folders of families, and what families share: a name stands below backend/models, backend/families or both.
SHARED = ("common", "files", "unet")
UNET_FAMILIES = ("sdxl", "sd15")
# The two tables of families, which alone open a family's folder from outside.
TABLES = ("backend.families.table", "backend.models.family_classes")

# Modules of ours that are started as processes (`python -m NAME`), by the modules that start them.
LAUNCHES: Mapping[str, tuple[str, ...]] = {
    "launcher": (
        *("backend.train", "backend.plan", "backend.importers", "backend.doctor", "backend.demo"),
        *("backend.bench", "backend.runs", "backend.doctor.cache", "backend.preview", "backend.queue"),
        *("backend.lora_tools", "backend.publish", "backend.publish.run_report", "backend.plan.finish"),
        *("backend.plan.tune", "backend.captioning", "backend.training.resume"),
    ),
    "gui.caption_job": ("backend.captioning.worker",),
    "gui.compile_routes": ("backend.doctor.cache",),
    "gui.dataset_scan": ("backend.dataset",),
    "gui.finish_routes": ("backend.plan.finish",),
    "gui.form_routes": ("backend.doctor",),
    "gui.lora_routes": ("backend.lora_tools",),
    "gui.publish_routes": ("backend.publish",),
    "gui.report_routes": ("backend.publish.run_report",),
    "gui.tune_routes": ("backend.plan.tune",),
    "gui.thumbnails": ("backend.dataset.thumbnails",),
    "backend.bench.inference.__main__": ("backend.bench.inference.worker",),
    "backend.bench.processes": ("backend.bench.worker",),
    "backend.bench.several": ("backend.train",),
    "backend.training.ranks.others": ("backend.training.ranks",),
    "backend.bench.rehearsal.__main__": ("backend.bench.rehearsal.base_model",),
    "backend.bench.rehearsal.trial": ("backend.train",),
    "backend.doctor.__main__": ("backend.doctor.probe",),
    "backend.plan.finish.probe": ("backend.train",),
    "backend.queue.process": ("backend.queue.worker",),
    "backend.runs.preview.process": ("backend.preview.worker",),
    "backend.runs.supervise": ("backend.train",),
}
# Modules that import what a person's setting names: a package, never one of ours.
NAMED_BY_SETTINGS = ("backend.config.packages", "backend.optimizers.class_names")
IMPORTERS = ("import_module", "__import__", "run_module", "run_path", "resolve_name", "spec_from_file_location", "exec")

OURS = re.compile(r"(?:backend|gui)(?:\.\w+)*\.?")
IMPORT_TEXT = re.compile(r"(?m)(?:^|;) *(?:import|from) [\w., ]*\b(?:backend|gui)\b")


class Import(NamedTuple):
    """One import: its line, the dotted name that it takes, and whether a string names it."""

    line: int
    target: str
    by_string: bool = False


def project_sources() -> dict[str, str]:
    """The sources as they are: backend, gui and the launcher."""
    paths = [path for top in ("backend", "gui") for path in sorted((ROOT / top).rglob("*.py"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in (*paths, ROOT / "launcher.py")}


def module_name(path: str) -> str:
    """`backend/plan/__init__.py` -> `backend.plan`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def within(name: str, package: str) -> bool:
    """Whether a module is `package` or lies in it."""
    return name == package or name.startswith(package + ".")


def package_of(name: str) -> str:
    """The package of the list in which a module of ours lies: two parts below backend, else one."""
    return ".".join(name.split(".")[: 2 if name.startswith("backend.") else 1])


def problems(sources: Mapping[str, str]) -> list[str]:
    """Everything in `sources` that the floors don't allow, each as `path:line` and why."""
    modules = {module_name(path): path for path in sources}
    result = list(_unlisted(modules))
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        graph[name] = set()
        for each in imports(path, sources[path]):
            target = _owner(each.target, modules)
            reason = _why_not(name, target, each, modules)
            if reason:
                result.append(f"{path}:{each.line} {reason}")
            if target in modules and target != name:
                graph[name].add(target)
        result += [f"{path}:{line} {reason}" for line, reason in _strings(path, sources[path], modules)]
    return result + [f"circle: {' -> '.join(circle)}" for circle in circles(graph)]


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """One circle of every group of nodes that reach each other, as a path that ends where it begins."""
    result, settled = [], set()
    for start in sorted(graph):
        if start in settled:
            continue
        came_from = {start: start}
        waiting = [start]
        while waiting:
            node = waiting.pop(0)
            for other in sorted(graph[node] - settled):
                if other == start:
                    path = [start]
                    while node != start:
                        path.append(node)
                        node = came_from[node]
                    result.append([start, *reversed(path)])
                    settled |= set(path)
                    waiting = []
                    break
                if other not in came_from:
                    came_from[other] = node
                    waiting.append(other)
        settled.add(start)
    return result


def _unlisted(modules: Mapping[str, str]) -> Iterator[str]:
    """Packages that have no floor, modules that lie loose in backend, and floors without a package."""
    packages = {package_of(name): path for name, path in modules.items() if name != "backend"}
    for name, path in packages.items():
        if name not in LEVEL:
            what = "lies loose in backend" if path.count("/") == 1 else "is in no package of the list"
            yield f"{path}:1 {what}"
    yield from (f"{name} is in the list, but has no source" for name in LEVEL if name not in packages)


def _owner(target: str, modules: Mapping[str, str]) -> str:
    """The module that an import of `target` loads: `backend.plan.plan.Plan` is in `backend.plan.plan`."""
    if target.split(".")[0] not in ("backend", "gui", "launcher"):
        return target
    return target if target in modules else target.rpartition(".")[0]


def _why_not(name: str, target: str, each: Import, modules: Mapping[str, str]) -> str | None:
    """Why module `name` may not import `target`, or None."""
    top = target.split(".")[0]
    own = package_of(name)
    if top == "tests" or target == "launcher":
        return f"imports {top}, which is no part of the program"
    if top not in ("backend", "gui"):
        return _library_reason(own, each.target)
    if each.by_string:
        return f"imports {each.target} by a string"
    if target not in modules:
        return f"imports {each.target}, which is not there"
    floor = package_of(target)
    if floor == own:
        return _family_reason(name, target) or _tab_reason(name, target)
    if own in ONLY and floor not in ONLY[own]:
        return f"imports {target}, which is not for {own}"
    if LEVEL.get(floor, 0) < LEVEL.get(own, 0):
        return f"imports {target}, which lies above"
    if LEVEL.get(floor, 0) == LEVEL.get(own, 0):
        return f"imports {target}, which lies on the same floor"
    return _family_reason(name, target)


def _library_reason(own: str, target: str) -> str | None:
    """Why a module of package `own` may not import `target` of another project, or None."""
    top = target.split(".")[0]
    if own in ("launcher", "backend.setup") and top not in sys.stdlib_module_names:
        return f"imports {target}, which is no part of the standard library"
    if top in PAGE_LIBRARIES and own != "gui":
        return f"imports {target} outside the page"
    if (own in TORCH_FREE or own in ONLY) and any(within(target, heavy) for heavy in HEAVY):
        return f"imports {target} below the torch line"
    return None


def _tab_reason(name: str, target: str) -> str | None:
    """Why one tab of the page may not import another, or None."""
    both = name.startswith("gui.tabs.") and target.startswith("gui.tabs.") and name != target
    return f"imports the tab {target} from another tab" if both else None


def _family(name: str) -> str | None:
    """The folder below backend.models or backend.families in which a module lies."""
    parts = name.split(".")
    return parts[2] if parts[:2] in (["backend", "models"], ["backend", "families"]) and len(parts) > 3 else None


def _family_reason(name: str, target: str) -> str | None:
    """Why a family's code or facts may not be imported from `name`, or None."""
    own, other = _family(name), _family(target)
    if other is None or own == other:
        return None
    if other == "unet":
        return None if own in UNET_FAMILIES else f"imports {target}, which is for {' and '.join(UNET_FAMILIES)} alone"
    if other in SHARED or name in TABLES:
        return None
    return f"imports the family {other} ({target}) from another place than its table"


def imports(path: str, source: str) -> tuple[Import, ...]:
    """Every import in a source. A relative one is made absolute; a call with a constant name counts as one."""
    return _names(path, source)[0]


class Names(NamedTuple):
    """What a source names: its imports, and the strings that could name modules, with their lines."""

    imports: tuple[Import, ...]
    texts: tuple[tuple[int, str], ...]


@functools.cache
def _names(path: str, source: str) -> Names:
    """Both in one reading: to parse all sources takes longer than all that is asked of them.

    Docstrings and text below fields are for people, and name no module.
    """
    name = module_name(path)
    package = name if path.endswith("__init__.py") else name.rpartition(".")[0]
    result, spoken, texts = [], set(), []
    # from outside to inside: a docstring's statement comes before its string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr):
            spoken.add(node.value)
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node not in spoken and _names_ours(node.value):
                texts.append((node.lineno, node.value))
        elif isinstance(node, ast.Import):
            result += [Import(node.lineno, each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            base = f"{above}{node.module or ''}".rstrip(".")
            result += [Import(node.lineno, f"{base}.{each.name}") for each in node.names]
        elif isinstance(node, ast.Call) and _callee(node) in IMPORTERS:
            target = _constant(node)
            if target is not None:
                result.append(Import(node.lineno, package + target if target.startswith(".") else target, True))
            elif name not in NAMED_BY_SETTINGS:
                result.append(Import(node.lineno, "backend.?", True))
    return Names(tuple(result), tuple(texts))


def _names_ours(text: str) -> bool:
    """Whether a string could name a module of ours."""
    return ("." in text and OURS.fullmatch(text) is not None) or IMPORT_TEXT.search(text) is not None


def _callee(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _constant(node: ast.Call) -> str | None:
    first = node.args[0] if node.args else next((each.value for each in node.keywords), None)
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _strings(path: str, source: str, modules: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Strings that name a module of ours and are no launch of the list."""
    name = module_name(path)
    for line, text in _names(path, source).texts:
        if text not in LAUNCHES.get(name, ()):
            yield line, f"holds {text!r}, which names a module of ours in a string"
        elif text not in modules:
            yield line, f"starts {text}, which is not there"
