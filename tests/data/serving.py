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
            in the middle of the body; ``drop-unsized``: so, and no length was given; ``drop-chunked``: so, of a
            chunked body; ``drop-early``: before any answer; ``wrong``: other content; ``stall``: silent in the middle
            until ``go`` is set; ``whole``: Range is ignored; ``shifted``: another range than the one asked for;
            ``gzip``: it claims a Content-Encoding; ``badlength``: Content-Length is no number; ``redirect``;
            ``loop``: a redirect to itself; or the number of an HTTP error.
        retry_after: the header of this name in the answer to an HTTP error, if there is one.
        requests: of each request its path and its Range, or an empty string.
        sent: bytes of content that were sent in all.
        go: ends every silence.
    """

    url: str
    content: bytes
    faults: list[str] = field(default_factory=list)
    retry_after: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    go: Event = field(default_factory=Event)


@contextmanager
def serve(content: bytes) -> Iterator[Server]:
    """Serve ``content`` under every path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802, the name is the library's
            requested = self.headers.get("Range", "")
            server.requests.append((self.path, requested))
            fault = server.faults.pop(0) if server.faults else ""
            if fault.isdigit():
                self.send_response(int(fault))
                self.send_header("Content-Length", "0")
                if server.retry_after:
                    self.send_header("Retry-After", server.retry_after)
                self.end_headers()
            elif fault in ("redirect", "loop"):
                self.send_response(302)
                self.send_header("Location", self.path if fault == "loop" else "/moved")
                self.end_headers()
            elif fault != "drop-early":
                self._body(fault, requested)

        def _body(self, fault: str, requested: str) -> None:
            body = bytes(len(server.content)) if fault == "wrong" else server.content
            start = 0 if fault == "whole" or not requested else int(requested.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            start -= fault == "shifted"
            if fault == "drop-chunked":
                self.send_header("Transfer-Encoding", "chunked")
            elif fault == "badlength":
                self.send_header("Content-Length", "many")
            elif fault != "drop-unsized":
                self.send_header("Content-Length", str(len(body) - start))
            if fault == "gzip":
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            halves = ("drop", "drop-unsized", "drop-chunked", "stall")
            end = start + (len(body) - start) // 2 if fault in halves else len(body)
            if fault == "drop-chunked":
                self.wfile.write(b"%x\r\n" % (len(body) - start))
            # Counted first: whoever has read the bytes may look at the count at once.
            server.sent += end - start
            self.wfile.write(body[start:end])
            if fault == "stall" and server.go.wait(60):
                server.sent += len(body) - end
                self.wfile.write(body[end:])
            return None

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *arguments: object) -> None:
            """A client that left is no news."""

    http = Quiet(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_address[1]}", content)
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go.set()
        http.shutdown()
        http.server_close()
        thread.join()
