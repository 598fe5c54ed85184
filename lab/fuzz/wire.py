"""Raw bytes to a loopback socket, and the status of the response."""

from __future__ import annotations

import socket

from lab.fuzz.bodies import Sent

PATIENCE_S = 60


def send(port: int, sent: Sent) -> int | None:
    """Return the status of the response, read to its end; None if the client or the server
    disconnects first.

    Raises TimeoutError if nothing arrives for `PATIENCE_S`.
    """
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
        raw = sent.raw()
        try:
            client.sendall(raw if sent.cut is None else raw[: sent.cut])
            if sent.cut is not None:
                return None
            answer = _read(client, sent.read)
        except (ConnectionResetError, BrokenPipeError):
            return None  # refused before it was read to its end
    status = answer[:12].partition(b" ")[2]
    return int(status) if sent.read is None and status.isdigit() else None


def _read(client: socket.socket, most: int | None) -> bytes:
    """Return all received bytes, or the first `most`."""
    read = b""
    while (most is None or len(read) < most) and (piece := client.recv(65536)):
        read = read[:12] + piece if most is None and len(read) >= 12 else read + piece
    return read
