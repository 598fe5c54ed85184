"""The text of a PDF, in a process of its own: python -m omlx.server.request.media.pdf_worker < file

Files come from strangers and may take any time and memory: the parent ends the process.
"""

from __future__ import annotations

import os
import resource
import sys
from io import BytesIO
from typing import Final

MAX_SECONDS: Final = 20
MAX_BYTES: Final = 1 << 30
"""Memory of the process."""
MAX_TEXT_BYTES: Final = 16 << 20
NICE: Final = 5
READ: Final = b"+"
ENCRYPTED: Final = b"e"
EMPTY: Final = b"0"
TOO_LONG: Final = b">"
"""First byte of the output, before the text as UTF-8. Any other output is that of a broken file."""
_BETWEEN: Final = "\n\n"


def reply(data: bytes) -> bytes:
    """Return the texts of all pages, or why there are none. Raises anything for a broken file."""
    # In this process only: the server imports the names above.
    from pypdf import PdfReader  # noqa: PLC0415
    from pypdf.errors import DependencyError  # noqa: PLC0415

    reader = PdfReader(BytesIO(data))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            return ENCRYPTED
    except DependencyError:  # AES, which pypdf decrypts with another package
        return ENCRYPTED
    texts: list[str] = []
    length = 0
    for page in reader.pages:
        text = page.extract_text().strip()
        length += len(text)
        if length > MAX_TEXT_BYTES:
            return TOO_LONG
        if text:
            texts.append(text)
    encoded = _BETWEEN.join(texts).encode(errors="replace")
    if len(encoded) > MAX_TEXT_BYTES:
        return TOO_LONG
    return READ + encoded if encoded else EMPTY


def main() -> None:
    os.nice(NICE)
    # For a parent that has ended; it polls the memory too, since macOS does not enforce a limit.
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    sys.stdout.buffer.write(reply(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
