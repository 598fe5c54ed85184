"""Reading model-package.json: what it declares, and errors with their place in the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omlx.draft_length import DraftLength
from omlx.errors import ModelError, Reason
from omlx.models.catalog.package import (
    FILE,
    DeclaredDraftModel,
    DeclaredNgram,
    Package,
    WindowPolicy,
    read_package,
    strategy_to_json,
    usable_package,
    window_from,
)
from omlx.models.catalog.reference import Reference
from tests.refusals import refused

DRAFT = {"type": "draft-model", "draft_model": "org/small"}
PLACE = "generation.speculative_decoding"


def package(
    folder: Path, strategies: dict[str, Any], default: object = "one", **more: object
) -> Path:
    block = {"default": default, "strategies": strategies, **more}
    (folder / FILE).write_text(json.dumps({"generation": {"speculative_decoding": block}}))
    return folder


def windowed(**window: object) -> dict[str, object]:
    return {**DRAFT, "window_policy": window}


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    window = {"default": "adaptive", "initial_window": 16, "min_window": 2, "max_window": 16}
    strategy = {
        "type": "draft-model",
        "draft_model": "unsloth/small-GGUF:Q4_K_M",
        "window_policy": window,
    }
    found = read_package(package(tmp_path, {"llama32-1b-q4": strategy}, "llama32-1b-q4"))
    reference = Reference("unsloth/small-GGUF", "Q4_K_M")
    assert found.declared == DeclaredDraftModel(
        reference, WindowPolicy("adaptive", DraftLength(2, 16, 16)), None
    )
    assert reference.gguf
    assert found.layer.values == {
        "draft_model": "unsloth/small-GGUF:Q4_K_M",
        "draft_initial": 16,
        "draft_min": 2,
        "draft_max": 16,
    }
    assert strategy_to_json(found.declared) == strategy


@pytest.mark.parametrize(
    ("window", "bounds"),
    [
        ({}, (1, 4, 16)),
        ({"min_window": 6}, (6, 6, 16)),
        ({"max_window": 2}, (1, 2, 2)),
        ({"initial_window": 32}, (1, 32, 32)),
        ({"default": "fixed", "initial_window": 5}, (5, 5, 5)),
        ({"default": "fixed", "max_window": 7}, (7, 7, 7)),
    ],
)
def test_window_policies_become_settings(
    tmp_path: Path, window: dict[str, object], bounds: tuple[int, int, int]
) -> None:
    found = read_package(package(tmp_path, {"one": windowed(**window)}))
    values = dict(zip(("draft_min", "draft_initial", "draft_max"), bounds, strict=True))
    assert found.layer.values == {"draft_model": "org/small", **values}


def test_a_package_may_declare_prompt_lookup(tmp_path: Path) -> None:
    found = read_package(package(tmp_path, {"one": {"type": "ngram", "shortest_match": 5}}))
    assert found.declared == DeclaredNgram(None, 5)
    assert found.layer.values == {"speculation": "ngram:n=5"}


def test_a_package_without_the_section_is_empty(tmp_path: Path) -> None:
    assert read_package(tmp_path) == Package()
    for content in ("{}", '{"generation": {}}', '{"generation": null, "more": [1]}'):
        (tmp_path / FILE).write_text(content)
        assert read_package(tmp_path) == Package()


def test_unknown_keys_are_ignored_with_a_warning(tmp_path: Path) -> None:
    found = read_package(
        package(tmp_path, {"one": {**DRAFT, "prompt": 1}, "two": {"type": "eagle3"}}, extra=1)
    )
    assert found.declared is not None
    assert [(w.code, w.params["at"]) for w in found.warnings] == [
        ("package.unknown_key", f"{PLACE}.extra"),
        ("package.unknown_key", f"{PLACE}.strategies.one.prompt"),
        ("package.unknown_type", f"{PLACE}.strategies.two.type"),
    ]


def test_an_unknown_default_type_is_the_reason(tmp_path: Path) -> None:
    found = read_package(package(tmp_path, {"one": {"type": "eagle3"}, "two": DRAFT}))
    at = f"{PLACE}.strategies.one.type"
    assert found.declared is None
    assert found.reason == Reason("package.unknown_type", {"at": at, "type": "eagle3"})


@pytest.mark.parametrize(
    ("strategy", "code", "at"),
    [
        ([], "object", ""),
        ({}, "missing", ".type"),
        ({"type": "draft-model"}, "missing", ".draft_model"),
        ({**DRAFT, "draft_model": "/etc"}, "draft", ".draft_model"),
        ({**DRAFT, "draft_model": "a/../b"}, "draft", ".draft_model"),
        (windowed(min_window=8, max_window=4), "window", ".window_policy"),
        (windowed(initial_window=8, max_window=4), "window", ".window_policy"),
        (windowed(min_window=-1), "range", ".window_policy.min_window"),
        (windowed(max_window=2.5), "number", ".window_policy.max_window"),
        (windowed(max_window=True), "number", ".window_policy.max_window"),
        (windowed(default="wide"), "choice", ".window_policy.default"),
        (windowed(default="fixed"), "missing", ".window_policy.max_window"),
    ],
)
def test_errors_name_the_path_of_the_field(
    tmp_path: Path, strategy: Any, code: str, at: str
) -> None:
    refuses(package(tmp_path, {"one": strategy}), f"package.{code}", f"strategies.one{at}")


@pytest.mark.parametrize(("default", "code"), [("other", "unknown_default"), (3, "text")])
def test_a_default_that_is_no_strategy_is_refused(
    tmp_path: Path, default: object, code: str
) -> None:
    refuses(package(tmp_path, {"one": DRAFT}, default), f"package.{code}", "default")


def refuses(folder: Path, code: str, at: str) -> None:
    place = f"{PLACE}.{at}"
    with refused(ModelError, code, place, at=place) as caught:
        read_package(folder)
    assert usable_package(folder) == Package(reason=Reason(code, caught.value.params))


NO_TEXT = '{"generation": {"speculative_decoding": {"default": "\\ud800", "strategies": {}}}}'
"""Half a surrogate pair, which can be written in JSON and nowhere else."""


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"generation": 5}', "{", "\x00", pytest.param("[" * 100_000, id="deep"), NO_TEXT],
)
def test_a_malformed_file_is_a_reason(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    reason = usable_package(tmp_path).reason
    assert FILE in reason.message
    assert reason.message.encode()


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("adaptive:16,2,16", WindowPolicy("adaptive", DraftLength(2, 16, 16))),
        ("adaptive:4, 1, 8", WindowPolicy("adaptive", DraftLength(1, 4, 8))),
        ("fixed:5", WindowPolicy("fixed", DraftLength(5, 5, 5))),
    ],
)
def test_window_policies_on_the_command_line(text: str, policy: WindowPolicy) -> None:
    assert window_from(text) == policy
    assert window_from(str(policy)) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "16",
        "adaptive",
        "adaptive:1,2",
        "adaptive:8,9,16",
        "adaptive:4,8,2",
        "fixed:-1",
        "fixed:0",
        "fixed:65",
        pytest.param("fixed:" + "9" * 5000, id="many digits"),
    ],
)
def test_invalid_window_policies_are_refused(text: str) -> None:
    with pytest.raises(ModelError):
        window_from(text)
