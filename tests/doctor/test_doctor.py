"""The doctor: each finding with its state and mend, and the proof that compiling works, on this real machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backend.base.errors import Refused
from backend.config.packages import about_package, install_remedy, load_problem
from backend.doctor import __main__ as doctor
from backend.doctor import cache
from backend.doctor.checks import Check, attention, quantised
from backend.memory import quantization_support
from backend.optimizers.build import make_optimizer
from backend.setup import toolchain
from backend.shapes.attention_routes import package_problem, route_report
from tests.tiny.page_words import left_in_english, needs_node

GPU = {
    "torch": "2.13.0+cu130",
    "cuda_build": "13.0",
    "gpu": {"name": "NVIDIA H100", "capability": [9, 0], "bytes": 80 * 2**30, "bf16": True},
    "routes": {"sdpa": None, "flash2": "the package flash-attn is not installed", "fa3": "FlashAttention 3 is missing"},
}


COMMANDS = r"pip install [\w -]+|apt install [\w .+-]+|Desktop development with C|wandb login"
"""What the page's translations leave as it is."""


def words(checks: list[Check]) -> list[str]:
    """What the page shows of the checks."""
    parts = (text for check in checks for text in (check.name, check.text, check.remedy))
    return list(dict.fromkeys(filter(None, parts)))


def by_name(result: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in result}


@pytest.mark.slow
def test_this_machine_is_proven_in_a_subprocess(tmp_path: Path) -> None:
    lines: list[str] = []
    code = doctor.main(["--json", "--cache-dir", str(tmp_path)], lines.append)
    checks = by_name([Check(**json.loads(line)) for line in lines])
    assert code == 0 and checks["Compile"].state == "ok" and "forward and backward on" in checks["Compile"].text
    assert {
        "Python",
        "Packages",
        "torch",
        "GPU",
        "Triton",
        "Compile cache",
        "Disk",
        "Attention",
        "Quantised base",
    } <= checks.keys()
    assert "usable here: sdpa" in checks["Attention"].text
    assert left_in_english(words(list(checks.values())), COMMANDS) == []
    assert list(tmp_path.iterdir()) == [], "the proof leaves nothing behind"


@pytest.mark.slow
def test_a_broken_compiler_fails_with_its_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    check = doctor._proof(tmp_path)
    assert check.state == "fail" and check.text.startswith("compiling failed: ")
    assert check.remedy == toolchain.compiler_remedy() != ""


@pytest.mark.slow
def test_a_cache_folder_with_a_space_is_told_to_be_the_cause(tmp_path: Path) -> None:
    spaced = tmp_path / "a b"
    spaced.mkdir()
    check = doctor._proof(spaced)
    assert check.state == "fail" and "fatal error" in check.text, "what the compiler said, not what torch said of it"
    assert check.remedy == toolchain.folder_remedy()


def test_a_compiler_that_stumbles_over_a_path_is_not_to_be_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "C++ compile error: g++: fatal error: input file '/tmp/a' is the same as output file"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert toolchain.remedy_of(words) == toolchain.compiler_remedy() and list(doctor._install()) == []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/a b/i")
    assert toolchain.remedy_of(words) == toolchain.folder_remedy()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/tmp/ab/i")
    monkeypatch.setattr(toolchain, "torch_folder", lambda: Path("/home/j/my tools/.venv/torch"))
    assert toolchain.remedy_of(words) == toolchain.install_remedy()
    (check,) = doctor._install()
    assert check.state == "warn" and "/home/j/my tools/.venv/torch has a space in it" in check.text
    assert check.remedy == toolchain.install_remedy()


def test_triton_is_not_to_be_installed_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "CppCompileError: /root/.triton/cache/x.cpp"
    monkeypatch.setattr(toolchain, "has_triton", lambda: False)
    assert toolchain.remedy_of(words) == toolchain.triton_remedy()
    monkeypatch.setattr(toolchain, "has_triton", lambda: True)
    assert toolchain.remedy_of(words) == toolchain.compiler_remedy()


def test_torch_that_does_not_load_or_is_old_is_told() -> None:
    assert (
        doctor._torch(None, "ImportError: libcudart.so.13").text == "torch does not load: ImportError: libcudart.so.13"
    )
    assert doctor._torch({"error": "OSError: DLL"}, "").state == "fail"
    old = doctor._torch({"torch": "2.4.1"}, "")
    assert old.state == "warn" and "compiling is skipped" in old.text and "2.11 or newer" in old.remedy


