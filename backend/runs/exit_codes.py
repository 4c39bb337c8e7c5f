"""Lists why a process ended without an exception, by its exit code."""

from __future__ import annotations

from backend.runs.diagnose_rules import LESS_RAM

# kind, text, cause, remedy, as in `Diagnosis`.
Entry = tuple[str, str, str, str]

_RAM_KILL = (
    "killed",
    "The system killed the trainer.",
    "Most likely the machine ran out of memory (RAM): the system then ends the process that uses most.",
    LESS_RAM + " Then resume.",
)
_CRASH = (
    "crash",
    "The trainer crashed inside a compiled library.",
    "A driver, a GPU kernel or a damaged package; overclocked or faulty memory shows the same way.",
    "Update the GPU driver; set attention to sdpa and compile to false to find the part. The end of the log shows "
    "the place.",
)
_WINDOW = (
    "interrupted",
    "The run was ended from outside.",
    "Ctrl+C, a closed terminal, a log-off or a shutdown.",
    "Resume the run when you like.",
)

# By signal number on POSIX, by NTSTATUS on Windows.
EXIT_CODES: dict[int, Entry] = {
    9: _RAM_KILL,
    15: (
        "interrupted",
        "The run was ended from outside.",
        "The system was shut down, or a person or program ended it.",
        "Resume the run when you like.",
    ),
    1: _WINDOW,
    2: _WINDOW,
    11: _CRASH,
    6: _CRASH,
    8: _CRASH,
    7: (
        "shared_memory",
        "The trainer lost memory that it was using.",
        "Shared memory (/dev/shm in a container) or the disk under a mapped file is full.",
        "Set loader_workers to 0, free some space, or start the container with a larger --shm-size.",
    ),
    4: (
        "cpu_too_old",
        "The processor does not support an instruction that was used.",
        "A package was built for a newer processor.",
        "Install builds of torch and its companions for this processor.",
    ),
    0xC0000005: _CRASH,
    0xC0000409: _CRASH,
    0xC00000FD: _CRASH,
    0xC000001D: (
        "cpu_too_old",
        "The processor does not support an instruction that was used.",
        "A package was built for a newer processor.",
        "Install builds of torch and its companions for this processor.",
    ),
    0xC000013A: _WINDOW,
    0x40010004: _WINDOW,
    0xC0000017: _RAM_KILL,
    0xC000012D: _RAM_KILL,
    0xC0000135: (
        "missing_library",
        "A library (DLL) was not found.",
        "The Visual C++ runtime is missing or a package is damaged.",
        "Install Microsoft's Visual C++ Redistributable (x64), then start launcher.py again.",
    ),
}
