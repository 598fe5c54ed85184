"""LM Studio's list of models, as its documentation describes the fields."""

from __future__ import annotations

import httpx
import pytest

from omlx.settings.schema import Settings
from tests.server.running import DRAFT, SEEING, TARGET, VISION, Running, omlx
from tests.server.spelling import CONTEXT


def test_loaded_and_other_models(server: Running) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        http.post(f"/v1/models/{TARGET}/load")
        http.post(f"/v1/models/{DRAFT}/unload")
        listed = http.get("/api/v0/models").json()
        models = {model["id"]: model for model in listed["data"]}
        assert listed["object"] == "list"
        assert models[TARGET] == {
            "id": TARGET,
            "object": "model",
            "type": "llm",
            "publisher": "omlx-demo",
            "arch": "",
            "compatibility_type": "mlx",
            "quantization": "",
            "state": "loaded",
            "max_context_length": CONTEXT,
            "loaded_context_length": CONTEXT,
            "capabilities": ["tool_use"],
        }
        assert models[DRAFT]["state"] == "not-loaded"
        assert "loaded_context_length" not in models[DRAFT]
        for name in (TARGET, TARGET.replace("/", "%2F")):
            assert http.get(f"/api/v0/models/{name}").json() == models[TARGET]
        missing = http.get("/api/v0/models/none")
        assert (missing.status_code, "none" in missing.json()["error"]) == (404, True)


@pytest.mark.needs_extra
def test_a_model_that_sees() -> None:
    with omlx(Settings(), registry=SEEING) as running:
        http = running.http
        assert http.get(f"/api/v0/models/{VISION}").json()["type"] == "vlm"
        assert http.get(f"/api/v0/models/{TARGET}").json()["type"] == "llm"
        shown = http.post("/api/show", json={"model": VISION}).json()
        assert "vision" in shown["capabilities"]
