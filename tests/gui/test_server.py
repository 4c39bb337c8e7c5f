"""The server's own words: which port, which address, and who may reach it."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import pytest

from backend.runs import supervise
from backend.runs.folder import Run
from gui import server
from gui.sub_path import read_root


def test_a_port_in_use_is_said_and_the_next_one_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        listener, note = server.listen("127.0.0.1", port)
        with listener:
            assert listener.getsockname()[1] > port
            assert f"Port {port} is in use" in note and str(listener.getsockname()[1]) in note


def test_a_free_port_needs_no_words() -> None:
    listener, note = server.listen("127.0.0.1", 0)
    with listener:
        assert note == "" and listener.getsockname()[1] > 0


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [("127.0.0.1", 70000, "not a valid port"), ("203.0.113.7", 7860, "can't listen on 203.0.113.7")],
)
def test_what_cannot_be_listened_on_is_named(host: str, port: int, words: str) -> None:
    with pytest.raises(OSError, match=words):
        server.listen(host, port)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "my-machine"])
def test_a_page_for_other_machines_needs_a_password(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.PASSWORD_VARIABLE, raising=False)
    lines: list[str] = []
    assert server.main(["--host", host, "--no-browser"], lines.append) == 2
    assert len(lines) == 1 and "--password" in lines[0] and host in lines[0]


def test_a_short_password_and_an_odd_path_are_refused_before_anything_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(server.PASSWORD_VARIABLE, raising=False)
    lines: list[str] = []
    assert server.main(["--host", "0.0.0.0", "--password", "x", "--no-browser"], lines.append) == 2
    assert server.main(["--root-path", "a b", "--no-browser"], lines.append) == 2
    assert "at least 8" in lines[0] and "/monotile" in lines[1]


@pytest.mark.parametrize(
    ("text", "path", "host"),
    [(None, "", ""), ("/", "", ""), ("monotile", "/monotile", ""), ("/a/b/", "/a/b", ""),
     ("https://example.org/a", "/a", "example.org"), ("https://example.org", "", "example.org")],
)  # fmt: skip
def test_the_root_path_is_a_path_or_an_address(text: str | None, path: str, host: str) -> None:
    root = read_root(text)
    assert (root.path, root.host) == (path, host)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:7860/"),
        ("localhost", "http://localhost:7860/"),
        ("0.0.0.0", "http://127.0.0.1:7860/"),
        ("::1", "http://[::1]:7860/"),
        ("::", "http://[::1]:7860/"),
    ],
)
def test_the_address_can_be_opened_on_this_machine(host: str, address: str) -> None:
    assert server.page_address(host, 7860) == address


def test_the_password_never_stays_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the page starts inherits its environment, trainers above all."""
    monkeypatch.setenv(server.PASSWORD_VARIABLE, "from-the-environment")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(server, "_PORTS_TRIED", 1)
        taken.listen()
        lines: list[str] = []
        arguments = ["--password", "given", "--port", str(taken.getsockname()[1]), "--no-browser"]
        assert server.main(arguments, lines.append) == 2
    assert server.PASSWORD_VARIABLE not in os.environ

    monkeypatch.setenv(server.PASSWORD_VARIABLE, "from-the-environment")
    run = Run.create_empty(tmp_path, "fox")
    code = f"import os; print({server.PASSWORD_VARIABLE!r} in os.environ)"
    supervise.start(None, run, command=[sys.executable, "-c", code])
    until = time.monotonic() + 30
    while "exit_code" not in run.record() and time.monotonic() < until:
        time.sleep(0.02)
    assert run.log_path.read_text().strip() == "False"
