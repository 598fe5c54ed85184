"""Speculation as configured: settings and package, resolved against the registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omlx.draft_length import DraftLength
from omlx.errors import ConfigError
from omlx.models.catalog.discovery import Folder, HubCache, Place, scan_places
from omlx.models.catalog.package import FILE
from omlx.models.catalog.reference import MissingDraft, Reference
from omlx.models.catalog.registry import Registry
from omlx.models.pool.served import speculation_to_json
from omlx.models.pool.speculation import SpeculationConfig, check_value, resolve_speculation
from omlx.settings.configuration import Configuration
from omlx.settings.layers import Layer, Source
from omlx.settings.schema import Value
from omlx.settings.store import Store
from tests.models.test_package import package
from tests.models.trees import LLAMA, hub_model, model, shards

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def found(root: Path, *places: Place, **flags: Value) -> SpeculationConfig:
    """Resolve `org/big` in `root`, with these flags and the settings files in `root`/home."""
    registry = scan_places([Folder("here", root / "models"), *places])
    run = (Layer(Source.CLI, flags),)
    return resolve_speculation(
        registry.get_usable("org/big"),
        registry,
        Configuration(run, Store(root / "home", check_value).read()),
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A model that declares `org/small`, with that model beside it."""
    model(tmp_path / "models/org/small")
    window = {"initial_window": 8, "min_window": 2, "max_window": 8}
    strategy = {
        "type": "draft-model",
        "draft_model": "org/small",
        "window_policy": window,
        "size_bytes": 77,
    }
    package(model(tmp_path / "models/org/big", files=shards(2)), {"one": strategy})
    return tmp_path


def code(result: SpeculationConfig) -> str | None:
    return result.no_draft_reason.code if result.no_draft_reason is not None else None


def test_a_declared_draft_on_disk_is_active(root: Path) -> None:
    result = found(root)
    assert result.active_draft.id == "org/small"
    assert result.sources["draft_model"] == Source.PACKAGE
    assert code(result) is None
    assert result.draft_length == DraftLength(min=2, initial=8, max=8)
    assert str(result.strategy) == "auto"


def test_sources_above_the_package_choose_the_draft(root: Path) -> None:
    for name in ("flag", "own", "all"):
        model(root / f"models/org/{name}")
    store = Store(root / "home", check_value)
    store.patch({"draft_model": "org/all", "draft_max": 4})
    result = found(root)
    assert (result.draft.id, result.sources["draft_model"]) == ("org/all", Source.GLOBAL)
    assert result.draft_length == DraftLength(min=2, initial=4, max=4)
    store.patch({"draft_model": "own", "num_draft_tokens": 3}, "org/big")
    result = found(root)
    assert (result.draft.id, result.sources["draft_model"]) == ("org/own", Source.MODEL)
    assert result.draft_length.fixed is not None
    result = found(root, draft_model="flag", draft_min=7)
    assert (result.draft.id, result.sources["draft_model"]) == ("org/flag", Source.CLI)
    assert result.draft_length.max == 7


def test_a_missing_declared_draft_can_be_fetched(root: Path) -> None:
    (root / "models/org/small").rename(root / "gone")
    result = found(root)
    assert (result.active_draft, code(result)) == (None, "draft.not_here")
    assert result.missing_draft == MissingDraft(Reference("org/small"), 77)
    record = speculation_to_json(result)
    assert record["wanted"] == {
        "repository": "org/small",
        "revision": None,
        "size_bytes": 77,
        "fetching": False,
        "failed": None,
    }
    json.dumps(record)
    assert found(root, draft_model="org/none").missing_draft is None


def test_no_draft_overrides_every_draft(root: Path) -> None:
    result = found(root, no_draft=True, draft_model="org/small")
    assert (result.draft, code(result), str(result.strategy)) == (None, "spec.off.no_draft", "auto")


