"""A trainer's end in words: what happened, the likely cause, what to change (case R10)."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from backend.base.errors import DiskFull, WriteFailed
from backend.config.schema import by_name
from backend.runs.diagnose import diagnose, explain, last_exceptions
from backend.runs.diagnose_rules import RULES
from backend.runs.errors import RunError
from backend.runs.exit_codes import EXIT_CODES
from tests.tiny.runs import ROOT


def traceback_of(exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "x.py", line 3, in train\n    step()\n    ^^^^^^\n{exception}\n'


# Wordings as torch, Triton, the system and libraries print them, from their sources and from public reports.
KNOWN = [
    (
        "cuda_oom",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total "
        "capacity of 31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, this process has "
        "18.73 GiB memory in use.",
    ),
    (
        "cuda_oom",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacty of 4.00 GiB of which 2.80 GiB is free.",
    ),
    ("cuda_oom", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("cuda_oom", "torch.AcceleratorError: CUDA error: out of memory"),
    ("ram", "MemoryError"),
    (
        "ram",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)",
    ),
    ("ram", "RuntimeError: DataLoader worker (pid 512) is killed by signal: Killed."),
    ("ram", "OSError: [Errno 12] Cannot allocate memory"),
    ("page_file", "OSError: [WinError 1455] The paging file is too small for this operation to complete."),
    (
        "shared_memory",
        "RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that "
        "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
    ),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/runs/lora/state'"),
    (
        "disk_full",
        "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
    ),
    (
        "disk_full",
        "RuntimeError: [enforce fail at inline_container.cc:815] . PytorchStreamWriter failed writing file "
        "data/3: file write failed",
    ),
    ("disk_full", "sqlite3.OperationalError: database or disk is full"),
    (
        "file_in_use",
        "PermissionError: [WinError 32] The process cannot access the file because it is being used by "
        "another process: 'a.safetensors'",
    ),
    ("read_only", "OSError: [Errno 30] Read-only file system: '/mnt/x'"),
    ("permission", "PermissionError: [Errno 13] Permission denied: '/root/x'"),
    ("too_many_files", "OSError: [Errno 24] Too many open files: '/data/1.png'"),
    ("safetensors", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"),
    (
        "safetensors",
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not "
        "fully covered",
    ),
    (
        "checkpoint_file",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
    ),
    ("checkpoint_file", "_pickle.UnpicklingError: invalid load key, '<'."),
    ("picture", "PIL.UnidentifiedImageError: cannot identify image file '/data/fox.jpg'"),
    ("picture", "OSError: image file is truncated (20 bytes not processed)"),
    ("json", "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
    ("encoding", "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x92 in position 3: invalid start byte"),
    (
        "missing_model_file",
        "OSError: Error no file named diffusion_pytorch_model.safetensors found in directory /models/x.",
    ),
    ("missing_model_file", "OSError: We couldn't connect to 'https://huggingface.co' to load the files"),
    ("missing_file", "FileNotFoundError: [Errno 2] No such file or directory: '/data/none'"),
    (
        "weights_mismatch",
        "RuntimeError: Error(s) in loading state_dict for FluxTransformer2DModel:\n\tsize mismatch for x",
    ),
    ("nan", "backend.training.step_log.NotFinite: The gradient became inf at step 5."),
    ("nan", "ValueError: loss is not finite at step 3"),
    ("recompile_limit", "torch._dynamo.exc.FailOnRecompileLimitHit: recompile_limit reached with fullgraph=True."),
    (
        "cuda_graphs",
        "RuntimeError: Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run.",
    ),
    (
        "python_headers",
        "torch._inductor.exc.InductorError: CalledProcessError: main.c:1:10: fatal error: Python.h: No "
        "such file or directory",
    ),
    (
        "c_compiler",
        "torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC "
        "environment variable or set triton.knobs.build.impl.",
    ),
    (
        "c_compiler",
        "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in "
        "torch._inductor.config.cpp.cxx: (None, 'g++')",
    ),
    ("c_compiler", "torch._inductor.exc.InductorError: RuntimeError: Compiler: cl is not found."),
    (
        "triton",
        "torch._inductor.exc.TritonMissing: Cannot find a working triton installation. Either the package "
        "is not installed or it is too old.",
    ),
    ("triton", "ModuleNotFoundError: No module named 'triton'"),
    ("compile_unsupported", "torch._dynamo.exc.Unsupported: Data-dependent branching"),
    ("compile_failed", "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: AssertionError"),
    ("compile_failed", "torch._inductor.exc.InductorError: LoweringException: AssertionError"),
    (
        "driver_old",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update "
        "your GPU driver",
    ),
    ("driver_old", "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    ("no_cuda", "AssertionError: Torch not compiled with CUDA enabled"),
    ("no_gpu", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    ("no_gpu", "RuntimeError: No CUDA GPUs are available"),
    ("gpu_busy", "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("gpu_too_old", "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
    ("gpu_lost", "torch.AcceleratorError: CUDA error: unspecified launch failure"),
    ("gpu_code", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    (
        "mixed_devices",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ),
    ("dtype", "RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'"),
    ("missing_module", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("missing_module", "ModuleNotFoundError: No module named 'bitsandbytes.cuda_setup.paths'"),
    ("missing_library", "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"),
    ("missing_library", "ImportError: DLL load failed while importing _C: The specified module could not be found."),
    ("package_versions", "ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/x/__init__.py)"),
    ("interrupted", "KeyboardInterrupt"),
]


@pytest.mark.parametrize(("kind", "exception"), KNOWN)
def test_known_ends_are_known(kind, exception):
    diagnosis = diagnose("2026-01-01 10:00:00 INFO train: begin\n" + traceback_of(exception), 1)
    assert diagnosis.kind == kind
    assert (
        diagnosis.text
        and diagnosis.cause
        and diagnosis.remedy
        and "{" not in diagnosis.text + diagnosis.cause + diagnosis.remedy
    )
    assert diagnosis.exception.split("\n")[0] == exception.split("\n")[0]


def test_every_rule_is_reached_by_a_known_wording():
    assert {rule.kind for rule in RULES} - {kind for kind, _ in KNOWN} == {"path_too_long", "port"}


def test_the_numbers_are_in_the_sentence():
    text = diagnose(traceback_of(KNOWN[0][1]), 1).text
    assert text == "The GPU ran out of memory: 22.78 GiB more were needed, 12.73 GiB of 31.47 GiB were free."
    assert diagnose(traceback_of(KNOWN[-2][1]), 1).text.startswith("huggingface_hub has no cached_download")


def test_every_setting_that_a_remedy_names_exists():
    sentences = [rule.remedy for rule in RULES] + [entry[3] for entry in EXIT_CODES.values()]
    words = {word for sentence in sentences for word in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", sentence)}
    assert words - set(by_name()) - {"model_index"} == set()
    assert len(words) > 10


def test_a_remedy_never_stands_without_its_sentence():
    for rule in RULES:
        groups = set(rule.pattern.groupindex)
        used = set(re.findall(r"\{(\w+)\}", rule.text + rule.cause + rule.remedy))
        assert used <= groups, rule.kind


@pytest.mark.slow
def test_real_errors_of_real_libraries(tmp_path):
    """Provoked in a process that has torch, Pillow and safetensors, and diagnosed here."""
    code = textwrap.dedent("""
        import io, json, sys
        import torch, safetensors.torch
        from PIL import Image
        from backend.runs.diagnose import explain
        folder = sys.argv[1]
        open(folder + "/bad.safetensors", "wb").write(b"<!DOCTYPE html><html>" * 9)
        open(folder + "/bad.pt", "wb").write(b"PK\\x03\\x04" + b"0" * 99)
        open(folder + "/bad.jpg", "wb").write(b"not a picture")
        picture = io.BytesIO()
        Image.effect_noise((64, 64), 90).save(picture, "jpeg")
        open(folder + "/half.jpg", "wb").write(picture.getvalue()[:900])
        def compiled():
            import torch._inductor.config as c
            c.cpp.cxx = (None, "no-such-compiler")
            torch.compile(lambda x: (x * 2).relu().sum())(torch.ones(8))
        def disk():
            with open("/dev/full", "wb", buffering=0) as stream: stream.write(b"x")
        tries = {
            "safetensors": lambda: safetensors.torch.load_file(folder + "/bad.safetensors"),
            "checkpoint_file": lambda: torch.load(folder + "/bad.pt"),
            "picture": lambda: Image.open(folder + "/bad.jpg"),
            "picture ": lambda: Image.open(folder + "/half.jpg").load(),
            "ram": lambda: torch.empty(10**15),
            "weights_mismatch": lambda: torch.nn.Linear(2, 2).load_state_dict({"weight": torch.ones(3, 3)}),
            "missing_module": lambda: __import__("no_such_package"),
            "missing_file": lambda: open(folder + "/none"),
            "disk_full": disk,
            "c_compiler": compiled,
        }
        if not torch.backends.cuda.is_built():
            tries["no_cuda"] = lambda: torch.ones(1, device="cuda")
        for kind, run in tries.items():
            try:
                run()
            except Exception as error:
                print(json.dumps([kind.strip(), explain(error).kind, f"{type(error).__name__}: {error}"[:300]]))
            else:
                print(json.dumps([kind, "no error", ""]))
    """)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) >= 10
    assert [entry for entry in rows if entry[0] != entry[1]] == []


def test_the_cause_below_a_wrapper_is_found():
    try:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("the state could not be saved") from error
    except RuntimeError as wrapped:
        assert explain(wrapped).kind == "disk_full"
    chained = traceback_of("OSError: [Errno 28] No space left on device") + (
        "\nThe above exception was the direct cause of the following exception:\n\n"
        + traceback_of("RuntimeError: the state could not be saved")
    )
    assert diagnose(chained, 1).kind == "disk_full"
    assert len(last_exceptions(chained)) == 2


def test_errors_that_speak_for_themselves_are_left_their_words():
    diagnosis = explain(RunError("The folder X is empty.", "Choose another."))
    assert (diagnosis.text, diagnosis.remedy) == ("The folder X is empty.", "Choose another.")
    full = explain(DiskFull("No space left for X.", "Free some."))
    assert (full.kind, full.text) == ("disk_full", "No space left for X.")
    numbers = (errno.EROFS, errno.EACCES, errno.ENAMETOOLONG)
    assert [explain(WriteFailed("X.", "", number)).kind for number in numbers] == ["read_only", "not_writable", "said"]


def test_an_unknown_error_is_shown_as_it_is():
    diagnosis = diagnose(traceback_of("pkg.OddError: something odd\nin two lines"), 1)
    assert diagnosis.kind == "unknown" and "pkg.OddError: something odd" in diagnosis.text
    assert diagnosis.exception == "pkg.OddError: something odd\nin two lines"
    assert "log.txt" in diagnosis.remedy
    assert explain(KeyError("x")).text.endswith("KeyError: 'x'")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (-9, "killed"), (137, "killed"), (-15, "interrupted"), (143, "interrupted"), (-11, "crash"), (139, "crash"),
        (-7, "shared_memory"), (-4, "cpu_too_old"), (3221225477, "crash"), (-1073741819, "crash"),
        (0xC000013A, "interrupted"), (0xC0000135, "missing_library"), (0xC000012D, "killed"),
    ],
)  # fmt: skip
def test_exit_codes_of_both_systems(code, kind):
    diagnosis = diagnose("2026-01-01 10:00:00 INFO train: step 5\n", code)
    assert diagnosis.kind == kind and diagnosis.text and diagnosis.cause and diagnosis.remedy


def test_an_error_that_was_survived_is_not_what_killed_it():
    survived = traceback_of("ModuleNotFoundError: No module named 'flash_attn'") + (
        "2026-01-01 10:00:00 INFO train: going on without it\n"
    )
    assert diagnose(survived, -9).kind == "killed"
    assert diagnose(survived, None).kind == "vanished"
    assert diagnose(survived, 1).kind == "missing_module"


def test_a_crash_tells_the_fault_handler_s_words():
    log = 'Fatal Python error: Segmentation fault\n\nCurrent thread 0x0 (most recent call first):\n  File "x.py"'
    diagnosis = diagnose(log, -11)
    assert (diagnosis.kind, diagnosis.exception) == ("crash", "Fatal Python error: Segmentation fault")


def test_a_log_without_a_traceback():
    assert diagnose("error: No space left on device\n", 1).kind == "disk_full"
    last = diagnose("2026-01-01 10:00:00 INFO x: reading\nsomething went wrong\n\n", 3)
    assert "exit code 3" in last.text and "something went wrong" in last.text
    assert "wrote nothing" in diagnose("", 3).text
    assert diagnose("", None).kind == "vanished"


def test_the_last_traceback_counts_and_its_message_ends_where_the_log_goes_on():
    log = (
        traceback_of("MemoryError")
        + "2026-01-01 10:00:00 INFO train: again\n"
        + 'Traceback (most recent call last):\n  File "x", line 1\nValueError: one\n  two\n'
        + "2026-01-01 10:00:01 INFO train: closing\n"
    )
    assert last_exceptions(log) == ["ValueError: one\n  two"]


def test_secrets_are_not_told_again():
    diagnosis = diagnose(traceback_of("ValueError: bad token hf_abcdefghijklmnopqrstuvwxyz"), 1)
    assert "hf_abc" not in repr(diagnosis) and "[hidden]" in diagnosis.exception
    assert "hf_abc" not in repr(explain(ValueError("hf_abcdefghijklmnopqrstuvwxyz")))
