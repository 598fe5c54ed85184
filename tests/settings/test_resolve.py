"""Precedence in every combination of sources, and what is said about values that cannot be.

Requests come over HTTP, are no layer, and go before all: tests/server/test_settings_files.py.
"""

from __future__ import annotations

import itertools
import json
import os
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

import pytest

from omlx.errors import ConfigError
from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import (
    Layer,
    Resolution,
    Source,
    add_flags,
    cli_layer,
    environment_layer,
    flags_of,
    from_json,
    resolve,
    to_json,
)
from omlx.settings.schema import Group, Scope, Setting, Settings, Value, table
from omlx.settings.store import Store
from omlx.settings.types import Form
from tests.settings.live import live_configuration


def resolved(flags: list[str], environ: dict[str, str] | None = None) -> Resolution:
    parser = ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return resolve([environment_layer(environ or {}), cli_layer(parser.parse_args(flags))])


def test_a_flag_given_its_default_still_wins() -> None:
    assert resolved(["--port", "8000"], {"OMLX_PORT": "9001"}).settings.port == 8000


def test_layers_are_ordered_by_their_source_not_by_their_place() -> None:
    layers = [
        Layer(Source.PACKAGE, {"num_draft_tokens": 1, "draft_model": "a/package"}),
        Layer(Source.CLI, {"num_draft_tokens": 2}),
        Layer(Source.MODEL, {"num_draft_tokens": 3, "draft_model": None}),
    ]
    for order in (layers, layers[::-1]):
        result = resolve(order)
        assert result["num_draft_tokens"].value == 2
        assert result["num_draft_tokens"].source == Source.CLI
        assert (result["draft_model"].value, result["draft_model"].source) == (None, Source.MODEL)


def test_repeatable_flags_and_lists_in_variables(tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert resolved(["--model-dir", one, "--model-dir", two]).settings.model_dir == (
        Path(one),
        Path(two),
    )
    listed = resolved(
        [], {"OMLX_MODEL_DIR": os.pathsep.join([one, two]), "OMLX_ALLOW_HOST": "mac.local, mac"}
    )
    assert listed.settings.model_dir == (Path(one), Path(two))
    assert listed.settings.allow_host == ("mac.local", "mac")


def test_switches_go_both_ways() -> None:
    assert resolved(["--no-lmstudio", "--no-draft"]).settings.lmstudio is False
    assert resolved(["--lmstudio"], {"OMLX_LMSTUDIO": "off"}).settings.lmstudio is True
    assert resolved([], {"OMLX_NO_DRAFT": "1"}).settings.no_draft is True


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("512", 512), ("2GB", 2 << 30), ("1.5 GiB", 3 << 29), ("64k", 65536)],
)
def test_sizes(text: str, value: int) -> None:
    assert resolved(["--prefix-bytes", text]).settings.prefix_bytes == value


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--port", "eighty"], "config.int", ["--port", "eighty", "0", "65535"]),
        (["--port", "65536"], "config.int", ["65536"]),
        (["--num-draft-tokens", "0"], "config.int", ["--num-draft-tokens", "1", "64"]),
        (["--temperature", "nan"], "config.float", ["--temperature", "nan"]),
        (["--temperature", "2.1"], "config.float", ["2.1"]),
        (["--dtype", "int4"], "config.choice", ["--dtype", "int4", "bfloat16"]),
        (["--prefix-bytes", "lots"], "config.size", ["--prefix-bytes", "lots"]),
        (["--memory-limit", "1KB"], "config.size_range", ["'1KB'", "1MB to 1024TB"]),
        (["--api-key", ""], "config.empty", ["--api-key"]),
    ],
)
def test_a_wrong_flag_is_named_with_its_value_and_what_was_expected(
    flags: list[str], code: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(flags)
    assert caught.value.code == code
    assert [word for word in words if word not in caught.value.message] == []


def test_a_rejected_value_is_quoted_once() -> None:
    with pytest.raises(ConfigError, match="draft_max: 'abc' is not allowed"):
        from_json(table()["draft_max"], "abc", "draft_max")


def test_a_map_wants_both_sides() -> None:
    assert resolve(
        [environment_layer({"OMLX_MODEL_MAP": "claude-*=org/a, gpt-*=org/b"})]
    ).settings.model_map == ("claude-*=org/a", "gpt-*=org/b")
    for wrong in ("claude-*", "=org/a", "claude-*="):
        with pytest.raises(ConfigError, match="PATTERN=MODEL"):
            environment_layer({"OMLX_MODEL_MAP": wrong})


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="OMLX_LMSTUDIO: 'maybe'"):
        resolved([], {"OMLX_LMSTUDIO": "maybe"})


def test_an_empty_variable_sets_nothing() -> None:
    assert resolved([], {"OMLX_PORT": ""})["port"].source is Source.BUILT_IN


def test_an_unknown_name_in_a_layer_is_refused() -> None:
    with pytest.raises(ConfigError, match="'porrt'"):
        resolve([Layer(Source.GLOBAL, {"porrt": 1})])


