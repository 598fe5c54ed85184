"""Attached files to texts: what the model reads in their place, and a warning where it is a note.

    part ─ data URI ─► bytes ─ kept? ─ UTF-8, or a PDF in a process of its own ─► text

Every turn of a conversation sends its files again, so texts are kept by the hash of the file. So
are failures: the next turn finds the same prompt.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from tempfile import TemporaryFile
from time import monotonic
from typing import Any, Final

from omlx.errors import BadRequest, Reason
from omlx.machine import footprint
from omlx.server.http.transport import Json
from omlx.server.request.content import FILE, content_of, file_bytes, text_part
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.media import pdf_worker
from omlx.server.workers import LruCache, Workers
from omlx.text.template.conversation import BETWEEN

MAX_FILES: Final = 32
"""Files of one request; notes replace further ones."""
KEPT: Final = 64
KEPT_CHARACTERS: Final = 8 << 20
_PDF: Final = b"%PDF-"
_PDF_WITHIN: Final = 1024
"""Bytes at the beginning of a PDF, among which is `_PDF`."""
_POLL_S: Final = 0.05
_FAILURES: Final = {
    pdf_worker.ENCRYPTED: "file.encrypted",
    pdf_worker.EMPTY: "file.no_text",
    pdf_worker.TOO_LONG: "file.limits",
}


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file, or the code of a failure."""

    text: str = ""
    failure: str | None = None


class FileTexts:
    """Texts of attached files, the newest kept."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._kept = LruCache[bytes, FileText](KEPT, KEPT_CHARACTERS, lambda read: len(read.text))

    async def attach(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request with texts in place of its file parts, and warnings about notes."""
        if not any(True for message in request.messages for _ in _files(message)):
            return request
        messages, warnings, count = [], list(request.warnings), 0
        for message in request.messages:
            parts = []
            for part in _parts(message):
                if part["type"] == FILE:
                    count += 1
                    read = FileText(failure="file.limits")
                    if count <= MAX_FILES:
                        read = await self._read(part["url"])
                    if read.failure is not None:
                        named = {"field": part["field"], "name": part["name"]}
                        warnings.append(Reason(read.failure, named))
                    part = text_part(_shown(part, read))
                parts.append(part)
            if any(True for _ in _files(message)):
                message = {**message, "content": content_of(parts, BETWEEN)}
            messages.append(message)
        return replace(request, messages=messages, warnings=tuple(warnings))

    async def read(self, data: bytes) -> FileText:
        """Read a file. Raises nothing."""
        return await self._workers.run("files", partial(_text_of, data), at_once=2)

    async def _read(self, url: str | None) -> FileText:
        if url is None:
            return FileText(failure="file.elsewhere")
        return await self._workers.run("files", partial(self._find, url), at_once=2)

    def _find(self, url: str) -> FileText:
        """Return the text of a data URI, which is read once."""
        name = sha256(url.encode(errors="surrogatepass")).digest()
        return self._kept.get(name, partial(_read_uri, url))


def _parts(message: Mapping[str, Any]) -> Sequence[Json]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _files(message: Mapping[str, Any]) -> Sequence[Json]:
    return [part for part in _parts(message) if part["type"] == FILE]


def _shown(part: Json, read: FileText) -> str:
    if read.failure is None:
        return f"[file: {part['name']}]\n{read.text}"
    return f"[file: {part['name']}, left out: its text cannot be read here]"


def _read_uri(url: str) -> FileText:
    try:
        return _text_of(file_bytes(url))
    except BadRequest:  # of another form, broken or too large
        return FileText(failure="file.broken")


def _text_of(data: bytes) -> FileText:
    unread = "file.unknown"
    if _PDF in data[:_PDF_WITHIN]:
        read = _pdf_text(data)
        # A text about PDFs names the mark, too, but does not begin with it.
        if read.failure != "file.broken" or data.startswith(_PDF):
            return read
        unread = "file.broken"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return FileText(failure=unread)
    return FileText(failure=unread) if "\0" in text else FileText(text)


def _pdf_text(data: bytes) -> FileText:
    """Read a PDF within the limits of time and memory."""
    command = [sys.executable, "-m", pdf_worker.__name__]
    with TemporaryFile() as file, TemporaryFile() as output:
        file.write(data)
        file.seek(0)
        process = subprocess.Popen(command, stdin=file, stdout=output, stderr=subprocess.DEVNULL)
        try:
            if not _ends_in_time(process):
                return FileText(failure="file.limits")
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        reply = output.read()
    if reply[:1] == pdf_worker.READ:
        return FileText(reply[1:].decode())
    return FileText(failure=_FAILURES.get(reply[:1], "file.broken"))


def _ends_in_time(process: subprocess.Popen[bytes]) -> bool:
    deadline = monotonic() + pdf_worker.MAX_SECONDS
    while monotonic() < deadline and footprint(process.pid) < pdf_worker.MAX_BYTES:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
            return True
    return False
