"""Unloading over HTTP: refused with the reason while the model is needed, unless it may wait."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from omlx.models.pool.resident import State
from omlx.settings.store import Store
from tests.admin.running import API, Administered, administered, change
from tests.server.running import DRAFT, HYBRID, TARGET

CHAT = "/v1/chat/completions"
UNLOAD = f"{API}/models/{TARGET}/unload"


def test_a_model_in_use_is_unloaded_only_after_its_requests(server: Administered) -> None:
    body = {"model": TARGET, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    pool = server.running.pool
    with server.browser() as client, server.browser() as other:
        assert client.post(f"{API}/models/{TARGET}/load").status_code == 200
        body |= {"max_tokens": 3900, "logit_bias": server.running.endless(), "speculation": "off"}
        with client.stream("POST", CHAT, json=body) as answer:
            assert answer.status_code == 200
            next(answer.iter_lines())
            refused = other.post(UNLOAD, json={"if_idle": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model.in_use")
            assert refused.json()["error"]["params"] == {"model": TARGET, "active": 1}
            assert pool.status(TARGET).state is State.READY
            unloading = threading.Thread(target=other.post, args=(UNLOAD,))
            unloading.start()
        unloading.join()
        assert pool.status(TARGET).state is State.UNLOADED
        assert other.post(UNLOAD, json={"if_idle": True}).status_code == 200  # nothing to do


def test_a_model_is_not_unloaded_during_its_trial(server: Administered) -> None:
    with server.browser() as client:
        trial = {"drafts": [DRAFT], "kinds": ["prose"]}
        assert client.post(f"{API}/models/{TARGET}/trial", json=trial).status_code == 202
        refused = client.post(UNLOAD)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "trial.unload")
        public = httpx.post(f"{server.running.url}/v1/models/{TARGET}/unload")
        assert (public.status_code, public.json()["error"]["code"]) == (409, "trial.unload")
        overview = client.get("/admin/parts/overview").text
        assert 'id="trial"' in overview
        assert f'href="/admin/models/{TARGET}' in overview
        assert client.post(f"{API}/models/{DRAFT}/unload").status_code == 200
        client.post(f"{API}/models/{TARGET}/trial/cancel")
        assert 'id="trial"' not in client.get("/admin/parts/overview").text
        assert httpx.post(f"{server.running.url}/v1/models/{TARGET}/unload").status_code == 200


def test_a_pinned_model_is_loaded_at_once_and_at_start(tmp_path: Path) -> None:
    Store(tmp_path).patch({"pinned": True}, TARGET)
    with administered(tmp_path, default=None) as server, server.browser() as client:
        pool = server.running.pool
        assert pool.status(TARGET).state is not State.UNLOADED
        assert pool.status(HYBRID).state is State.UNLOADED
        change(client, f"models/{HYBRID}/settings", pinned=True)
        assert pool.status(HYBRID).state is not State.UNLOADED
        for model in (TARGET, HYBRID):
            assert client.post(f"{API}/models/{model}/load").status_code == 200
            assert pool.status(model).pinned
        assert client.post(UNLOAD).status_code == 200
        change(client, f"models/{DRAFT}/settings", pinned=None)
        assert pool.status(TARGET).state is State.UNLOADED  # until the next start