def test_flags_of_a_layer_set_it_again() -> None:
    parser = ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    given = ["--model-dir=/a b", "--model-dir=-c", "--no-lmstudio", "--bundled", "--port=1"]
    layer = cli_layer(parser.parse_args(given))
    again = cli_layer(parser.parse_args(flags_of(layer, Group.MODELS)))
    assert again.values == {key: layer.values[key] for key in layer.values.keys() - {"port"}}
    assert len(again.values) == 3


MODEL = "org/model"
SCOPE = {
    Source.CLI: Scope.CLI,
    Source.ENVIRONMENT: Scope.ENVIRONMENT,
    Source.MODEL: Scope.MODEL,
    Source.GLOBAL: Scope.GLOBAL,
}
PACKAGED = (
    "speculation",
    "draft_model",
    "num_draft_tokens",
    "draft_initial",
    "draft_min",
    "draft_max",
)
SWITCHES = (
    "allow_image_url",
    "no_draft",
    "receipt",
    "record_prompts",
    "trust_remote_code",
)  # their flags only turn them on
ROWS = [row for row in table().values() if row.name != "home"]


def sources(row: Setting) -> list[Source]:
    """Who may set it, in order of precedence."""
    found = [source for source, scope in SCOPE.items() if row.allowed_in(scope)]
    if row.name in PACKAGED:
        found.append(Source.PACKAGE)
    return found


def value(row: Setting, source: Source) -> Value:
    """Another one for each source, where there are so many."""
    at = list(Source).index(source)
    one: Value
    if row.choices:
        one = row.choices[at % len(row.choices)]
    elif row.kind is bool:
        one = not row.default if at % 2 else bool(row.default)
    elif row.kind is str:
        one = f"{source.value}/model"
        if row.form is Form.MAP:
            one = f"name-*={one}"
        forms = {"ORIGIN": "{}://model", "NAME=COMMAND": "name={}", "URL": "http://{}"}
        if row.meta.metavar in forms:
            one = forms[row.meta.metavar].format(source.value)
    elif row.kind is dict:
        one = {"from": source.value}
    elif row.kind is Path:
        one = Path("/tmp") / source.value
    else:
        step = 1.0
        if row.kind is float:
            step = 0.125
        one = row.kind(min(row.meta.high, row.meta.low + (at + 1) * step))
    return (one,) if row.repeatable else one


def combined(row: Setting, chosen: Iterable[Source], home: Path) -> Resolution:
    """The setting given by each of these sources, by the way that source has."""
    parser, environ, more = ArgumentParser(), {}, []
    add_flags(parser)
    flags: list[str] = []
    store = Store(home)
    for source in chosen:
        given = value(row, source)
        text = as_text(given)
        dashed = row.name.replace("_", "-")
        match source:
            case Source.CLI if row.kind is bool:
                flags += [f"--{dashed}"] if given else [f"--no-{dashed}"]
            case Source.CLI:
                flags += [f"--{dashed}={text}"]
            case Source.ENVIRONMENT:
                environ[row.variable] = text
            case Source.GLOBAL:
                store.patch({row.name: given})
            case Source.MODEL:
                store.patch({row.name: given}, MODEL)
            case _:
                more.append(Layer(source, {row.name: given}))
    run = (cli_layer(parser.parse_args(flags)), environment_layer(environ))
    return LiveConfiguration(run, store).current.resolve(MODEL, *more)


def as_text(given: Value) -> str:
    """Return a value as a flag or a variable holds it."""
    if isinstance(given, dict):
        return json.dumps(given)
    return str(given[0]) if isinstance(given, tuple) else str(to_json(given))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_first_source_in_order_decides(row: Setting, tmp_path: Path) -> None:
    given = [
        source for source in sources(row) if not (row.name in SWITCHES and source is Source.CLI)
    ]
    for count in range(len(given) + 1):
        for number, chosen in enumerate(itertools.combinations(given, count)):
            resolution = combined(row, reversed(chosen), tmp_path / f"{count}-{number}")
            expected, expected_value = Source.BUILT_IN, row.default
            if chosen:
                expected, expected_value = chosen[0], value(row, chosen[0])
            assert resolution[row.name].source is expected, chosen
            assert resolution[row.name].value == expected_value, chosen
            others = set(table()) - {row.name}
            assert {resolution.sources[name] for name in others} == {Source.BUILT_IN}


def test_the_settings_of_one_model_are_not_those_of_another(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.patch({"draft_max": 3}, MODEL)
    configuration = LiveConfiguration((), store)
    assert configuration.current.resolve(MODEL)["draft_max"].value == 3
    assert configuration.current.resolve("other")["draft_max"].source is Source.BUILT_IN
    assert configuration.current.resolve()["draft_max"].source is Source.BUILT_IN


def test_settings_as_a_configuration() -> None:
    resolution = live_configuration(Settings(port=1, draft_model="a")).current.resolve(MODEL)
    assert (resolution["port"].source, resolution.settings.draft_model) == (Source.CLI, "a")
    assert resolution["host"].source is Source.BUILT_IN
