"""Files are whole or absent, whatever happens while they are written (cases L4, full disk)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from backend.base.errors import DiskFull, WriteFailed
from backend.base.files import (
    atomic_path,
    human_bytes,
    is_disk_full,
    locked,
    remove_abandoned,
    unused_path,
    write_atomic,
)

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *arguments: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_writes_bytes_and_utf8_text_as_they_are(tmp_path):
    write_atomic(tmp_path / "a", b"\x00\r\n\xff")
    write_atomic(tmp_path / "b", "ärger\r\n\n")
    assert (tmp_path / "a").read_bytes() == b"\x00\r\n\xff"
    assert (tmp_path / "b").read_bytes() == "ärger\r\n\n".encode()
    write_atomic(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("moment", ["os.replace", "os.fsync"])
def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path, moment):
    target = tmp_path / "lora.safetensors"
    target.write_bytes(b"the old one")
    killed = python(
        "import os, signal, sys\n"
        "from backend.base.files import write_atomic\n"
        f"{moment} = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomic(sys.argv[1], b'x' * 100_000)\n",
        target,
    )
    assert killed.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"the old one"
    # The half-made file is there under a name that nobody takes for a LoRA, and goes at the next look.
    assert len(names(tmp_path)) == 2 and not list(tmp_path.glob("*.safetensors"))[1:]
    assert len(remove_abandoned(tmp_path)) == 1
    assert names(tmp_path) == ["lora.safetensors"]


def test_files_that_a_living_process_writes_are_not_abandoned(tmp_path):
    mine = tmp_path / f".x.{os.getpid()}-0123abcd.part"
    other = tmp_path / ".notes.part"
    mine.touch()
    other.touch()
    gone = next(pid for pid in range(2**22, 2, -1) if not psutil.pid_exists(pid))
    (tmp_path / f".x.{gone}-0123abcd.part").touch()
    folder = tmp_path / "state" / f".step-00000007.{gone}-0123abcd.part"
    folder.mkdir(parents=True)
    (folder / "lora.safetensors").touch()
    assert set(remove_abandoned(tmp_path)) == {tmp_path / f".x.{gone}-0123abcd.part", folder}
    assert mine.exists() and other.exists() and not folder.exists()


def test_data_reach_the_disk_before_the_name_does(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (order.append(name), real(*a))[1])
    write_atomic(tmp_path / "a", b"1")
    assert order == ["fsync", "replace", "fsync"]  # the file, its name, the folder


def test_a_full_disk_is_said_and_the_old_file_stays(tmp_path):
    """On a real disk of 64 KB; needs the right to mount one, which CI and most users' machines give."""
    code = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from backend.base.files import write_atomic\n"
        "from backend.base.errors import DiskFull\n"
        "folder = Path(sys.argv[1]); target = folder / 'state.bin'\n"
        "write_atomic(target, b'old')\n"
        "try:\n"
        "    write_atomic(target, b'x' * 1_000_000)\n"
        "except DiskFull as error:\n"
        "    assert target.read_bytes() == b'old' and os.listdir(folder) == ['state.bin']\n"
        "    write_atomic(target, b'still works')\n"
        "    print(error)\n"
    )
    mount = f'mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip("no right to mount a small disk here")
    assert done.returncode == 0, done.stderr
    assert "needs 1.0 MB" in done.stdout and "The file that was there is unchanged." in done.stdout
    assert "Free some space" in done.stdout


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_only_at_the_flush(tmp_path, monkeypatch, number):
    target = tmp_path / "a"
    target.write_text("old")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    with pytest.raises(DiskFull) as caught:
        write_atomic(target, "new")
    assert caught.value.errno == errno.ENOSPC and str(target) in caught.value.text and caught.value.remedy
    assert target.read_text() == "old" and names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "words",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",  # safetensors, Linux
        "Error while serializing: I/O error: There is not enough space on the disk. (os error 112)",  # Windows
        "database or disk is full",  # sqlite
    ],
)
def test_libraries_that_say_full_only_in_words(tmp_path, words):
    (tmp_path / "a").write_text("old")
    with pytest.raises(DiskFull), atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("half")
        raise RuntimeError(words)
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


def test_other_errors_of_the_body_pass_as_they_are(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyError, match="'b'"), atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("half")
        raise KeyError("b")
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]
    assert not is_disk_full(KeyError("b"))


def test_a_file_too_large_for_the_disk_is_named(tmp_path):
    output = python(
        "import resource, signal, sys\n"
        "from backend.base.files import write_atomic\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomic(sys.argv[1], b'x' * 5000)\n"
        "except OSError as error: print(type(error).__name__, error)\n",
        tmp_path / "big",
    ).stdout
    assert output.startswith("WriteFailed") and "can't hold a file of this size" in output
    assert names(tmp_path) == []


def test_a_missing_folder_is_named_with_its_mend(tmp_path):
    with pytest.raises(WriteFailed, match="Make the folder") as caught:
        write_atomic(tmp_path / "none" / "a", b"")
    assert not isinstance(caught.value, DiskFull) and str(tmp_path / "none" / "a") in str(caught.value)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_unused_path_never_gives_one_that_exists(tmp_path):
    wanted = tmp_path / "toy-000010.safetensors"
    assert unused_path(wanted) == wanted
    wanted.touch()
    (tmp_path / "toy-000010-2.safetensors").symlink_to(tmp_path / "gone")
    assert unused_path(wanted).name == "toy-000010-3.safetensors"


def test_a_lock_keeps_processes_apart(tmp_path):
    counter = tmp_path / "count"
    counter.write_text("0")
    code = (
        "import sys\nfrom pathlib import Path\nfrom backend.base.files import locked\n"
        "path = Path(sys.argv[1])\n"
        "for _ in range(200):\n"
        "    with locked(path.with_suffix('.lock')):\n"
        "        path.write_text(str(int(path.read_text()) + 1))\n"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code, str(counter)], cwd=ROOT) for _ in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    assert counter.read_text() == "600"


def test_a_lock_that_is_held_is_given_up_on(tmp_path):
    held, wanted = locked(tmp_path / "lock"), locked(tmp_path / "lock", timeout_s=0.05)
    with held, pytest.raises(WriteFailed, match="held by another"), wanted:
        pass


def test_sizes_for_people():
    assert [human_bytes(n) for n in (0, 999, 24_000_000, 3.2e12)] == ["0 bytes", "999 bytes", "24.0 MB", "3.2 TB"]


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_disk_without_locks_is_used_without(tmp_path, monkeypatch, number):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    with locked(tmp_path / "run.json.lock", timeout_s=0.1):
        write_atomic(tmp_path / "run.json", "{}")
    assert (tmp_path / "run.json").read_text() == "{}"
