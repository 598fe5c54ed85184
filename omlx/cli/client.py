"""HTTP client of a running server for commands, and a server started for one command."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import quote

from omlx.admin.credentials import Credentials
from omlx.admin.web.addresses import API
from omlx.catalog import sentence
from omlx.cli.serve.address import connect, find_server
from omlx.errors import ConfigError

LOG: Final = "launch.log"
"""Log, in the home folder, of a server started for a command."""

_START_S: Final = 120
_POLL_S: Final = 0.1
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)
_TIMEOUT_S: Final = 30
_LONG_S: Final = 3600
"""Seconds between bytes of an answer — a model may be loaded first."""


@dataclass(frozen=True, slots=True)
class Client:
    """API of the server at `address`. Methods raise ConfigError with the server's message."""

    address: str
    key: str | None = None
    cookie: str | None = None

    def get(self, path: str) -> Mapping[str, Any]:
        record: Mapping[str, Any] = json.loads(self.text(path))
        return record

    def text(self, path: str) -> str:
        with self._request("GET", path, None, _TIMEOUT_S) as response:
            return response.read().decode()

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        with self._request("POST", path, body or {}, _LONG_S) as response:
            record: Mapping[str, Any] = json.loads(response.read())
            return record

    def model(self, name: str) -> Mapping[str, Any]:
        """Return a model's card: id, context length, modalities, state."""
        return self.get(f"/v1/models/{quote(name)}")

    def default_model(self, preferred: str | None) -> str:
        """Return a loaded model, else `preferred`, else the first. Raises ConfigError if none."""
        models = self.get("/v1/models")["data"]
        if not models:
            raise ConfigError("launch.no_models")
        names = [entry["id"] for entry in models if entry["loaded"]]
        model: str = next(filter(None, [*names, preferred, models[0]["id"]]))
        return model

    @contextmanager
    def session(self, home: Path) -> Iterator[Client]:
        """Yield a client of the admin API; its session ends with the block.

        Write access to the home folder is the proof, as for the links of `omlx dashboard`.
        """
        login = {"token": Credentials(home).invite()}
        interrupts: list[int] = []  # later: a session begun meanwhile would not end
        with (
            handled(lambda number, _: interrupts.append(number), signal.SIGINT, *_ENDS),
            self._request("POST", f"{API}/login", login, _TIMEOUT_S) as response,
        ):
            cookie = response.headers["Set-Cookie"].partition(";")[0]
        client = replace(self, cookie=cookie)
        try:
            if interrupts:
                raise KeyboardInterrupt
            yield client
        finally:
            with suppress(ConfigError):  # the server has ended
                client.post(f"{API}/logout")

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the events of a streamed answer. Closing the iterator ends the request."""
        with self._request("POST", path, {**body, "stream": True}, _LONG_S) as response:
            for line in response:
                kind, _, data = line.decode().partition(":")
                if kind != "data" or data.strip() == "[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise self._error(event["error"]["message"])
                yield event

    @contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = connect(self.address, timeout_s)
        headers = {"Content-Type": "application/json", "User-Agent": "omlx"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if self.cookie is not None:
            headers["Cookie"] = self.cookie
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise self._error(json.loads(response.read())["error"]["message"])
            yield response
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise self._error(str(error) or type(error).__name__) from error
        finally:
            connection.close()

    def _error(self, detail: str) -> ConfigError:
        return ConfigError("launch.server", url=self.address, detail=detail)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any], *signals: int) -> Iterator[None]:
    """Handle `signals` by `handler` during the block."""
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def interruptible() -> AbstractContextManager[None]:
    """Let SIGTERM and a closed terminal interrupt the block as Ctrl-C does: its work ends."""
    return handled(signal.default_int_handler, *_ENDS)


@contextmanager
def server_for(home: Path, model: str | None) -> Iterator[str]:
    """Yield the address of the home folder's server; start a server for the block if none runs.

    Raises ConfigError if the start fails.
    """
    address = find_server(home)
    if address is not None:
        yield address
        return
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "omlx", "serve", *filter(None, [model]), "--home", str(home)]
    with (home / LOG).open("wb") as log:
        # A session of its own: Ctrl-C belongs to the command.
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    sys.stderr.write(sentence("cli.launch.starting", {"log": str(home / LOG)}) + "\n")
    try:
        with interruptible():
            yield _wait_for(server, home)
    finally:
        server.terminate()
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], home: Path) -> str:
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        address = find_server(home)
        if address is not None:
            return address
        time.sleep(_POLL_S)  # until it accepts requests
    reason = _last_error(home / LOG) if (server.returncode or 0) > 0 else ""
    if not reason:  # killed by a signal, or still starting
        raise ConfigError("launch.no_server", log=str(home / LOG))
    raise ConfigError("launch.failed", reason=reason, log=str(home / LOG))


def _last_error(log: Path) -> str:
    """Return the last line of a server's log, the reason for the end; empty without one."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next(filter(None, map(str.strip, reversed(lines))), "").removeprefix("omlx: ")
