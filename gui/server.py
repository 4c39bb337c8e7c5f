"""Starts the page's server: address and port, who may reach it, and the messages in the terminal."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from backend.base.library_imports import library_imports
from gui.password import password_fault
from gui.security import is_loopback
from gui.sub_path import read_root

log = logging.getLogger(__name__)

DEFAULT_PORT = 7860
_PORTS_TRIED = 20
PASSWORD_VARIABLE = "MONOTILE_PASSWORD"
ROOT_VARIABLE = "GRADIO_ROOT_PATH"

Write = Callable[[str], object]


def parser() -> argparse.ArgumentParser:
    """The page's command line."""
    arguments = argparse.ArgumentParser(
        prog="launcher.py gui", description="Open the page that sets up and shows runs."
    )
    arguments.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (127.0.0.1: only this machine can reach the page)"
    )
    arguments.add_argument(
        "--port", type=int, default=None, help=f"port to listen on (default: {DEFAULT_PORT}, or the next free one)"
    )
    arguments.add_argument("--no-browser", action="store_true", help="do not open a browser")
    arguments.add_argument(
        "--password",
        help="password of the page; needed when other machines can reach it. "
        f"{PASSWORD_VARIABLE} in the environment does the same, and does not show in the list of processes",
    )
    arguments.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="another host name that the page answers to"
    )
    arguments.add_argument(
        "--root-path",
        metavar="PATH",
        help="where a reverse proxy shows the page: a path such as /monotile, or the whole address. "
        f"{ROOT_VARIABLE} in the environment does the same",
    )
    arguments.add_argument("--data", type=Path, help="folder for presets and the draft, instead of the project's own")
    return arguments


def main(argv: Sequence[str] | None = None, write: Write | None = None) -> int:
    """Serve the page until it is interrupted; returns 0 when it ended well, 2 when it could not start."""
    options = parser().parse_args(argv)
    say = write or _to_terminal
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for noisy in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Taken out of the environment in any case: what the page starts must not inherit it.
    from_environment = os.environ.pop(PASSWORD_VARIABLE, None)
    password = options.password or from_environment
    remote = not is_loopback(options.host)
    if remote and not password:
        say(
            f"{options.host} can be reached by other machines, and whoever reaches the page can start programs here. "
            f"Give a password: --password WORD, or the environment variable {PASSWORD_VARIABLE}. "
            "To use the page from another machine without one, keep 127.0.0.1 and use a tunnel: "
            "ssh -L 7860:127.0.0.1:7860 THIS-MACHINE."
        )
        return 2
    if remote and password and (fault := password_fault(password)):
        say(f"{options.host} can be reached by other machines. {fault}")
        return 2
    try:
        options.root_path = options.root_path or os.environ.get(ROOT_VARIABLE)
        read_root(options.root_path)
        listener, note = listen(options.host, options.port)
    except (OSError, ValueError) as wrong:
        say(str(wrong))
        return 2
    if note:
        say(note)
    with contextlib.closing(listener):
        return _serve(options, listener, remote, password, say)


def listen(host: str, port: int | None) -> tuple[socket.socket, str]:
    """A listening socket, and a sentence when it is not on the port that was asked for.

    Raises OSError with a sentence when the host is not this machine's, or no port near is free.
    """
    first = DEFAULT_PORT if port is None else port
    if not 0 <= first <= 65535:
        raise OSError(f"{first} is not a valid port. Choose one from 1024 to 65535.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(first, min(first + _PORTS_TRIED, 65536)) if first else (0,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":
            # Only skips the wait after a restart; on Windows the same flag would let two servers share a port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(128)
        except PermissionError:
            listener.close()
            raise OSError(f"Port {candidate} needs administrator rights. Choose one above 1023: --port 7860.") from None
        except OSError as wrong:
            listener.close()
            if not _in_use(wrong):
                raise OSError(
                    f"This machine can't listen on {host}: {wrong.strerror or wrong}. Check --host."
                ) from None
            continue
        note = ""
        if candidate != first:
            note = f"Port {first} is in use, maybe by another Monotile. The page uses port {candidate} instead."
        return listener, note
    raise OSError(f"Ports {first} to {first + _PORTS_TRIED - 1} are all in use. Choose another with --port.")


def _in_use(error: OSError) -> bool:
    import errno

    return error.errno == errno.EADDRINUSE or getattr(error, "winerror", None) in (10013, 10048)


def _serve(options: argparse.Namespace, listener: socket.socket, remote: bool, password: str | None, say: Write) -> int:
    # Imported late: the checks above answer at once, Gradio takes seconds.
    say("Opening the page…")
    import uvicorn

    # Sends nothing to anybody about the page.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    # The form is made within: it stays as Gradio's modules do.
    with _no_proxies(), library_imports():
        from gui.app import Home, make_app

        home = Home.at(options.data.absolute()) if options.data else Home()
        app = make_app(home, remote=remote, names=options.allow_host, password=password, root_path=options.root_path)
    # An open page keeps a connection; without a limit it would keep the server from ending at Ctrl+C.
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
    server = uvicorn.Server(config)
    address = page_address(options.host, listener.getsockname()[1])

    def announce() -> None:
        while not server.started and not server.should_exit:
            time.sleep(0.05)
        if not server.started:
            return
        say(f"Monotile is at {address}   (Ctrl+C stops the page; runs continue)")
        if remote:
            say(
                "Other machines can reach it with the password. "
                "The connection is not encrypted: use it only in a network that you trust."
            )
        if not options.no_browser:
            # Without a display there is no browser to open, and nothing to complain about.
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)

    threading.Thread(target=announce, name="announce", daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    return 0


@contextlib.contextmanager
def _no_proxies() -> Iterator[None]:
    """Hide the environment's proxies: Gradio makes HTTP clients as it starts, and one for SOCKS needs another package.

    They are never used, since the page asks no other machine. Runs and the browser get the environment as it was.
    """
    names = ("NO_PROXY", "no_proxy")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "*"))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def page_address(host: str, port: int) -> str:
    """The address to type into a browser on this machine."""
    name = "127.0.0.1" if host in ("0.0.0.0", "") else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/"


def _to_terminal(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
