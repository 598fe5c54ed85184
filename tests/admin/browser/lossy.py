"""A network between browser and server that a test can cut or slow down."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

PIECE_BYTES: Final = 1 << 14


class Network:
    """Forwards connections of `url` to a server on this machine.

    `pause_s` delays every piece of what the server sends.
    """

    def __init__(self, port: int) -> None:
        self.pause_s = 0.0
        self._server = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._is_cut = False
        self._ended = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection and accept no other, as a killed server does."""
        self._is_cut = True
        for end in list(self._open):
            self._close(end)

    def mend(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        self._ended.set()
        self.cut()
        self._close(self._listener)

    def _accept(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                client, _ = self._listener.accept()
                if self._is_cut:
                    client.close()
                    continue
                server = socket.create_connection(self._server)
                self._open |= {client, server}
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if answers and self.pause_s:
                    self._ended.wait(self.pause_s)
                target.sendall(piece)
        for end in (source, target):
            self._close(end)

    def _close(self, end: socket.socket) -> None:
        self._open.discard(end)
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def network(port: int) -> Iterator[Network]:
    opened = Network(port)
    try:
        yield opened
    finally:
        opened.close()
