"""What the download page shows, as data; and its API over a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omlx.admin.download import OfferRow, OwnRow, own_view, results_view
from omlx.admin.models.model_snapshot import ModelSnapshot
from omlx.models.catalog.discovery import BUNDLED, HUB_CACHE
from omlx.models.catalog.registry import ModelEntry
from omlx.models.hub.downloads import Download, State
from omlx.models.hub.offer import Offer
from omlx.models.pool.served import ModelStatus
from omlx.models.pool.served import State as Residency
from omlx.models.pool.speculation import SpeculationConfig
from omlx.settings.store import Store
from tests.admin.running import API, Administered, administered
from tests.models.hub import Hub, running
from tests.server.running import TARGET

GB = 10**9
LIMIT = 16 << 30
OFFER = Offer("org/big@main", download_bytes=4 * GB, weight_bytes=4 * GB)


def test_a_result_shows_whether_it_is_here_or_on_its_way() -> None:
    running = Download("org/big", "org/big", State.RUNNING)
    fit = OFFER.fit(LIMIT)
    cases = {
        ((), (), 5 * GB): OfferRow(OFFER, fit),
        (("org/big",), (), 5 * GB): OfferRow(OFFER, fit, here=True),
        ((), (running,), 5 * GB): OfferRow(OFFER, fit, download=State.RUNNING),
        ((), (), 3 * GB): OfferRow(OFFER, fit, has_room=False),
    }
    for (here, downloads, free), row in cases.items():
        assert results_view("big", [OFFER], here, downloads, (LIMIT, free)).rows == [row]


def test_a_download_shows_its_share_once_the_hub_has_answered() -> None:
    begun = Download("org/a", "org/a", State.RUNNING)
    half = Download("org/b", "org/b", State.PAUSED, 10, 5)
    whole = Download("org/c", "org/c", State.RUNNING, 10, 10)
    shown = [(each.share, each.checking) for each in (begun, half, whole)]
    assert shown == [(None, False), (0.5, False), (1.0, True)]


def test_models_of_the_cache_are_listed_with_those_that_they_draft_for() -> None:
    small = ModelEntry("org/small", Path("/small"), HUB_CACHE)
    big = ModelEntry("org/big", Path("/big"), "home")
    queued = ModelEntry("org/half", Path("/half"), HUB_CACHE)
    idle = ModelStatus(Residency.UNLOADED)
    snapshots = [
        ModelSnapshot(big, idle, SpeculationConfig(draft=small)),
        ModelSnapshot(small, ModelStatus(Residency.READY)),
        ModelSnapshot(queued, idle),
    ]
    downloads = [Download("org/half", "org/half", State.PAUSED)]
    view = own_view(snapshots, downloads, "/cache", 7)
    assert view.rows == [OwnRow(small, in_memory=True, drafts_for=["org/big"])]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add("org/small", BUNDLED / "omlx-demo/draft")
        hub.add("org/big", BUNDLED / "omlx-demo/target")
        yield hub


@pytest.fixture(scope="module")
def server(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    home = tmp_path_factory.mktemp("home")
    with administered(home, hub=hub.environment(home / "hub")) as administered_server:
        yield administered_server


@pytest.fixture
def client(server: Administered) -> Iterator[httpx.Client]:
    with server.browser() as client:
        yield client


def refused(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_draft_that_is_chosen_is_stored_as_the_models(
    client: httpx.Client, server: Administered
) -> None:
    body = {"model": "org/big@main", "draft": "org/small"}
    answer = client.post(f"{API}/downloads", json=body)
    assert (answer.status_code, answer.json()) == (202, {"models": ["org/big@main", "org/small"]})
    values = Store(server.home).read().layer("org/big").values
    assert values == {"draft_model": "org/small"}
    client.post(f"{API}/downloads", json={"model": "org/big", "draft": "org/other"})
    assert Store(server.home).read().layer("org/big").values == values
    for name in ("org/big", "org/small", "org/other"):
        assert client.delete(f"{API}/downloads/{name}").status_code == 204


def test_what_cannot_be_done_is_refused(client: httpx.Client) -> None:
    cases = {
        ("POST", "/downloads", '{"model": "../etc"}'): (400, "draft.malformed"),
        ("POST", "/downloads", '{"model": "no-owner"}'): (400, "draft.malformed"),
        ("POST", "/downloads/org/none/pause", ""): (404, "pull.not_running"),
        ("POST", "/downloads/org/none/resume", ""): (404, "pull.not_running"),
        ("DELETE", f"/models/{TARGET}", ""): (404, "pull.not_in_cache"),
    }
    for (method, path, body), expected in cases.items():
        assert refused(client.request(method, f"{API}{path}", content=body)) == expected, path
