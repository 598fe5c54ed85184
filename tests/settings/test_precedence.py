"""Every combination of sources, for every setting that several may set: the first in order decides,
and is named.

That a request, which comes over HTTP and is no layer, goes before them all is in
tests/server/test_request_settings.py.
"""

from __future__ import annotations

import itertools
import json
from argparse import ArgumentParser
from collections.abc import Iterable
from pathlib import Path

import pytest

from omlx.settings.configuration import LiveConfiguration
from omlx.settings.layers import Layer, Resolution, Source, add_flags, cli_layer, environment_layer
from omlx.settings.parse import to_json
from omlx.settings.schema import Scope, Setting, Settings, Value, table
from omlx.settings.store import Store
from omlx.settings.types import Form

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
    resolution = LiveConfiguration.of(Settings(port=1, draft_model="a")).current.resolve(MODEL)
    assert (resolution["port"].source, resolution.settings.draft_model) == (Source.CLI, "a")
    assert resolution["host"].source is Source.BUILT_IN
