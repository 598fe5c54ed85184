"""Every check passes on a server that does everything right, and fails on those that do not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from lab.conformance.checks import CHECKS, judge
from lab.conformance.client import Client, Outcome, Result, Unreachable
from lab.tests import flaws
from lab.tests.word_server import WordServer
from tests.server.running import serving

BY_NAME = {check.name: check for check in CHECKS}
FAILURES: list[tuple[type[WordServer], str, str]] = [
    (flaws.Random, "greedy", "differs after 0 characters"),
    (flaws.Mute, "greedy", "an empty answer"),
    (flaws.Crashes, "greedy", "500: out of memory"),
    (flaws.OtherForm, "greedy", "another form"),
    (flaws.Unseeded, "seed", "differs after"),
    (flaws.Batched, "greedy_company", "differs after"),
    (flaws.Batched, "seed_company", "differs after"),
    (flaws.OneSeed, "seeds", "4 seeds, one answer"),
    (flaws.CacheMatters, "cached", "differs after"),
    (flaws.AllCached, "cached", "of a new prompt cached"),
    (flaws.MoreCached, "cached", "of a second turn cached"),
    (flaws.LostPiece, "stream", "differs after"),
    (flaws.OtherFinish, "stream", "finish_reason is length, then stop"),
    (flaws.NoFinish, "stream", "a stream without finish_reason"),
    (flaws.NoDone, "stream", "without [DONE]"),
    (flaws.ManyIds, "stream", "several ids"),
    (flaws.OtherObject, "stream", "a chunk whose object is 'chat.completion'"),
    (flaws.LateText, "stream", "text after finish_reason"),
    (flaws.WrongSum, "usage", "tokens are 1"),
    (flaws.OneTooMany, "usage", "49 tokens, max_tokens 48"),
    (flaws.OnePrompt, "usage", "of one twice as long"),
    (flaws.NegativeUsage, "usage", '"prompt_tokens": -1'),
    (flaws.OtherStreamUsage, "stream_usage", "in the stream"),
    (flaws.StopIgnored, "stop", "body: ends with"),
    (flaws.StopKept, "stop", "body: ends with"),
    (flaws.StopIsLength, "stop", "body: finish_reason length"),
    (flaws.StopIgnoredInStreams, "stop", "stream: ends with"),
    (flaws.Prose, "tool_call", "0 calls where one is required"),
    (flaws.TwoCalls, "tool_call", "2 calls where one is required"),
    (flaws.CutCall, "tool_call", "no JSON"),
    (flaws.UntypedCall, "tool_call", "loud is 1"),
    (flaws.CallIsLength, "tool_call", "finish_reason length"),
    (flaws.NameTwice, "tool_stream", "a call of 'set_alarmset_alarm"),
    (flaws.OtherStreamCall, "tool_stream", "differs after"),
    (flaws.Prose, "schema", "no JSON"),
    (flaws.Unconstrained, "schema", "colour is 'grey'"),
    (flaws.MoreProperties, "schema", "properties ['bright', 'colour', 'size']"),
    (flaws.Unprocessable, "errors", "invalid messages: status 422"),
    (flaws.Detail, "errors", "no error.message"),
    (flaws.PlainErrors, "errors", "no JSON"),
    (flaws.Credulous, "errors", "invalid temperature: status 200"),
]
NOT_SUPPORTED: list[tuple[type[WordServer], str, str]] = [
    (flaws.Refuses, "seed", "400: seed is not supported"),
    (flaws.Alone, "greedy_company", "400: busy"),
    (flaws.NoCache, "cached", "equal answers, cached_tokens 0"),
    (flaws.NoUsage, "usage", "no usage"),
    (flaws.NoStreamUsage, "stream_usage", "no usage"),
    (flaws.Refuses, "stop", "400: stop is not supported"),
    (flaws.Refuses, "tool_call", "400: tools is not supported"),
    (flaws.Refuses, "tool_stream", "400: tools is not supported"),
    (flaws.Refuses, "schema", "400: response_format is not supported"),
]


def label(case: object) -> str:
    return getattr(case, "__name__", str(case))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One socket with all servers, each below the name of its class."""
    cases = [*FAILURES, *NOT_SUPPORTED]
    classes = {WordServer, flaws.Crashes, flaws.Nothing, *(server for server, _, _ in cases)}
    routes = [Mount(f"/{server.__name__}", server().app) for server in classes]
    with serving(Starlette(routes=routes)) as url:
        yield url


def run(url: str, server: type[WordServer], name: str) -> Result:
    client = Client(f"{url}/{server.__name__}/v1/")
    client.model = "words"
    return judge(BY_NAME[name], client)


def test_a_right_server_passes_everything(url: str) -> None:
    client = Client(f"{url}/WordServer", "key")
    client.connect(None)
    results = [judge(check, client) for check in CHECKS]
    assert client.model == "words"
    assert {result.name: result.seen for result in results if result.outcome != "passed"} == {}


@pytest.mark.parametrize(("server", "name", "seen"), FAILURES, ids=label)
def test_a_flaw_fails(url: str, server: type[WordServer], name: str, seen: str) -> None:
    result = run(url, server, name)
    assert result.outcome is Outcome.FAILED, result
    assert seen in result.seen


@pytest.mark.parametrize(("server", "name", "seen"), NOT_SUPPORTED, ids=label)
def test_what_is_refused_or_left_out_is_not_supported(
    url: str, server: type[WordServer], name: str, seen: str
) -> None:
    result = run(url, server, name)
    assert result.outcome is Outcome.NOT_SUPPORTED, result
    assert seen in result.seen


def test_every_check_can_fail() -> None:
    assert {name for _, name, _ in FAILURES} == set(BY_NAME)


@pytest.mark.parametrize(
    ("server", "said"),
    [(flaws.Nothing, "lists no model"), (flaws.Crashes, "does not answer")],
    ids=label,
)
def test_a_server_without_model_or_answer_is_not_checked(
    url: str, server: type[WordServer], said: str
) -> None:
    with pytest.raises(Unreachable, match=said):
        Client(f"{url}/{server.__name__}").connect(None)


@pytest.mark.parametrize("address", ["", "ftp://127.0.0.1", "http://127.0.0.1:port", "http://"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(Unreachable, match="is no address of a server"):
        Client(address)


def test_a_password_in_the_address_is_not_repeated() -> None:
    assert Client("127.0.0.1:80/v1").url == "http://127.0.0.1:80"
    assert Client("https://user:secret@localhost/api/v1").url == "https://localhost/api"


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that accepts connections, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_sends_nothing_fails_in_time(silent: str) -> None:
    client = Client(silent, request_s=0.05)
    assert judge(BY_NAME["greedy"], client).seen == "timed out"
    assert judge(BY_NAME["greedy_company"], client).outcome is Outcome.FAILED


def test_a_run_has_a_budget_of_time(silent: str) -> None:
    client = Client(silent, budget_s=0)
    assert judge(BY_NAME["greedy"], client).seen == "no time is left for this run"


def test_an_endless_answer_ends(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("lab.conformance.client.MAX_BYTES", 100)
    assert "more than 100 bytes" in run(url, WordServer, "greedy").seen
