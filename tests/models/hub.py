"""A hub on the loopback: model info, file trees, HEAD and GET of files with ETag, Range and LFS
headers.

    GET  /api/models?search=…&limit=…                       the ids that contain the text
    GET  /api/models/{org}/{name}[/revision/{revision}]     files with sizes and hashes
    GET  /api/models/{org}/{name}/tree/{revision}           the same, as a list
    HEAD /{org}/{name}/resolve/{revision}/{file}            commit, hash and size of one file
    GET  /{org}/{name}/resolve/{revision}/{file}            its bytes, from `Range` on

`stall` stops a file after some bytes, once; `corrupt` sends wrong bytes with the right hashes;
`pause_s` delays each piece of 1 MB; `status` answers every request with an error; a repository in
`gated` shows its files and sends none.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

_PIECE_BYTES = 1 << 20
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """The hash of git; for LFS, of the pointer."""
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.content).hexdigest() if self.lfs else self.oid


@dataclass
class Hub:
    """`seen` lists (method, file, first byte requested).

    `stalled` is set once a file has stopped.
    """

    repositories: dict[str, dict[str, File]] = field(default_factory=dict)
    seen: list[tuple[str, str, int]] = field(default_factory=list)
    stall: dict[str, int] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    gated: set[str] = field(default_factory=set)
    pause_s: float = 0.0
    status: int | None = None
    commit: str = COMMIT
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def add(
        self, repository: str, directory: Path, extra: Mapping[str, bytes] | None = None
    ) -> None:
        """Publish the files of a directory, and `extra` ones."""
        found = {
            path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()
        }
        found.update(extra or {})
        files = {
            name: File(data, name.endswith((".safetensors", ".gguf")))
            for name, data in found.items()
        }
        self.repositories[repository] = files

    def environment(self, cache: Path) -> dict[str, str]:
        """Return variables that make a client use this hub and a separate cache."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def running(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a free port of the loopback."""

    class Handler(_Handler):
        served = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: tests look at `seen`."""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        address = urlsplit(self.path)
        parts = unquote(address.path).strip("/").split("/")
        if self.served.status is not None:
            self._refuse(self.served.status, "")
        elif parts == ["api", "models"]:
            self._search(parse_qs(address.query))
        elif parts[:2] == ["api", "models"]:
            self._describe("/".join(parts[2:4]), parts[4:])
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._refuse(404, "EntryNotFound")

    def _search(self, query: dict[str, list[str]]) -> None:
        text = query.get("search", [""])[0].lower()
        self.served.seen.append(("SEARCH", text, 0))
        found = [name for name in self.served.repositories if text in name.lower()]
        self._json([{"id": name} for name in found[: int(query["limit"][0])]])

    def _describe(self, repository: str, rest: list[str]) -> None:
        files = self.served.repositories.get(repository)
        if files is None:
            return self._refuse(404, "RepoNotFound")
        if rest and rest[-1] not in ("main", self.served.commit):
            return self._refuse(404, "RevisionNotFound")
        if rest[:1] == ["tree"]:
            return self._json(
                [{"type": "file", "path": name, **_facts(file)} for name, file in files.items()]
            )
        siblings = [
            {"rfilename": name, "blobId": file.oid, **_facts(file)} for name, file in files.items()
        ]
        return self._json(
            {
                "id": repository,
                "sha": self.served.commit,
                "private": False,
                "gated": repository in self.served.gated,
                "downloads": 1234,
                "lastModified": "2026-03-14T15:09:26.000Z",
                "siblings": siblings,
            }
        )

    def _file(self, repository: str, revision: str, name: str) -> None:
        file = self.served.repositories.get(repository, {}).get(name)
        if file is None or revision not in ("main", self.served.commit):
            return self._refuse(404, "EntryNotFound")
        if repository in self.served.gated:
            return self._refuse(403, "GatedRepo")
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.served.seen.append((self.command, name, start))
        content = bytes(len(file.content)) if name in self.served.corrupt else file.content
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", f'"{file.etag}"')
        self.send_header("X-Repo-Commit", self.served.commit)
        self.send_header("Accept-Ranges", "bytes")
        if file.lfs:
            self.send_header("X-Linked-Etag", f'"{file.etag}"')
            self.send_header("X-Linked-Size", str(len(content)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self._send(name, content[start:])

    def _send(self, name: str, content: bytes) -> None:
        stop = self.served.stall.pop(name, None)
        for begin in range(0, len(content[:stop]), _PIECE_BYTES):
            self.wfile.write(content[:stop][begin : begin + _PIECE_BYTES])
            time.sleep(self.served.pause_s)  # a slow network
        if stop is not None:
            self.wfile.flush()
            self.served.stalled.set()
            self.served.released.wait()
            self.close_connection = True

    def _json(self, record: object) -> None:
        body = json.dumps(record).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _facts(file: File) -> dict[str, object]:
    facts: dict[str, object] = {"oid": file.oid, "size": len(file.content)}
    if file.lfs:
        facts["lfs"] = {
            "oid": file.etag,
            "sha256": file.etag,
            "size": len(file.content),
            "pointerSize": 134,
        }
    return facts