def test_gpu_states() -> None:
    good = by_name(doctor._gpu(GPU, "580.1"))
    assert good["GPU"].text == "NVIDIA H100, 80 GiB, compute capability 9.0" and good["Driver"].text == "NVIDIA 580.1"
    assert "GPUs" not in good
    several = {**GPU, "gpus": [{"name": "NVIDIA H100", "bytes": 80 * 2**30}] * 2}
    listed = by_name(doctor._gpu(several, "580.1"))["GPUs"].text
    assert listed.startswith("2, ") and "1: NVIDIA H100, 80 GiB" in listed and "num_processes" in listed
    assert doctor._gpu({"cuda_build": None}, "580.1")[0].state == "fail"
    assert "without CUDA" in doctor._gpu({"cuda_build": None}, "580.1")[0].text
    assert "does not work with this torch (CUDA 13.0)" in doctor._gpu({"cuda_build": "13.0"}, "400.2")[0].text
    assert doctor._gpu({"cuda_build": None}, None)[0].state == "warn"
    intel = doctor._gpu({"cuda_build": None, "torch": "2.13.0+xpu"}, None)[0]
    assert intel.state == "warn" and "Intel GPUs, which Monotile can't use" in intel.text
    old = doctor._gpu({"gpu": GPU["gpu"] | {"bf16": False}}, None)[0]
    assert old.state == "warn" and "fp16" in old.remedy


def test_each_unusable_attention_route_is_named() -> None:
    checks = by_name(attention(GPU))
    assert checks["Attention flash2"].remedy == "Optional: pip install flash-attn"
    assert checks["Attention fa3"].state == "warn" and "Attention sdpa" not in checks


def test_without_a_card_one_line_names_every_attention_route() -> None:
    (check,) = attention({"routes": route_report(torch.device("cpu"), torch.float32)})
    assert check.state == "ok" and "usable here: sdpa; " in check.text
    assert "flash2, fa3, fa4, varlen need an NVIDIA GPU" in check.text
    assert "flex attention has no backward pass on the CPU" in check.text


def test_what_a_quantised_base_lacks_is_named_with_its_mend() -> None:
    words = {"nf4": "nf4 needs the package bitsandbytes, which is not installed", "int8": "", "fp8": "fp8 needs Ada"}
    nf4, fp8 = quantised({"quantised": words})
    assert (nf4.state, nf4.text, nf4.remedy) == ("warn", words["nf4"], "Optional: pip install bitsandbytes")
    assert fp8.text == "fp8 needs Ada" and "bf16" in fp8.remedy
    assert [check.state for check in quantised({"quantised": dict.fromkeys(words, "")})] == ["ok"]
    on_gpu = {"quantised": dict.fromkeys(words, ""), "gpu": {"name": "a GPU"}}
    with_kernels, without = (
        quantised({**on_gpu, "packages": {"triton": lacks}})[0].text for lacks in (None, "is not installed")
    )
    assert "Triton" in without and "Triton" not in with_kernels


