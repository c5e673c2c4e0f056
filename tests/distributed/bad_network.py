"""A network between a node and its server whose connections break off."""

from __future__ import annotations

import contextlib
import socket
import threading


class BadNetwork:
    """Passes TCP connections on.

    Args:
        to: host and port.

    Attributes:
        cuts: how many of the next pieces of data are lost, with their connection.
    """

    def __init__(self, to: tuple[str, int]) -> None:
        self.to, self.cuts = to, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._listener.accept()
            try:
                there = socket.create_connection(self.to)
            except OSError:
                here.close()
                continue
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if self.cuts:
                    self.cuts -= 1
                    break
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
