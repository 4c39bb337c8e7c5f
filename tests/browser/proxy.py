"""A small reverse proxy that shows a server below a path, as nginx does with ``proxy_pass http://host:port/;``."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PIECE = 65_536
# What concerns one connection alone is not passed on.
_OF_CONNECTION = ("connection", "transfer-encoding", "keep-alive")


@contextlib.contextmanager
def below(root: str, port: int) -> Iterator[str]:
    """Serve what listens on `port` below the path `root`; gives the address of the page there."""

    class Handler(BaseHTTPRequestHandler):
        def _pass_on(self) -> None:
            if not self.path.startswith(f"{root}/"):
                # A browser asks every host for its icon.
                self.send_error(404) if self.path != "/favicon.ico" else self.send_response(204)
                self.end_headers()
                return
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            with contextlib.suppress(OSError), contextlib.closing(inner):
                inner.request(self.command, self.path.removeprefix(root), body or None, headers)
                answer = inner.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _OF_CONNECTION:
                        self.send_header(name, value)
                self.end_headers()
                # read1: events of a stream pass as they come
                while piece := answer.read1(_PIECE):
                    self.wfile.write(piece)
                    self.wfile.flush()

        do_GET = do_POST = do_HEAD = _pass_on

        def log_message(self, *_: object) -> None:
            """Nothing on the terminal of a test."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{root}/"
    finally:
        server.shutdown()
        server.server_close()
