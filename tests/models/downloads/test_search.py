"""Search of a hub on the loopback, and what fits into memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.engine.piece import Layout
from omlx.errors import ModelError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import FILE
from omlx.models.hub import converted as package
from omlx.models.hub.downloads import Downloads
from omlx.models.hub.offer import Offer, fit, known_draft, layout_of_config, starters
from tests.models.hub import Hub, running
from tests.refusals import refused

DEMO = BUNDLED / "omlx-demo"
PACKAGE = {
    "generation": {
        "speculative_decoding": {
            "default": "small",
            "strategies": {"small": {"type": "draft-model", "draft_model": "org/small"}},
        }
    }
}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add("org/big", DEMO / "target", {FILE: json.dumps(PACKAGE).encode()})
        hub.add("org/small", DEMO / "draft")
        hub.add("org/gated", DEMO / "draft")
        hub.gated |= {"org/gated"}
        hub.repositories["org/gguf"] = {
            "weights.gguf": hub.repositories["org/small"]["model.safetensors"]
        }
        hub.add("<b>org/script", DEMO / "draft")
        yield hub


def search(hub: Hub, folder: Path, text: str) -> list[Offer]:
    environ = {"HOME": str(folder), **hub.environment(folder / "hub")}
    return asyncio.run(Downloads(folder, environ).search(text))


def test_results_have_sizes_context_and_the_declared_draft(hub: Hub, tmp_path: Path) -> None:
    offers = {offer.model: offer for offer in search(hub, tmp_path, "org")}
    big, small = offers["org/big"], (DEMO / "draft/model.safetensors").stat().st_size
    weights = sum(file.stat().st_size for file in (DEMO / "target").glob("*.safetensors"))
    assert (big.weight_bytes, big.model_type, big.downloads) == (weights, "llama", 1234)
    assert big.download_bytes > weights
    assert big.modified == "2026-03-14"
    config = json.loads((DEMO / "target/config.json").read_text())
    assert big.context_length == config["max_position_embeddings"]
    assert (big.companion.model, big.companion.declared) == ("org/small", True)
    assert big.companion.weight_bytes == small
    codes = {name: offer.reason.code for name, offer in offers.items() if offer.reason}
    assert codes == {
        "org/gated": "pull.gated",
        "org/gguf": "pull.gguf",
        "<b>org/script": "draft.malformed",
    }
    assert not list((tmp_path / "hub").glob("*"))


def test_a_pasted_name_is_found_as_it_is(hub: Hub, tmp_path: Path) -> None:
    assert [offer.model for offer in search(hub, tmp_path, " org/small@main ")] == [
        "org/small@main"
    ]
    with refused(ModelError, "pull.no_revision"):
        search(hub, tmp_path, "org/small@other")


def test_starters_fit_and_have_drafts() -> None:
    for gigabytes in (4, 8, 16, 32, 64, 128):
        limit = gigabytes * 3 << 28  # three quarters
        offered = starters(limit)
        assert 2 <= len(offered) <= 4
        assert [offer.on_hub for offer in offered] == [False] + [True] * (len(offered) - 1)
        assert all(offer.fit(limit).comfortable for offer in offered)
    assert known_draft("mlx-community/Qwen3-8B-4bit") is not None
    assert known_draft("mlx-community/Qwen3-0.6B-4bit") is None
    assert starters(1 << 20) == []


def test_the_model_of_the_package_is_offered_as_it_is() -> None:
    first, *_ = starters(8 << 30)
    assert (first.model, first.download_bytes) == (package.MODEL, package.BYTES)
    assert first.context_length == 8192


def test_the_longest_context_that_fits() -> None:
    layout = layout_of_config({"num_hidden_layers": 32, "num_attention_heads": 8, "head_dim": 128})
    assert layout.row_bytes == 131_072  # 64k tokens take 8 GiB
    weights = 4 << 30
    assert fit(weights, layout, 131_072, 20 << 30).context == 65_536
    assert fit(weights, layout, 131_072, 20 << 30).left_bytes == 8 << 30
    assert fit(weights, layout, 40_960, 20 << 30).context == 40_960
    assert fit(weights, layout, 131_072, 7 << 30).context == 16_384
    assert fit(weights, layout, 131_072, 4 << 30).context is None


def test_a_model_with_all_of_its_own_context_fits() -> None:
    weights, layout = 4 << 30, Layout(1 << 17)
    assert fit(weights, layout, 4_096, 20 << 30).comfortable
    assert fit(weights, layout, 131_072, 7 << 30).comfortable
    assert not fit(weights, layout, 131_072, 6 << 30).comfortable
    assert not fit(weights, layout, 131_072, 4 << 30).comfortable
