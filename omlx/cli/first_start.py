"""The first start: a machine that has no models but the bundled ones is offered some that fit.

On a terminal `omlx serve` asks and downloads the one chosen, with its draft model, by `omlx pull`
in a process of its own: a server stays offline. Elsewhere it prints the commands.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence

from omlx.admin.web.addresses import DOWNLOAD
from omlx.admin.web.formats import context, disk, memory, parameters
from omlx.catalog import sentence
from omlx.cli import online_environment
from omlx.cli.output import columns, size
from omlx.models.catalog.registry import Registry
from omlx.models.hub.offer import Offer, starters
from omlx.models.pool.footprint import limit_bytes
from omlx.settings.schema import Settings


def ask(discover: Callable[[], Registry], settings: Settings) -> str | None:
    """Ask which model to download until one is here; return its id, None for none.

    Asks only on a terminal, and only where there is something to offer. Raises KeyboardInterrupt.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    offers = _offers(discover(), settings)
    if not offers:
        return None
    limit = limit_bytes(settings.memory_limit)
    rows = [(f"  {number}", *_row(offer, limit)) for number, offer in enumerate(offers, 1)]
    sys.stdout.write(f"{_heading(settings)}\n{columns(rows)}")
    while (offer := _answer(offers)) is not None:
        _pull(offer, settings)
        if offer.repository in discover():
            return offer.repository
    return None


def commands(registry: Registry, settings: Settings, address: str) -> list[str]:
    """Return lines that say how to download what is offered; none where nothing is."""
    offers = _offers(registry, settings)
    if not offers:
        return []
    rows = [(f"  {shlex.join(['omlx', *_arguments(offer)])}", _size(offer)) for offer in offers]
    page = sentence("cli.first.page", {"url": f"{address}{DOWNLOAD}"})
    return [_heading(settings), *columns(rows).splitlines(), page]


def _offers(registry: Registry, settings: Settings) -> Sequence[Offer]:
    """Return nothing where there are models; no download that would not be found."""
    if registry.own:
        return ()
    offers = starters(limit_bytes(settings.memory_limit))
    return [
        offer for offer in offers if (settings.hf_cache if offer.on_hub else settings.home_models)
    ]


def _heading(settings: Settings) -> str:
    return sentence("ui.first.why", {"memory": memory(limit_bytes(settings.memory_limit))})


def _row(offer: Offer, limit: int) -> tuple[str, ...]:
    if offer.parameters is not None:
        return offer.model, size(offer.download_bytes), _at_once(offer)
    fit = offer.fit(limit)
    assert fit.context is not None  # else it would not be offered
    params = {"context": context(fit.context), "left": memory(fit.left_bytes)}
    cells = (offer.model, size(offer.download_bytes), sentence("ui.get.fits", params))
    draft = offer.companion
    if draft is None:
        return cells
    params = {"draft": draft.model, "size": size(draft.download_bytes)}
    return *cells, sentence("cli.first.draft", params)


def _at_once(offer: Offer) -> str:
    assert offer.parameters is not None
    params = {"parameters": parameters(offer.parameters), "size": disk(offer.download_bytes)}
    return sentence("ui.get.at_once", params)


def _answer(offers: Sequence[Offer]) -> Offer | None:
    """Return the offer that a person chooses; None for none, or at the end of the input."""
    count = len(offers)
    question = sentence("cli.first.question", {"count": count})
    while True:
        try:
            text = input(f"{question} ").strip() or "1"
        except EOFError:
            text = "0"
            sys.stdout.write("\n")
        if text == "0":
            return None
        if text.isdecimal() and 1 <= int(text) <= count:
            return offers[int(text) - 1]
        sys.stdout.write(sentence("cli.first.wrong", {"count": count}) + "\n")


def _pull(offer: Offer, settings: Settings) -> None:
    """Download a model and its draft; the process says what fails."""
    command = [sys.executable, "-m", "omlx", *_arguments(offer), "--home", str(settings.home)]
    try:
        subprocess.run(command, env=online_environment(), check=False)
    except KeyboardInterrupt:
        sys.stdout.write("\n" + sentence("cli.first.kept", {}) + "\n")
        raise


def _arguments(offer: Offer) -> list[str]:
    """Return the command of `omlx` that downloads a model with its draft."""
    command = ["pull", offer.model]
    if offer.companion is not None:
        command += ["--draft", offer.companion.model]
    return command


def _size(offer: Offer) -> str:
    draft = offer.companion
    return size(offer.download_bytes + (0 if draft is None else draft.download_bytes))
