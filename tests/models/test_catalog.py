"""Resolution of model names, and trust in the code of a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from omlx.engine.thread import EngineThread
from omlx.errors import BadRequest, ConfigError, ModelError, NotFound, Reason
from omlx.models.catalog.catalog import Catalog, restricted_to
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.registry import Registry
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, Source
from omlx.settings.store import Store
from tests.models.breakage import config
from tests.models.pools import make_pool
from tests.models.trees import model
from tests.refusals import refused

CODE = "from mlx_lm.models.llama import Model, ModelArgs\n"


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    for name in ("one/big", "two/big", "one/small"):
        model(tmp_path / "models" / name)
    return scan_places([Folder("here", tmp_path / "models")])


def catalog_of(tmp_path: Path, registry: Registry, **aliases: str) -> Catalog:
    """Return a catalog with aliases for models of `one`."""
    live = LiveConfiguration((), Store(tmp_path / "home"))
    for name, alias in aliases.items():
        live.patch({"alias": alias}, f"one/{name}")
    return Catalog(registry, live)


def test_ids_go_before_aliases_and_aliases_before_short_names(
    tmp_path: Path, registry: Registry
) -> None:
    catalog = catalog_of(tmp_path, registry, big="small", small="two/big")
    assert catalog.resolve("small").id == "one/big"
    assert catalog.resolve("two/big").id == "two/big"
    assert catalog.resolve("one/small").id == "one/small"


def test_a_name_of_two_models_names_neither(tmp_path: Path, registry: Registry) -> None:
    catalog = catalog_of(tmp_path, registry, big="mine", small="mine")
    for name in ("mine", "big"):
        with refused(NotFound, "model.ambiguous"):
            catalog.resolve(name)


def test_a_restricted_request_learns_of_no_other_model(tmp_path: Path, registry: Registry) -> None:
    """Nor of ambiguous names, unusable models, or the default."""
    catalog = catalog_of(tmp_path, registry, small="mine")
    (tmp_path / "models/one/broken").mkdir()
    for patterns, allowed in ((["mine"], "mine"), (["one/s*"], "one/small"), (["small"], "small")):
        with restricted_to(patterns):
            assert catalog.resolve(allowed).id == "one/small"
            for name in ("big", "one/big", "one/broken", "one/none"):
                with refused(NotFound, "model.not_allowed") as caught:
                    catalog.resolve(name)
                assert caught.value.params == {"model": name}
            with refused(BadRequest, "model.none") as unnamed:
                catalog.resolve(fallback="one/big")
            assert unnamed.value.params == {}
            assert catalog.resolve(fallback="one/small").id == "one/small"
    assert catalog.unmatched(["mine", "two/*", "three/*", "*"]) == ["three/*"]


def test_names_follow_changes_of_settings_and_registry(tmp_path: Path, registry: Registry) -> None:
    catalog = catalog_of(tmp_path, registry)
    with pytest.raises(BadRequest):
        catalog.resolve()
    assert catalog.resolve(fallback="one/big").id == "one/big"
    catalog.live.patch({"default_model": "small", "model_map": ("claude-*=two/big",)})
    assert catalog.resolve(fallback="one/big").id == "one/small"
    assert catalog.resolve("claude-any").id == "two/big"
    catalog.registry = Registry(registry.entries[:1])
    with pytest.raises(NotFound):
        catalog.resolve("claude-any")


def test_the_tag_of_ollamas_clients_is_no_part_of_a_name(
    tmp_path: Path, registry: Registry
) -> None:
    catalog = catalog_of(tmp_path, registry, small="mine")
    catalog.live.patch({"model_map": ["*=two/big"]})
    for name, found in (
        ("one/big:latest", "one/big"),
        ("small:latest", "one/small"),
        ("mine:latest", "one/small"),
        ("other:latest", "two/big"),
    ):
        assert catalog.resolve(name).id == found
    catalog.live.patch({"alias": "small:latest"}, "one/big")
    assert catalog.resolve("small:latest").id == "one/big"


def test_a_profile_is_named_behind_any_name_of_its_model(
    tmp_path: Path, registry: Registry
) -> None:
    catalog = catalog_of(tmp_path, registry, small="mine")
    live = catalog.live
    for name, temperature in (("fast", 0.1), ("deep", 0.9)):
        live.patch({"temperature": temperature}, "one/small", name)
    live.patch({"model_map": ["claude-*=mine:deep"], "default_model": "small:fast"})
    named = {
        None: "fast",
        "one/small:fast": "fast",
        "small:deep": "deep",
        "mine:deep": "deep",
        "small:deep:latest": "deep",
        "claude-any": "deep",
        "small": None,
        "small:latest": None,
    }
    for name, wanted in named.items():
        profile = catalog.profile(name)
        assert (None if profile is None else profile.name) == wanted
        assert catalog.resolve(name).id == "one/small"
    assert catalog.target("mine:fast").id == "one/small"
    ids = ["one/big", "one/small", "one/small:deep", "one/small:fast", "two/big"]
    assert sorted(catalog.ids) == ids


@pytest.mark.parametrize("name", ["small:slow", "one/small:slow", "small:", "small:fast:fast"])
def test_an_unknown_profile_is_refused_with_the_known_ones(
    tmp_path: Path, registry: Registry, name: str
) -> None:
    catalog = catalog_of(tmp_path, registry)
    catalog.live.patch({"temperature": 0.5}, "one/small", "fast")
    known = {"ids": "one/small, one/small:fast"}
    if name == "small:fast:fast":  # no model is called small:fast
        known = {"model": name}
    with refused(NotFound, "model.no_profile" if "ids" in known else "model.not_found", **known):
        catalog.resolve(name)
    with refused(NotFound, "model.ambiguous"):
        catalog.resolve("big:fast")


def test_a_key_without_a_model_learns_nothing_of_its_profiles(
    tmp_path: Path, registry: Registry
) -> None:
    catalog = catalog_of(tmp_path, registry)
    catalog.live.patch({"temperature": 0.5}, "one/small", "fast")
    with restricted_to(["two/*"]):
        for name in ("small", "small:fast", "small:slow"):
            with refused(NotFound, "model.not_allowed"):
                catalog.profile(name)
    with restricted_to(["one/*"]):
        assert catalog.profile("small:fast") is not None


def test_a_models_id_goes_before_a_profile(tmp_path: Path) -> None:
    for name in ("small", "small:fast"):
        model(tmp_path / "models/one" / name)
    registry = scan_places([Folder("here", tmp_path / "models")])
    catalog = catalog_of(tmp_path, registry)
    catalog.live.patch({"temperature": 0.5}, "one/small", "fast")
    assert catalog.profile("one/small:fast") is None
    assert catalog.resolve("one/small:fast").id == "one/small:fast"


@pytest.mark.parametrize("name", ["", "latest", "a:b", "a/b", "a@b", "-a", "a b", "a" * 65, "big"])
def test_the_name_of_a_profile_is_its_own(tmp_path: Path, registry: Registry, name: str) -> None:
    catalog = catalog_of(tmp_path, registry, small="one/big:big")
    with pytest.raises(ConfigError):
        catalog.check_profile("one/big", name)
    catalog.check_profile("one/big", "fast-2.1_x")
    catalog.live.patch({"temperature": 0.5}, "one/big", "fast")
    with pytest.raises(ConfigError):
        catalog.check_alias("one/big:fast", "one/small")


def test_a_pattern_may_name_its_model_by_alias(tmp_path: Path, registry: Registry) -> None:
    catalog = catalog_of(tmp_path, registry, small="mine")
    catalog.live.patch({"model_map": ("claude-*=mine", "gpt-*=claude-any")})
    assert catalog.resolve("claude-any").id == "one/small"
    assert catalog.target("mine").id == "one/small"
    with pytest.raises(NotFound):  # a pattern does not lead to another pattern
        catalog.resolve("gpt-any")
    with pytest.raises(NotFound):
        catalog.target("claude-any")


@pytest.mark.parametrize("alias", ["two/big", "one/big", "small", "taken"])
def test_an_alias_must_be_new(tmp_path: Path, registry: Registry, alias: str) -> None:
    catalog = catalog_of(tmp_path, registry, small="taken")
    with pytest.raises(ConfigError):
        catalog.check_alias(alias, "one/big")
    catalog.check_alias("taken", "one/small")
    catalog.check_alias("new", "one/big")


def test_the_alias_of_an_unusable_model_says_why(tmp_path: Path) -> None:
    model(tmp_path / "models/one/odd", {"model_type": "odd"})
    registry = scan_places([Folder("here", tmp_path / "models")])
    catalog = catalog_of(tmp_path, registry, odd="mine")
    with refused(ModelError, "model.unsupported"):
        catalog.resolve("mine")
    assert catalog.entry("mine").id == "one/odd"


@pytest.mark.needs_extra
def test_a_setting_opens_a_family_that_is_not_proven(tmp_path: Path) -> None:
    model(tmp_path / "models/one/odd", {"model_type": "zaya1_vl"})
    registry = scan_places([Folder("here", tmp_path / "models")])
    catalog = catalog_of(tmp_path, registry)
    assert catalog.entry("odd").reason == Reason("model.unsupported", {"model_type": "zaya1_vl"})
    layer = Layer(Source.CLI, {"library": "mlx-vlm"})
    opened = Catalog(registry, LiveConfiguration([layer], Store(tmp_path / "home")))
    assert opened.resolve("odd").library == "mlx-vlm"


async def test_a_models_own_code_runs_only_where_it_is_trusted(
    engine: EngineThread, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(BUNDLED / "omlx-demo/draft", tmp_path / "models/org/own"))
    config(model_type="mine", model_file="mine.py")(folder)
    (folder / "mine.py").write_text(f"{CODE}open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    registry = scan_places([Folder("here", tmp_path / "models")])

    async def lease(*run: Layer) -> None:
        configured = LiveConfiguration(run, Store(tmp_path / "home"))
        pool = make_pool(engine, registry, configuration=configured)
        (await pool.lease("org/own")).release()
        await pool.unload("org/own")

    with refused(ModelError, "model.remote_code"):
        await lease()
    assert not (tmp_path / "ran").exists()
    await lease(Layer(Source.CLI, {"trust_remote_code": True}))
    assert (tmp_path / "ran").exists()
    Store(tmp_path / "home").patch({"trust_remote_code": True}, "org/own")
    await lease()
