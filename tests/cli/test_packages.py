"""Drafts that packages declare, in real servers: the same tokens as without, whatever the draft is
worth.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.package import FILE
from tests import zoo
from tests.cli.inside import omlx
from tests.cli.serving import Serving, serving
from tests.zoo.build import save_family

DEMO = BUNDLED / "omlx-demo"
CODE = "def add(first, second):\n    total = first + second\n    return total"
ASK: list[Any] = [{"role": "user", "content": f"Repeat this code exactly.\n\n{CODE}"}]
OFF = {"speculation": "off"}
ENDLESS = {"0": -100, "2": -100}
"""A bias against the tokens that end an answer."""


def declare(folder: Path, draft: str, **window: object) -> None:
    """Write the package file of the format's own example, with this draft and window."""
    policy = {
        "default": "adaptive",
        "initial_window": 16,
        "min_window": 2,
        "max_window": 16,
        **window,
    }
    strategy = {"type": "draft-model", "draft_model": draft, "window_policy": policy}
    block = {"default": "llama32-1b-q4", "strategies": {"llama32-1b-q4": strategy}}
    (folder / FILE).write_text(json.dumps({"generation": {"speculative_decoding": block}}))


def place(home: Path, name: str, demo: str) -> Path:
    return Path(shutil.copytree(DEMO / demo, home / ".omlx/models/org" / name))