@pytest.mark.parametrize("strategy", ["off", "ngram"])
def test_a_strategy_without_draft_loads_none(root: Path, strategy: str) -> None:
    result = found(root, speculation=strategy)
    assert (result.active_draft, code(result)) == (None, "spec.off.strategy")
    assert result.draft is not None


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("org/small-GGUF:Q4_K_M", "draft.unfit.gguf"),
        ("org/other:Q4_K_M", "draft.unfit.gguf"),
        ("org/small:8bit", "draft.other_quantization"),
        ("org/big", "draft.unfit.same_model"),
        ("org/head", "draft.unfit.head_only"),
        ("../big", "draft.malformed"),
        ("/etc/passwd", "draft.malformed"),
    ],
)
def test_an_unusable_draft_is_a_reason_and_is_not_fetched(
    root: Path, named: str, expected: str
) -> None:
    model(root / "models/org/small", {**LLAMA, "quantization": {"bits": 4}})
    model(
        root / "models/org/head",
        {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle"]},
    )
    Store(root / "home").patch({"draft_model": named})
    result = found(root)
    assert (result.draft, code(result), result.missing_draft) == (None, expected, None)


def test_spellings_of_a_quantization_are_equal(root: Path) -> None:
    model(root / "models/org/small", {**LLAMA, "quantization": {"bits": 4}})
    assert found(root, draft_model="org/small:4BIT").draft is not None


@pytest.mark.parametrize("name", ["org/Модель 1.5B", "草稿-small", "mine (1)"])
def test_names_may_contain_spaces_and_punctuation(root: Path, name: str) -> None:
    model(root / "models" / name)
    package(root / "models/org/big", {"one": {"type": "draft-model", "draft_model": name}})
    result = found(root)
    assert result.draft.id == name
    assert Reference.parse(f"{name}:4bit@v1") == Reference(name, "4bit", "v1")


def test_a_malformed_package_is_a_reason(root: Path) -> None:
    (root / "models/org/big" / FILE).write_text("{")
    assert (found(root).draft, code(found(root))) == (None, "model.config_unreadable")
    package(root / "models/org/big", {"one": {"type": "medusa"}})
    assert code(found(root)) == "package.unknown_type"


def test_a_package_may_choose_prompt_lookup(root: Path) -> None:
    package(root / "models/org/big", {"one": {"type": "ngram", "shortest_match": 4}})
    result = found(root)
    assert (str(result.strategy), result.sources["speculation"]) == ("ngram:n=4", Source.PACKAGE)


def test_revisions_in_the_hubs_cache(root: Path) -> None:
    snapshot = hub_model(root / "hub", "org/cached")
    cache = HubCache("hf-cache", root / "hub")
    other = snapshot.with_name("f" * 40)
    model(other)
    for name, path in (
        ("", snapshot),
        ("@main", snapshot),
        (f"@{COMMIT}", snapshot),
        (f"@{'f' * 40}", other),
    ):
        result = found(root, cache, draft_model=f"org/cached{name}")
        assert result.draft.path == path
    (root / "hub/models--org--cached/refs/bytes").write_bytes(b"\xff")
    (root / "hub/models--org--cached/refs/nothing").write_bytes(b"\0")
    for revision in ("v2", "v" * 300, "bytes", "nothing"):
        assert code(found(root, cache, draft_model=f"org/cached@{revision}")) == "draft.not_here"


def test_a_malformed_strategy_names_its_source(root: Path) -> None:
    with pytest.raises(ConfigError, match="--speculation"):
        found(root, speculation="ngram:q=1")
    with pytest.raises(ConfigError, match=r"defaults\.speculative\.speculation"):
        Store(root / "home", check_value).patch({"speculation": "medusa"})


def test_aliases_of_drafters_are_warned_of(root: Path) -> None:
    assert [warning.code for warning in found(root, speculation="ngram-simple").warnings] == [
        "strategy.read_as"
    ]


def test_defaults(tmp_path: Path) -> None:
    model(tmp_path / "models/org/big")
    result = found(tmp_path)
    assert str(result.strategy) == "auto"
    assert code(result) == "spec.off.no_draft_model"
    assert result.warnings == ()
    assert Registry().entries == ()
