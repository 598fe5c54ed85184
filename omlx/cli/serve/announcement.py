"""Texts of `omlx serve`: the offer at first start, the address, a login link, an example.

A machine with only the bundled models is offered some that fit. On a terminal, `omlx serve` asks,
and downloads the chosen model with its draft by `omlx pull` in a process of its own: a server stays
offline. Elsewhere it prints the commands.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import TypeAlias

from omlx import __version__
from omlx.admin.credentials import Credentials
from omlx.admin.models.model_snapshot import ModelSnapshots
from omlx.admin.web.addresses import DOWNLOAD, HOME
from omlx.admin.web.formats import context, disk, memory, parameters
from omlx.catalog import sentence
from omlx.cli import online_environment
from omlx.cli.output import UNDERLINE, columns, download_hint, size, styled
from omlx.cli.servers import has_browser
from omlx.clients.agents import Endpoint, network_urls
from omlx.clients.apps import Snippet, curl, embeddings_curl, rerank_curl
from omlx.errors import ConfigError
from omlx.models.catalog.facts import ModelFacts, model_facts
from omlx.models.catalog.registry import BUNDLED, ModelEntry, Registry
from omlx.models.hub.offer import Offer, starters
from omlx.models.pool.footprint import limit_bytes
from omlx.models.pool.served import ServedModel
from omlx.server.services import Services
from omlx.settings.schema import Settings


def announce(
    services: Services, settings: Settings, address: str, *, lan: bool = False, opens: bool = False
) -> None:
    """Print address, loaded model and draft, login link and an example request.

    `lan`: addresses in the network, too. `opens` the dashboard if a browser would open on the
    user's screen.
    """
    pool = services.pool
    lines = [sentence("cli.serve.ready", {"version": __version__, "url": address})]
    if lan:
        lines += _network_lines(settings, address)
    served = next(reversed(pool.loaded), None)
    first = ModelSnapshots(services).first
    models = sorted(pool.models, key=lambda entry: entry.id != first)
    if served is not None:
        models = [entry for entry in models if entry.id == served.id]
        lines.append(sentence("cli.serve.model_ready", {"model": served.id}))
        lines += _draft_lines(served)
    lines += _login_link(settings, address)
    # On a terminal the question has offered them.
    offer = [] if _can_ask() else commands(pool.registry, settings, address)
    lines += offer
    if not models and not offer:
        lines.append(sentence("cli.models.none", {}))
    lines += example(models, address, with_key=services.api_keys.required)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    if opens and has_browser():
        # A browser may take seconds to answer.
        Thread(target=webbrowser.open, args=(_page(settings, address),), daemon=True).start()


def _network_lines(settings: Settings, address: str) -> list[str]:
    """Return the addresses for other machines; the key on a terminal alone, not in a log."""
    urls = " ".join(network_urls(address))
    lines = [sentence("cli.serve.network", {"urls": urls})]
    if sys.stdout.isatty():
        lines.append(sentence("cli.serve.key", {"key": settings.api_key}))
    return lines


def _page(settings: Settings, address: str) -> str:
    """Return the dashboard's address: a login link while there is no password."""
    credentials = Credentials(settings.home)
    with suppress(ConfigError):
        if not credentials.has_password:
            return str(credentials.link(address))
    return f"{address}{HOME}"


def _draft_lines(served: ServedModel) -> list[str]:
    """Return lines on the serving draft model; otherwise the reason and the download command."""
    if served.draft is not None:
        return [sentence("cli.serve.draft_ready", {"draft": served.draft})]
    if served.no_draft_reason is None or served.no_draft_reason.code == "spec.off.no_draft_model":
        return []
    lines = [served.no_draft_reason.message]
    missing = served.speculation.missing_draft
    if missing is not None and served.speculation.settings.draft_download == "ask":
        lines.append(download_hint(missing))
    return lines