@needs_node
def test_every_check_is_shown_in_the_pages_language(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = "is installed but does not load (ImportError: libcudart.so.12)"
    lacking = {"tensorboard": None, "pynvml": "is not installed", "came": broken}
    cpu = {"routes": route_report(torch.device("cpu"), torch.float32)}
    gpu = {**GPU, "packages": {"triton": broken}, "gpus": [GPU["gpu"]] * 2}
    gpu["routes"] = {
        "sdpa": None,
        "flash2": about_package("the package flash-attn", "is not installed"),
        "fa4": about_package("the package flash-attn-4", broken),
        "flex": "flash2 attention needs an Ampere GPU (8.0) or newer, and this one is 7.5",
    }
    checks = [doctor._python(), doctor._packages()]
    checks += [doctor._torch(None, "OSError: DLL"), doctor._torch({"torch": "2.4"}, "")]
    checks += doctor._gpu(gpu, "580.1") + doctor._gpu({"gpu": GPU["gpu"] | {"bf16": False}}, None)
    for facts, driver in (
        ({"cuda_build": None}, "580.1"),
        ({"cuda_build": "13.0"}, "400.2"),
        ({"cuda_build": None}, None),
        ({"cuda_build": None, "torch": "2.13.0+xpu"}, None),
    ):
        checks += doctor._gpu(facts, driver)
    for packages in (lacking, {"wandb": None}, {"wandb": "is not installed"}):
        checks += doctor._optional(packages)
    checks += doctor._wandb(None)
    checks += [*attention(cpu), *attention(gpu)]
    checks += quantised(
        {"quantised": {"nf4": quantization_support.quantization_problem("nf4", "bf16", torch.device("cpu"))}}
    )
    checks += quantised({"quantised": {}}) + quantised({**gpu, "quantised": {}})
    checks += [*doctor._toolchain(True), *doctor._toolchain(True, broken), *doctor._toolchain(False)]
    spaced = tmp_path / "a b"
    for folder in (tmp_path, spaced):
        checks += doctor._disk(str(folder))[0]
    monkeypatch.setattr(toolchain, "compiler", lambda kind="cpp": None)
    monkeypatch.setattr(toolchain, "has_triton", lambda: False)
    monkeypatch.setattr(toolchain, "python_header", lambda: None)
    monkeypatch.setattr(toolchain, "torch_folder", lambda: spaced)
    checks += [*doctor._toolchain(True), *doctor._install()]
    monkeypatch.setattr(toolchain, "is_windows", lambda: True)
    monkeypatch.setattr(toolchain, "msvc", lambda: None)
    checks += doctor._toolchain(True)
    assert left_in_english(words(checks), COMMANDS) == [] and len(checks) > 40


@pytest.fixture
def odd_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that come first: two that are installed and do not load."""
    for name in ("bitsandbytes", "flash_attn", "odd_optimizer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("import nothing_of_this_name")
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "flash_attn" / "cute").mkdir()
    (tmp_path / "flash_attn" / "cute" / "interface.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_package_that_does_not_load_is_not_told_to_be_missing(
    odd_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("bitsandbytes", "flash_attn", "flash_attn.cute"):
        problem = load_problem(module)
        assert problem == "is installed but does not load (ModuleNotFoundError: No module named 'nothing_of_this_name')"
        assert install_remedy(module, problem).startswith("Install what it needs: pip install")
        broken = "is installed but does not load (ImportError: undefined symbol: _ZN3c10)"
        assert "--force-reinstall" in install_remedy(module, broken)
    assert load_problem("nothing_of_this_name") == load_problem("os.nothing") == "is not installed"
    assert load_problem("json.decoder") is None
    wanted = load_problem("bitsandbytes")
    assert (
        quantization_support.quantization_problem("nf4", "bf16", torch.device("cpu"))
        == f"nf4 needs the package bitsandbytes, which {wanted}"
    )
    with pytest.raises(Refused, match="needs odd_optimizer, which is installed but does not load"):
        make_optimizer("odd_optimizer.Adam", [], learning_rate=1, weight_decay=0, betas=(0.9, 0.9), eps=0)
    package_problem.cache_clear()
    assert "is installed but does not load" in (package_problem("fa4") or "")
    package_problem.cache_clear()


def test_the_doctor_tells_what_loads_what_lacks_and_what_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "is installed but does not load (ImportError: libcudart.so.12)"
    ok, warn = doctor._optional({"tensorboard": None, "triton": broken, "pynvml": "is not installed", "came": broken})
    assert (ok.state, ok.text) == ("ok", "installed: tensorboard; not installed: pynvml")
    assert (warn.state, warn.text) == ("warn", f"came {broken}") and "--force-reinstall" in warn.remedy
    monkeypatch.setattr(toolchain, "has_triton", lambda: True)
    triton = by_name(list(doctor._toolchain(True, broken)))["Triton"]
    assert (triton.state, broken in triton.text) == ("fail", True)


def test_missing_tools_are_named_with_their_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "compiler", lambda kind="cpp": None)
    monkeypatch.setattr(toolchain, "has_triton", lambda: False)
    monkeypatch.setattr(toolchain, "python_header", lambda: None)
    checks = by_name(list(doctor._toolchain(on_gpu=True)))
    assert {name: check.state for name, check in checks.items()} == {
        "Triton": "fail",
        "C compiler": "fail",
        "Python headers": "fail",
    }
    assert all(check.remedy for check in checks.values())
    on_cpu = by_name(list(doctor._toolchain(on_gpu=False)))
    assert on_cpu["C++ compiler"].state == "fail" and on_cpu["Triton"].state == "ok"


def test_windows_is_told_of_its_own_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "is_windows", lambda: True)
    monkeypatch.setattr(toolchain, "msvc", lambda: None)
    monkeypatch.setattr(toolchain, "compiler", lambda kind="cpp": None)
    monkeypatch.setattr(toolchain, "has_triton", lambda: False)
    checks = by_name(list(doctor._toolchain(on_gpu=True)))
    assert "triton-windows" in checks["Triton"].remedy and checks["C compiler"].state == "warn"
    assert checks["MSVC"].state == "warn" and checks["MSVC"].remedy


def test_disk_and_cache_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "a b"
    checks, folder = doctor._disk(str(spaced))
    assert folder == spaced and checks[0].state == "warn" and "has a space" in checks[0].text
    usage = doctor.shutil.disk_usage(tmp_path)._replace(free=int(5e8))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert by_name(doctor._disk(str(tmp_path))[0])["Disk"].state == "fail"
    blocked = tmp_path / "file"
    blocked.write_text("x")
    assert doctor._disk(str(blocked / "c"))[0][0].state == "fail"


def test_a_hanging_probe_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*args, **kwargs):
        raise subprocess.TimeoutExpired(args[0], kwargs["timeout"])

    monkeypatch.setattr(doctor.subprocess, "run", hang)
    assert doctor._probe("facts", 3).error == "no answer within 3 s"


def test_doctor_is_torch_free() -> None:
    code = "import sys, backend.doctor.__main__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_cache_commands(tmp_path: Path) -> None:
    lines: list[str] = []
    at = ["--cache-dir", str(tmp_path / "c")]
    assert cache.main(at, lines.append) == 0 and "0 bytes in 0 files" in lines[-1]
    assert cache.main([*at, "export", str(tmp_path / "k.zip")], lines.append) == 0
    assert (
        cache.main([*at, "import", str(tmp_path / "k.zip")], lines.append) == 0 and "in the cache already" in lines[-1]
    )
    assert (
        cache.main([*at, "clear"], lines.append) == 0 and lines[-1].startswith("Cleared ") and "in 1 files" in lines[-1]
    )
    assert cache.main([*at, "import", str(tmp_path / "missing.zip")], lines.append) == 1
