"""`/api/pull` with Ollama's official client: a real server downloads from a hub on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from omlx.models.catalog.discovery import BUNDLED
from tests.cli.serving import serving
from tests.cli.test_packages import place
from tests.models.hub import Hub, running
from tests.server.dialects import user
from tests.server.running import TARGET, Running

KEY = "secret"
NAME = "org/pulled"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add(NAME, BUNDLED / "omlx-demo/draft")
        hub.gated.add("org/gated")
        hub.add("org/gated", BUNDLED / "omlx-demo/draft")
        yield hub


def client_of(url: str, key: str = "none") -> Any:
    return ollama.Client(url, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.slow
def test_a_model_is_pulled_and_answers(hub: Hub, tmp_path: Path) -> None:
    place(tmp_path, "small", "draft")
    variables = hub.environment(tmp_path / "hub")
    with (
        serving(tmp_path, "org/small", "--api-key", KEY, **variables) as server,
        client_of(server.url, KEY) as client,
    ):
        steps = list(client.pull(f"{NAME}:latest", stream=True))
        assert [steps[0].status, steps[-1].status] == ["pulling manifest", "success"]
        sizes = [(step.completed, step.total) for step in steps if step.total]
        assert all(0 <= done <= total for done, total in sizes)
        said = client.chat(NAME, user("a"), options={"num_predict": 2})
        assert said.eval_count > 0
        assert client.pull(NAME).status == "success"
        for name, status, word in (
            ("org/gated", 400, "gated"),
            ("org/missing", 400, "org/missing"),
            ("llama3.2", 400, "mlx-community"),
        ):
            with pytest.raises(ollama.ResponseError, match=word) as caught:
                client.pull(name)
            assert caught.value.status_code == status
        with pytest.raises(ollama.ResponseError, match="gated"):
            list(client.pull("org/gated", stream=True))


def test_without_the_servers_key_nothing_is_downloaded(server: Running) -> None:
    with client_of(server.url) as client:
        assert [step.status for step in client.pull(TARGET, stream=True)][-1] == "success"
        with pytest.raises(ollama.ResponseError, match="--api-key") as caught:
            client.pull(NAME)
    assert caught.value.status_code == 403