def _login_link(settings: Settings, address: str) -> list[str]:
    """Return a login link while the dashboard has no password."""
    credentials = Credentials(settings.home)
    try:
        if credentials.has_password:
            return []
        link = credentials.link(address)
    except ConfigError as error:
        sys.stderr.write(f"omlx: {error.message}\n")
        link = credentials.link_in_memory(address)
    return [sentence("cli.serve.link", {"link": styled(link, UNDERLINE)})]


def ask(discover: Callable[[], Registry], settings: Settings) -> str | None:
    """Ask for a model to download until a download succeeds; return the id, None if declined.

    Asks only on a terminal with something to offer. Raises KeyboardInterrupt.
    """
    if not _can_ask():
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


def _can_ask() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def commands(registry: Registry, settings: Settings, address: str) -> list[str]:
    """Return the download commands of the offers; empty without offers."""
    offers = _offers(registry, settings)
    if not offers:
        return []
    rows = []
    for offer in offers:
        draft_bytes = offer.companion.download_bytes if offer.companion is not None else 0
        command = shlex.join(["omlx", *_arguments(offer)])
        rows.append((f"  {command}", size(offer.download_bytes + draft_bytes)))
    page = sentence("cli.first.page", {"url": f"{address}{DOWNLOAD}"})
    return [_heading(settings), *columns(rows).splitlines(), page]


def _offers(registry: Registry, settings: Settings) -> Sequence[Offer]:
    """Return starter models, without those that discovery would not find; empty if models exist."""
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
        at_once = {"parameters": parameters(offer.parameters), "size": disk(offer.download_bytes)}
        return offer.model, size(offer.download_bytes), sentence("ui.get.at_once", at_once)
    fit = offer.fit(limit)
    assert fit.context is not None  # else it would not be offered
    params = {"context": context(fit.context), "left": memory(fit.left_bytes)}
    cells = (offer.model, size(offer.download_bytes), sentence("ui.get.fits", params))
    draft = offer.companion
    if draft is None:
        return cells
    params = {"draft": draft.model, "size": size(draft.download_bytes)}
    return *cells, sentence("cli.first.draft", params)


def _answer(offers: Sequence[Offer]) -> Offer | None:
    """Return the chosen offer; None if declined or at the end of input."""
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
    """Download a model and its draft; the child process reports failures."""
    command = [sys.executable, "-m", "omlx", *_arguments(offer), "--home", str(settings.home)]
    try:
        subprocess.run(command, env=online_environment(), check=False)
    except KeyboardInterrupt:
        sys.stdout.write("\n" + sentence("cli.first.kept", {}) + "\n")
        raise


def _arguments(offer: Offer) -> list[str]:
    """Return the `omlx` arguments that download a model with its draft."""
    command = ["pull", offer.model]
    if offer.companion is not None:
        command += ["--draft", offer.companion.model]
    return command


_Command: TypeAlias = Callable[..., Snippet]


def example(models: Sequence[ModelEntry], address: str, *, with_key: bool) -> list[str]:
    """Return a request to the first chat model, else to an embedding or reranking model.

    Reads files of the models; empty if no model can answer.
    """
    first: dict[_Command, ModelEntry] = {}
    for entry in models:
        command = _command(model_facts(entry.files, entry.id))
        if command is not None:
            first.setdefault(command, entry)
        if command is curl:
            break
    if not first:
        return []
    command = curl if curl in first else next(iter(first))
    entry = first[command]
    endpoint = Endpoint(address, entry.id, with_key=with_key)
    # The bundled models know no facts.
    prompt = "cli.serve.prompt" if entry.source == BUNDLED else "cli.serve.question"
    # The likeliest answer: a small model that samples says something else half of the time.
    fields = {"temperature": 0} if command is curl else {}
    text = command(endpoint, sentence(prompt, {}), **fields).text
    return [sentence("cli.serve.try", {}), f"  {text}"]


def _command(facts: ModelFacts) -> _Command | None:
    if facts.embeddings:
        return embeddings_curl
    if facts.reranks:
        return rerank_curl
    return curl if facts.generates else None
