"""What no file of the project may hold."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def files() -> list[Path]:
    """Text files of the project: those in git, and new ones that git would take."""
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(line, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    paths = [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    return [path for path in paths if b"\0" not in path.read_bytes()[:4096]]


def python_files() -> list[Path]:
    """Our own Python files, those of the tests too."""
    return [path for path in files() if path.suffix == ".py"]


def sources() -> list[Path]:
    """Our own Python files, the tests left out."""
    return [path for path in python_files() if path.relative_to(ROOT).parts[0] != "tests"]


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


# Put together here, so that this file does not hold what it looks for.
REGISTRIES = [".".join(parts) for parts in (("pypi", "org"), ("files", "pythonhosted"), ("download", "pytorch"))]
REGISTRIES += [".".join(parts) for parts in (("registry", "npmjs"), ("deb", "debian"))]
MACHINE = ["/".join(("", *parts, "")) for parts in (("root", ".pyenv"), ("work",), ("opt", "wheels"), ("opt", "pypi"))]


@pytest.mark.parametrize("words", [REGISTRIES, MACHINE], ids=["registry hosts", "paths of one machine"])
def test_no_file_names(words: list[str]) -> None:
    places = []
    for path in files():
        for number, line in enumerate(text(path).splitlines(), 1):
            places += [f"{path.relative_to(ROOT)}:{number} holds {word}" for word in words if word in line]
    assert not places


# A local is a noun that says what it holds: `problems`, `message`, `section`, `conditioning`.
NO_NOUNS = {"found", "said", "told", "given", "chosen"}
NO_NOUN = re.compile(rf"\b(?:{'|'.join(sorted(NO_NOUNS))})\b")
JS_BINDING = re.compile(
    r"\b(?:const|let|var|function)\s+([^=;]*?)\s*(?:=|\bof\b|\bin\b|;|$)|\(([^()]*)\)\s*=>|\b(\w+)\s*=>"
)


def python_locals(source: str) -> Iterator[tuple[int, str]]:
    """(line, name) of every variable and parameter; the fields of a class are no locals."""
    tree = ast.parse(source)
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = {each.target for node in classes for each in node.body if isinstance(each, ast.AnnAssign)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def script_locals(source: str) -> Iterator[tuple[int, str]]:
    """The same of a script, by its declarations and the parameters of its functions."""
    for number, line in enumerate(source.splitlines(), 1):
        for match in JS_BINDING.finditer(line):
            yield from ((number, name) for name in re.findall(r"\w+", " ".join(filter(None, match.groups()))))


def test_locals_are_nouns() -> None:
    scripts = [path for path in files() if path.suffix == ".js" and "assets" in path.relative_to(ROOT).parts]
    sources_of_both = {path: text(path) for path in (*python_files(), *scripts)}
    assert len(scripts) > 20 and len(sources_of_both) - len(scripts) > 800
    # only these are parsed: a local has its name in the source
    named = {path: source for path, source in sources_of_both.items() if NO_NOUN.search(source)}
    names = [
        (path, *each)
        for path, source in named.items()
        for each in (script_locals if path in scripts else python_locals)(source)
    ]
    assert len(names) > 5_000
    assert [f"{path.relative_to(ROOT)}:{line} {name}" for path, line, name in names if name in NO_NOUNS] == []


def test_names_of_locals_are_seen() -> None:
    python = (
        "def f(told, *given):\n    for said in told:\n        found: int = 1\n    return [chosen for chosen in given]\n"
    )
    assert {name for _, name in python_locals(python)} == NO_NOUNS
    assert set(python_locals("class A:\n    given: int = 1\n")) == set()
    script = "const f = (a, told) => 1;\nfor (const said of found) {}\nlet { given } = b;\nx.map((chosen) => 2);\n"
    assert {name for _, name in script_locals(script)} >= {"told", "said", "given", "chosen"}
    assert "found" not in {name for _, name in script_locals(script)}


def test_nothing_prints_but_the_launcher() -> None:
    places = []
    for path in sources():
        # parsing is most of the work: what has no such word calls no such function
        if path.name == "launcher.py" or "print" not in text(path):
            continue
        for node in ast.walk(ast.parse(text(path))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not places


# a test's name anywhere but where it is defined
TEST_NAME = re.compile(r"(?<!def )\btest_")


def test_no_test_module_imports_another() -> None:
    # What two of them need lies in tests/tiny: an edit of one test module must not change what another checks.
    imports = []
    for path in files():
        if path.suffix != ".py" or path.relative_to(ROOT).parts[0] != "tests":
            continue
        source = text(path)
        # only these are parsed: an import has the module's name in it
        if not TEST_NAME.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            modules = names + ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            if isinstance(node, ast.ImportFrom) and not (node.level or modules[-1].split(".")[0] == "tests"):
                continue
            imports += [
                f"{path.relative_to(ROOT)}:{node.lineno} imports {module}"
                for module in modules
                if any(part.startswith("test_") for part in module.split("."))
            ]
    assert not imports


def test_no_orig_mod_is_faked() -> None:
    # A self-referencing `_orig_mod` gives endless recursion in state_dict(). Names may be cleaned of it, never set.
    places = []
    for path in sources():
        if "_orig_mod" not in text(path):
            continue
        for node in ast.walk(ast.parse(text(path))):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(each, ast.Attribute) and each.attr == "_orig_mod" for each in targets):
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node).startswith("setattr(")
                and "'_orig_mod'" in ast.unparse(node)
            ):
                places.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not places


def test_every_pin_has_its_reason() -> None:
    for name in ("requirements.txt", "requirements-gpu.txt", "requirements-test.txt"):
        for line in text(ROOT / name).splitlines():
            if line and not line.startswith("#"):
                assert re.search(r"\S\s+# \S", line) or line.startswith("pytest=="), f"{name}: {line}"


def test_what_people_need_is_pinned_exactly_and_torch_comes_alone() -> None:
    pins = [line.split("#")[0].strip() for line in text(ROOT / "requirements.txt").splitlines() if line[:1].isalpha()]
    assert "torch==2.13.0" in pins
    assert all("==" in pin for pin in pins)
    assert not any(pin.startswith("torchvision") for pin in pins)


def test_the_hook_and_the_tests_use_one_ruff() -> None:
    pin = re.search(r"ruff==(\S+)", text(ROOT / "requirements-test.txt"))
    hook = re.search(r"rev: v(\S+)", text(ROOT / ".pre-commit-config.yaml"))
    assert pin and hook and pin[1] == hook[1]


LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)|(?:src|srcset|href)=\"([^\"#]+)\"")


def test_links_between_the_documents_lead_somewhere() -> None:
    broken = []
    for path in files():
        if path.suffix != ".md":
            continue
        for match in LINK.finditer(text(path)):
            target = match[1] or match[2]
            if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)} -> {target}")
    assert not broken


def ignored(name: str) -> bool:
    """Whether git ignores a path: what people and runs make is not there yet."""
    return subprocess.run(["git", "check-ignore", "-q", name], cwd=ROOT).returncode == 0


def test_the_documents_name_only_what_is_there() -> None:
    # Paths in backticks that begin with one of our folders: a renamed module must not live on in the docs.
    missing = []
    for path in files():
        if path.suffix != ".md":
            continue
        for name in re.findall(r"`((?:backend|gui|presets|assets|tests|docs)/[\w./-]*)`", text(path)):
            if not (ROOT / name).exists() and not ignored(name):
                missing.append(f"{path.relative_to(ROOT)} names {name}")
    assert not missing