def scramble(weights: Path) -> None:
    """Replace weights by noise of the same shapes."""
    arrays: dict[str, mx.array] = mx.load(str(weights))
    keys = mx.random.split(mx.random.key(0), len(arrays))
    noise = {
        name: mx.random.normal(array.shape, scale=array.shape[-1] ** -0.5, key=key)
        if array.ndim > 1
        else array
        for (name, array), key in zip(arrays.items(), keys, strict=True)
    }
    mx.save_safetensors(str(weights), noise)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three copies of one model whose packages declare a good draft, a GGUF file, and a draft that
    knows nothing.
    """
    home = tmp_path_factory.mktemp("home")
    place(home, "small", "draft")
    scramble(place(home, "noise", "draft") / "model.safetensors")
    declare(place(home, "cold", "target"), "org/small", default="fixed", initial_window=4)
    declare(place(home, "design", "target"), "unsloth/Llama-3.2-1B-Instruct-GGUF:Q4_K_M")
    declare(place(home, "worst", "target"), "org/noise")
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Serving]:
    with serving(home, "org/design", OMLX_CALIBRATE="on") as server:
        yield server


def chat(server: Serving, model: str, **fields: Any) -> ChatCompletion:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked = {
            "model": model,
            "messages": ASK,
            "max_tokens": 60,
            "seed": 3,
            "logprobs": True,
            **fields,
        }
        return client.chat.completions.create(**asked)


def tokens(answer: ChatCompletion) -> list[tuple[str, list[int] | None]]:
    assert answer.choices[0].logprobs is not None
    return [(each.token, each.bytes) for each in answer.choices[0].logprobs.content or []]


def timings(answer: ChatCompletion) -> dict[str, Any]:
    reply: dict[str, Any] = answer.timings
    return reply


def status(server: Serving, model: str) -> dict[str, Any]:
    reply: dict[str, Any] = (
        httpx.get(f"{server.url}/v1/models/{model}").raise_for_status().json()["speculation"]
    )
    return reply


def test_a_cold_start_from_a_package_alone_drafts_and_says_what_plain_decoding_says(
    home: Path,
) -> None:
    with serving(home, "org/cold", "--no-calibrate", OMLX_CALIBRATE="on") as server:
        assert "Draft model: org/small" in server.announced
        for temperature in (0.0, 0.8):
            alone = chat(server, "org/cold", temperature=temperature)
            # Whether it pays is for the machine to say; a number is obeyed.
            drafted = chat(
                server, "org/cold", temperature=temperature, extra_body={"num_draft_tokens": 4}
            )
            plain = chat(server, "org/cold", temperature=temperature, extra_body=OFF)
            assert tokens(alone) == tokens(drafted) == tokens(plain)
            assert len(tokens(plain)) > 20
            assert timings(drafted)["drafters"]["org/small"]["accepted"] > 0
            assert timings(plain)["drafters"] == {}
        reply = status(server, "org/cold")
    assert reply["calibration"] == "off"
    assert (reply["draft"], reply["draft_source"], reply["reason"]) == (
        "org/small",
        "package",
        None,
    )


@pytest.mark.slow
def test_a_package_that_declares_a_gguf_file_serves_plainly_and_says_why(server: Serving) -> None:
    assert any("GGUF file, which MLX cannot run" in line for line in server.announced)
    answer = chat(server, "org/design")
    assert tokens(answer) == tokens(chat(server, "org/design", extra_body=OFF))
    assert set(timings(answer)["drafters"]) <= {"mtp", "ngram"}
    gate = timings(answer)["speculation"]["gates"]["draft"]
    assert (gate["state"], gate["reason"]["code"]) == ("off", "draft.unfit.gguf")
    reply = status(server, "org/design")
    assert (reply["draft"], reply["reason"]["code"], reply["wanted"]) == (
        None,
        "draft.unfit.gguf",
        None,
    )
    assert reply["calibration"] in ("pending", "done")
    assert reply["draft_configured"] == "unsloth/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"
    assert (reply["draft_source"], reply["effective"]) == ("package", "auto")


@pytest.mark.slow
def test_a_useless_draft_is_turned_off_and_changes_nothing(server: Serving) -> None:
    long = {"max_tokens": 1000, "temperature": 1.0, "logit_bias": ENDLESS, "logprobs": False}
    plain = chat(server, "org/worst", **long, extra_body=OFF)
    off, all_rounds = {"state": "off", "code": "spec.off.does_not_pay"}, 0
    for _ in range(5):  # what pays is measured: other programs may disturb that, but not for long
        answer = chat(server, "org/worst", **long)
        assert answer.choices[0].message.content == plain.choices[0].message.content
        reply = timings(answer)
        assert reply["predicted_n"] == timings(plain)["predicted_n"] == 1000
        gate = reply["speculation"]["gates"]["org/noise"]
        rounds = reply["drafters"].get("org/noise", {"rounds": 0})["rounds"]
        all_rounds += rounds
        if outcome(gate) == off or rounds <= 20:
            break
    else:
        pytest.fail(f"it drafts for ever: {gate}, {rounds} rounds")
    seen = status(server, "org/worst")
    assert seen["draft"] == "org/noise"
    assert outcome(seen["drafters"]["org/noise"]) == outcome(gate)
    assert seen["drafters"]["org/noise"]["rounds"] == all_rounds


def outcome(gate: dict[str, Any]) -> dict[str, Any]:
    """The state of a gate, and the code of its reason."""
    return {"state": gate["state"], "code": gate["reason"] and gate["reason"]["code"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "code"),
    [
        pytest.param("org/none", "draft.not_here", marks=pytest.mark.slow),
        pytest.param("head", "draft.unfit.head_only", marks=pytest.mark.slow),
        ("stuck", "spec.off.cache"),
        pytest.param("./folder", "draft.malformed", marks=pytest.mark.slow),
    ],
)
def test_a_draft_of_the_command_line_that_cannot_be_used_stops_no_start(
    tmp_path: Path, named: str, code: str
) -> None:
    place(tmp_path, "big", "target")
    head = place(tmp_path, "head", "draft") / "config.json"
    head.write_text(
        json.dumps({**json.loads(head.read_text()), "architectures": ["LlamaForCausalLMEagle"]})
    )
    save_family(zoo.FAMILIES["deepseek_v41"], place(tmp_path, "stuck", "draft"))
    with serving(tmp_path, "org/big", "--draft-model", named) as server:
        reply = status(server, "org/big")
        assert chat(server, "org/big", max_tokens=4).choices
    assert (reply["draft"], reply["draft_configured"], reply["draft_source"]) == (
        None,
        named,
        "cli",
    )
    assert reply["reason"]["code"] == code
    assert reply["reason"]["message"] in server.announced


@pytest.mark.slow
def test_a_server_that_runs_takes_up_what_others_keep_and_they_hear_what_it_does_not(
    tmp_path: Path,
) -> None:
    place(tmp_path, "big", "target")
    place(tmp_path, "small", "draft")
    with serving(tmp_path, "org/big") as server:
        assert status(server, "org/big")["draft"] is None
        assert server.url in omlx(tmp_path, "config", "set", "port", "8001").stderr
        assert omlx(tmp_path, "config", "set", "draft_model", "org/small").stderr == ""
        end = time.monotonic() + 120
        while (draft := status(server, "org/big")["draft"]) is None and time.monotonic() < end:
            time.sleep(0.2)  # between two looks: the server looks at its files every few seconds
    assert draft == "org/small"


WATCH = """\
import os, sys
log = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(event, args):
    if event == "open" and str(args[0]).endswith(".safetensors"):
        os.write(log, f"{args[0]}\\n".encode())
sys.addaudithook(note)
"""
"""Notes which weights a process opens: before a model is read, its files are looked at from Python.
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "reason", "opened"),
    [
        (["--no-draft"], "spec.off.no_draft", {"big"}),
        ([], "spec.off.draft_failed", {"big", "small"}),
    ],
    ids=["no-draft", "draft"],
)
def test_a_draft_that_is_garbage_stops_no_start_and_with_no_draft_is_not_opened(
    tmp_path: Path, flags: list[str], reason: str, opened: set[str]
) -> None:
    declare(place(tmp_path, "big", "target"), "org/small")
    (place(tmp_path, "small", "draft") / "model.safetensors").write_bytes(os.urandom(4096))
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    with serving(
        tmp_path, "org/big", *flags, PYTHONPATH=paths, OPENED=str(tmp_path / "opened")
    ) as server:
        answer = chat(server, "org/big")
        assert tokens(answer) == tokens(chat(server, "org/big", extra_body=OFF))
        assert timings(answer)["speculation"]["gates"]["draft"]["reason"]["code"] == reason
        reply = status(server, "org/big")
    assert (reply["draft"], reply["reason"]["code"]) == (None, reason)
    assert reply["reason"]["message"] in server.announced
    assert {
        Path(line).parent.name for line in (tmp_path / "opened").read_text().splitlines()
    } == opened
