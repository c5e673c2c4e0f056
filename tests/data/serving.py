"""A local HTTP server that misbehaves as told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@dataclass
class Server:
    """What is served, how, and what was asked for.

    Attributes:
        url: of the server, without a path.
        content: what every path holds.
        faults: what goes wrong, one for each request; where none is left, all is well. ``drop``: the connection ends
            in the middle; ``drop-unsized``: so, and no length was given; ``wrong``: other content; ``stall``: silent
            in the middle; ``whole``: Range is ignored; ``redirect``; or the number of an HTTP error.
        requests: of each request its path and its Range, or an empty string.
        sent: bytes of content that were sent in all.
    """

    url: str
    content: bytes
    faults: list[str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    closing: Event = field(default_factory=Event)


@contextmanager
def serve(content: bytes) -> Iterator[Server]:
    """Serve ``content`` under every path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802, the name is the library's
            requested = self.headers.get("Range", "")
            server.requests.append((self.path, requested))
            fault = server.faults.pop(0) if server.faults else ""
            if fault.isdigit():
                return self.send_error(int(fault))
            if fault == "redirect":
                self.send_response(302)
                self.send_header("Location", "/moved")
                return self.end_headers()
            body = bytes(len(server.content)) if fault == "wrong" else server.content
            start = 0 if fault == "whole" or not requested else int(requested.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            if fault != "drop-unsized":
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            end = start + (len(body) - start) // 2 if fault in ("drop", "drop-unsized", "stall") else len(body)
            self.wfile.write(body[start:end])
            server.sent += end - start
            if fault == "stall":
                self.wfile.flush()
                server.closing.wait(5)
            return None

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_address[1]}", content)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        http.shutdown()
        http.server_close()
        thread.join()
