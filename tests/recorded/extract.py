"""Request bodies that other projects' tests have recorded against real providers.

`python -m tests.recorded.extract FILE ARCHIVE…` writes them, one JSON object a line, from the
cassettes in source archives of these projects; `make templates` brings the archives.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

_CASSETTE: Final = re.compile(r"/cassettes/.*\.ya?ml(\.gz)?$")
_PATH: Final = re.compile(r"/(chat/completions|completions|responses|messages(/count_tokens)?)$")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def bodies(archive: Path) -> Iterator[dict[str, Any]]:
    """Yield path, body and cassette of each request, once."""
    seen = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if _CASSETTE.search(member.name) else None
            if file is None:
                continue
            data = file.read()
            text = gzip.decompress(data) if member.name.endswith(".gz") else data
            cassette = "/".join(member.name.split("/")[-2:])
            for request in _requests(yaml.load(text, _LOADER)):
                body = _body(request.get("body"))
                path = _path(str(request.get("uri")), body, "anthropic" in archive.name)
                key = json.dumps([path, body], sort_keys=True)
                if path is not None and key not in seen:
                    seen.add(key)
                    yield {"path": path, "from": cassette, "body": body}


def _requests(cassette: Any) -> list[dict[str, Any]]:
    if "interactions" in cassette:
        return [interaction["request"] for interaction in cassette["interactions"]]
    return list(cassette.get("requests", []))


def _body(body: Any) -> Any:
    """The JSON object of a recorded body, if it is one."""
    if isinstance(body, dict):
        body = body.get("string")
    if isinstance(body, bytes) and body[:2] == b"\x1f\x8b":
        body = gzip.decompress(body)
    try:
        read = json.loads(body)
    except (TypeError, ValueError):
        return None
    return read if isinstance(read, dict) else None


def _path(uri: str, body: Any, anthropic: bool) -> str | None:
    """Return the path here; some cassettes hide the address, so that the body has to say it."""
    if body is None:
        return None
    parts = urlsplit(uri)
    if parts.scheme:
        named = _PATH.search(parts.path)
        is_thread = "/threads/" in parts.path
        return None if named is None or is_thread else f"/v1/{named[1]}"
    if "messages" in body:
        return "/v1/messages" if anthropic else "/v1/chat/completions"
    if "input" in body and "embedding" not in str(body.get("model")):
        return "/v1/responses"
    return None


if __name__ == "__main__":
    target, *archives = map(Path, sys.argv[1:])
    with target.open("w", encoding="utf-8") as lines:
        for archive in archives:
            for recorded in bodies(archive):
                lines.write(json.dumps(recorded) + "\n")
