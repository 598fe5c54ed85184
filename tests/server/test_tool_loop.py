"""Tools that the server runs within an answer: MCP servers and web search, by official clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anthropic import PermissionDeniedError as Forbidden
from openai import APIStatusError, BadRequestError, OpenAI, PermissionDeniedError

from omlx.settings.keys import KeyFile
from omlx.settings.schema import Settings
from tests.server.dialects import markup, user
from tests.server.journal.streams import copy_files, journaled, numbered
from tests.server.running import TARGET, Running, omlx
from tests.server.spelling import CONTEXT, spelling_pool
from tests.tools.test_tools import COMMAND, answering, needs_mcp

pytestmark = needs_mcp

PAGES = [{"title": "Elbe", "url": "http://a.example/elbe", "content": "A river."}]
PROBE = f"{COMMAND} few"
FOUND = "Elbe\nhttp://a.example/elbe\nA river."
REPEATED = "<tool_response>\n{}\n</tool_response>"
"""What the model answers to a result: the message that has it."""
FREE: dict[str, Any] = {"type": "mcp", "server_label": "probe", "require_approval": "never"}
ASKING: dict[str, Any] = {"type": "mcp", "server_label": "probe"}
SEARCH: dict[str, Any] = {"type": "web_search"}
LOOK: dict[str, Any] = {"type": "function", "name": "look", "parameters": {"type": "object"}}
ADD = markup("probe__add", a=2, b=40)


@contextmanager
def serving(home: Path | None = None, pages: Any = PAGES, **settings: Any) -> Iterator[Running]:
    with (
        answering(json.dumps({"results": PAGES})) as (address, _),
        omlx(
            Settings(mcp_server=(f"probe={PROBE}",), web_search=address, **settings),
            build=spelling_pool,
            keep_alive_s=0.2,
            home=home,
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def looping() -> Iterator[Running]:
    with serving(api_tools="own") as running:
        yield running


@pytest.fixture
def ask(looping: Running) -> OpenAI:
    return looping.openai


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


def test_a_response_goes_on_with_the_result_of_an_mcp_call(ask: OpenAI) -> None:
    response = ask.responses.create(model=TARGET, input=ADD, tools=[FREE])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    listed, call, _ = response.output
    assert "add" in [tool.name for tool in listed.tools]
    assert (call.name, json.loads(call.arguments), call.output) == ("add", {"a": 2, "b": 40}, "42")
    assert (response.status, response.output_text) == ("completed", REPEATED.format(42))
    assert not (response.model_extra or {}).get("warnings")


def test_usage_adds_up_and_a_limit_is_of_the_whole_answer(ask: OpenAI) -> None:
    whole = ask.responses.create(model=TARGET, input=ADD, tools=[FREE]).usage
    plain = ask.responses.create(model=TARGET, input=ADD, tools=[FREE], max_output_tokens=5)
    assert (plain.status, plain.usage.output_tokens) == ("incomplete", 5)
    assert whole.input_tokens > plain.usage.input_tokens * 2
    left = whole.model_extra["context_left"]
    assert left > whole.model_extra["context_length"] - whole.input_tokens
    cut = whole.output_tokens - 2
    response = ask.responses.create(model=TARGET, input=ADD, tools=[FREE], max_output_tokens=cut)
    assert (response.status, response.usage.output_tokens) == ("incomplete", cut)


def test_a_stream_has_the_events_of_the_call_and_the_same_items(ask: OpenAI) -> None:
    with ask.responses.stream(model=TARGET, input=ADD, tools=[FREE]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    seen = dict.fromkeys(event.type for event in events if "mcp" in event.type)
    assert list(seen) == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]
    assert kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
    assert ask.responses.retrieve(final.id).output[1].output == "42"


def test_a_call_waits_for_an_approval_by_default(ask: OpenAI) -> None:
    asked = ask.responses.create(model=TARGET, input=ADD, tools=[ASKING])
    assert kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]
    request = asked.output[1]
    assert (request.name, json.loads(request.arguments)["b"]) == ("add", 40)
    decision = {"type": "mcp_approval_response", "approval_request_id": request.id}

    def answer(**decided: Any) -> Any:
        return ask.responses.create(
            model=TARGET, previous_response_id=asked.id, input=[decision | decided], tools=[ASKING]
        )

    allowed = answer(approve=True)
    assert kinds(allowed) == ["mcp_list_tools", "mcp_call", "message"]
    assert (allowed.output[1].output, allowed.output[1].approval_request_id) == ("42", request.id)
    assert allowed.output_text == REPEATED.format(42)
    said = [each.model_dump(exclude_none=True) for each in (*asked.output, *allowed.output)]
    said.insert(len(asked.output), decision | {"approve": True})
    turns = [{"role": "user", "content": ADD}, *said, {"role": "user", "content": "on"}]
    resent = ask.responses.create(model=TARGET, input=turns, tools=[ASKING], store=False)
    assert kinds(resent) == ["mcp_list_tools", "message"]  # the call has its result
    refused = answer(approve=False, reason="Not today.")
    assert refused.output_text == REPEATED.format("The user refused this call. Not today.")
    again = {"model": TARGET, "previous_response_id": allowed.id, "tools": [ASKING]}
    with pytest.raises(BadRequestError, match="no tool call"):
        ask.responses.create(input=[decision | {"approve": True}], **again)
    assert ask.responses.create(input="on", **again).output_text == "on"


@pytest.mark.parametrize(
    "rule", [{"never": {"tool_names": ["add"]}}, {"always": {"read_only": True}}]
)
def test_rules_say_which_calls_wait(ask: OpenAI, rule: Any) -> None:
    tool = ASKING | {"require_approval": rule}
    assert "mcp_call" in kinds(ask.responses.create(model=TARGET, input=ADD, tools=[tool]))
    quiet = markup("probe__pid") if "always" in rule else markup("probe__fail")
    assert "mcp_approval_request" in kinds(
        ask.responses.create(model=TARGET, input=quiet, tools=[tool])
    )


def test_only_allowed_tools_are_listed(ask: OpenAI) -> None:
    for allowed, names in ((["add", "fail"], ["add", "fail"]), ({"read_only": True}, ["pid"])):
        tool = FREE | {"allowed_tools": allowed}
        response = ask.responses.create(model=TARGET, input="a", tools=[tool])
        assert [tool.name for tool in response.output[0].tools] == names


def test_a_failed_call_is_a_result(ask: OpenAI) -> None:
    wrong = markup("probe__add", a="x", b=1)
    response = ask.responses.create(model=TARGET, input=wrong, tools=[FREE])
    call = response.output[1]
    assert (call.status, call.output) == ("failed", None)
    assert "validation error" in call.error.content[0]["text"]
    assert call.error.content[0]["text"] in response.output_text


def test_calls_of_the_client_end_the_answer(ask: OpenAI) -> None:
    both = ADD + "\n" + markup("look")
    response = ask.responses.create(model=TARGET, input=both, tools=[FREE, LOOK])
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "function_call"]
    output = {"type": "function_call_output", "call_id": response.output[2].call_id, "output": "x"}
    then = ask.responses.create(
        model=TARGET, previous_response_id=response.id, input=[output], tools=[FREE, LOOK]
    )
    assert then.output_text == REPEATED.format("x")


def test_a_search_of_responses_has_its_query_and_sources(ask: OpenAI) -> None:
    call = markup("web__search", query="rivers")
    response = ask.responses.create(model=TARGET, input=call, tools=[SEARCH])
    found, _ = response.output
    assert found.action.query == "rivers"
    assert [source.url for source in found.action.sources] == ["http://a.example/elbe"]
    assert response.output_text == REPEATED.format(FOUND)
    follow = ask.responses.create(
        model=TARGET, input=[*response.output, *user("on")], tools=[SEARCH]
    )
    assert (follow.output_text, (follow.model_extra or {}).get("warnings")) == ("on", None)


def test_a_choice_forces_the_first_call_alone(ask: OpenAI) -> None:
    choice: Any = {"type": "mcp", "server_label": "probe", "name": "pid"}
    response = ask.responses.create(
        model=TARGET, input=markup("probe__pid"), tools=[FREE], tool_choice=choice
    )
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    with pytest.raises(BadRequestError, match="probe__nothing") as refused:
        ask.responses.create(
            model=TARGET, input="a", tools=[FREE], tool_choice=choice | {"name": "nothing"}
        )
    assert refused.value.param == "tool_choice"


def test_calls_are_bounded_and_those_of_the_client_are_not(ask: OpenAI) -> None:
    loop = "\n".join(markup("probe__echo", text=f"{n}") for n in range(2))
    response = ask.responses.create(model=TARGET, input=loop, tools=[FREE], max_tool_calls=1)
    first, second = (item for item in response.output if item.type == "mcp_call")
    assert (first.output, second.status) == ("0", "failed")
    assert "limit of calls" in response.output_text
    then = markup("probe__echo", text=markup("look"))
    response = ask.responses.create(model=TARGET, input=then, tools=[FREE, LOOK], max_tool_calls=1)
    assert "function_call" in kinds(response)
    tool = ASKING | {"require_approval": {"never": {"tool_names": ["add"]}}}
    fields: dict[str, Any] = {"model": TARGET, "tools": [tool], "max_tool_calls": 1}
    asked = ask.responses.create(input=markup("probe__echo", text=ADD), **fields)
    approval: Any = {"type": "mcp_approval_response", "approve": True}
    approval["approval_request_id"] = asked.output[1].id
    response = ask.responses.create(previous_response_id=asked.id, input=[approval], **fields)
    calls = [item.status for item in response.output if item.type == "mcp_call"]
    assert calls == ["completed", "failed"]


def test_a_response_in_the_background_can_be_cancelled(ask: OpenAI) -> None:
    fields: dict[str, Any] = {"model": TARGET, "tools": [FREE], "background": True, "stream": True}
    with ask.responses.create(input=markup("probe__hang"), **fields) as events:
        id = next(events).response.id
        next(event for event in events if event.type == "response.mcp_call_arguments.done")
    assert ask.responses.retrieve(id).status == "in_progress"  # its reader has left
    assert ask.responses.cancel(id).status == "cancelled"
    with ask.responses.create(input=ADD, **fields) as events:
        final = list(events)[-1].response
    assert (final.status, kinds(final)) == ("completed", ["mcp_list_tools", "mcp_call", "message"])
    cancelled = ask.responses.retrieve(id)
    assert (cancelled.status, kinds(cancelled)) == ("cancelled", ["mcp_list_tools", "mcp_call"])


def test_a_request_that_is_stopped_ends_its_call(looping: Running) -> None:
    body = {"model": TARGET, "input": markup("probe__hang"), "tools": [FREE], "stream": True}
    body["store"] = False  # else the answer has no comments while a call runs
    with looping.http.stream("POST", "/v1/responses", json=body) as response:
        lines = response.iter_lines()
        created = json.loads(next(line for line in lines if line.startswith("data: "))[6:])
        next(line for line in lines if "mcp_call_arguments.done" in line)
        next(line for line in lines if line.startswith(":"))  # the connection is kept open
        id = created["response"]["id"]
        assert looping.http.post(f"/v1/requests/{id}/cancel").status_code == 200
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last[6:])["response"]["error"]["code"] == "request.cancelled"


def test_tokens_of_a_request_include_its_tools(ask: OpenAI) -> None:
    plain, tooled = (
        ask.responses.input_tokens.count(model=TARGET, input="a", tools=tools).input_tokens
        for tools in ([], [FREE])
    )
    assert tooled > plain + 100


def test_messages_go_on_with_the_result_of_an_mcp_call(looping: Running) -> None:
    servers: list[Any] = [{"type": "url", "name": "probe"}]
    toolset: Any = {"type": "mcp_toolset", "mcp_server_name": "probe"}
    fields: dict[str, Any] = {
        "model": TARGET,
        "max_tokens": 200,
        "mcp_servers": servers,
        "tools": [toolset],
        "betas": ["mcp-client-2025-11-20"],
    }
    messages: list[Any] = user(ADD)
    answer = looping.claude.beta.messages.create(messages=messages, **fields)
    use, result, text = answer.content
    assert (use.type, use.name, use.server_name, use.input) == (
        *("mcp_tool_use", "add", "probe"),
        {"a": 2, "b": 40},
    )
    assert (result.tool_use_id, result.is_error, result.content[0].text) == (use.id, False, "42")
    assert (text.text, answer.stop_reason) == (REPEATED.format(42), "end_turn")
    with looping.claude.beta.messages.stream(messages=messages, **fields) as stream:
        streamed = stream.get_final_message()
    assert [block.type for block in streamed.content] == [block.type for block in answer.content]
    assert streamed.content[0].input == use.input
    turns = [*messages, {"role": "assistant", "content": answer.content}, *user("on")]
    follow = looping.claude.beta.messages.create(messages=turns, **fields)
    assert (follow.content[-1].text, follow.model_extra.get("warnings")) == ("on", None)


def test_a_search_of_messages_has_its_pages(looping: Running) -> None:
    tools: list[Any] = [{"type": "web_search_20250305", "name": "web_search"}]
    fields: dict[str, Any] = {"model": TARGET, "max_tokens": 200, "tools": tools}
    messages: list[Any] = user(markup("web__search", query="rivers"))
    answer = looping.claude.messages.create(messages=messages, **fields)
    use, result, text = answer.content
    assert (use.type, use.name, use.input) == ("server_tool_use", "web_search", {"query": "rivers"})
    assert [(page.title, page.url) for page in result.content] == [("Elbe", PAGES[0]["url"])]
    assert (text.text, answer.usage.server_tool_use.web_search_requests) == (
        REPEATED.format(FOUND),
        1,
    )
    turns = [*messages, {"role": "assistant", "content": answer.content}, *user("on")]
    follow = looping.claude.messages.create(messages=turns, **fields)
    assert (follow.content[-1].text, (follow.model_extra or {}).get("warnings")) == ("on", None)


def test_the_bound_of_a_search_is_of_searches_alone(looping: Running) -> None:
    search = markup("web__search", query="rivers")
    toolset = {"type": "mcp_toolset", "mcp_server_name": "probe"}
    answer = looping.claude.beta.messages.create(
        model=TARGET,
        max_tokens=400,
        messages=user("\n".join((search, search, ADD))),
        mcp_servers=[{"type": "url", "name": "probe"}],
        tools=[
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 1},
            {"type": "web_search_20260209", "name": "web_search"},
            toolset,
        ],
        betas=["mcp-client-2025-11-20"],
    )
    first, second = (each for each in answer.content if each.type == "web_search_tool_result")
    assert [page.title for page in first.content] == ["Elbe"]
    assert second.content.error_code == "max_uses_exceeded"
    (sum,) = (each for each in answer.content if each.type == "mcp_tool_result")
    assert (sum.content[0].text, answer.stop_reason) == ("42", "end_turn")


@pytest.mark.parametrize("tool", [FREE, pytest.param(ASKING, marks=pytest.mark.slow)])
def test_results_are_cut_to_the_room_in_the_context(ask: OpenAI, tool: Any) -> None:
    create = partial(ask.responses.create, model=TARGET, tools=[tool], max_output_tokens=40)
    response = create(input=markup("probe__long", length=90_000))
    if tool is ASKING:
        approval: Any = {"type": "mcp_approval_response", "approve": True}
        approval["approval_request_id"] = response.output[1].id
        response = create(input=[approval], previous_response_id=response.id)
    text = response.output[1].output
    assert (response.error, text.endswith(" more characters]")) == (None, True)
    assert CONTEXT // 4 < text.count("x") < CONTEXT * 3 // 4


def test_short_results_may_take_the_room_of_an_answer(ask: OpenAI) -> None:
    calls = "\n".join(markup("probe__echo", text=text) for text in ("", "ok"))
    long: Any = [*user(" word" * (CONTEXT * 3 // 4)), *user(calls)]
    response = ask.responses.create(model=TARGET, input=long, tools=[FREE], max_output_tokens=120)
    outputs = [item.output for item in response.output if item.type == "mcp_call"]
    assert outputs == ["", "ok"]


def test_approved_calls_count_for_the_timeout(ask: OpenAI) -> None:
    asked = ask.responses.create(model=TARGET, input=markup("probe__hang"), tools=[ASKING])
    decision = {"type": "mcp_approval_response", "approve": True}
    with pytest.raises(APIStatusError) as ended:
        ask.responses.create(
            model=TARGET,
            previous_response_id=asked.id,
            input=[decision | {"approval_request_id": asked.output[1].id}],
            tools=[ASKING],
            extra_body={"timeout": 0.3},
        )
    assert (ended.value.status_code, ended.value.code) == (504, "request.timeout")


def test_a_server_named_by_address_has_the_label_of_the_request(ask: OpenAI) -> None:
    tool = FREE | {"server_label": "docs", "server_url": PROBE}
    choice: Any = {"type": "mcp", "server_label": "docs", "name": "add"}
    response = ask.responses.create(
        model=TARGET, input=markup("docs__add", a=2, b=40), tools=[tool], tool_choice=choice
    )
    assert [item.server_label for item in response.output[:2]] == ["docs", "docs"]
    assert response.output[1].output == "42"


def test_servers_beside_those_of_the_settings_are_refused(ask: OpenAI) -> None:
    for tool, code in (
        (FREE | {"server_url": "http://127.0.0.1:9/mcp"}, "toolbox.address"),
        (FREE | {"server_label": "other"}, "toolbox.no_label"),
        (FREE | {"server_label": "web"}, "toolbox.no_label"),
        (FREE | {"headers": {"a": "b"}}, "request.unsupported"),
    ):
        with pytest.raises(BadRequestError) as refused:
            ask.responses.create(model=TARGET, input="a", tools=[tool])
        assert refused.value.code == code
        assert "tools[0]" in str(refused.value)


def test_nothing_runs_unless_a_setting_allows_it(looping: Running) -> None:
    with serving() as closed:
        with pytest.raises(PermissionDeniedError, match="api_tools own"):
            closed.openai.responses.create(model=TARGET, input=ADD, tools=[FREE])
        servers: list[Any] = [{"type": "url", "name": "probe"}]
        with pytest.raises(Forbidden, match="api_tools own"):
            closed.claude.beta.messages.create(
                model=TARGET, max_tokens=9, messages=user("a"), mcp_servers=servers
            )
        response = closed.openai.responses.create(model=TARGET, input="a", tools=[SEARCH])
        (warning,) = (response.model_extra or {})["warnings"]
        assert warning["code"] == "tools.skipped.search"


def test_a_named_key_needs_the_right_of_its_own(tmp_path: Path) -> None:
    key = KeyFile(tmp_path).add("laptop")
    body: dict[str, Any] = {"model": TARGET, "input": "a"}
    headers = {"Authorization": f"Bearer {key}"}
    with serving(tmp_path, api_tools="own") as running:
        post = partial(running.http.post, "/v1/responses", headers=headers)
        refused = post(json=body | {"tools": [FREE]})
        searched = post(json=body | {"tools": [SEARCH]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "toolbox.api_key")
    assert [each["code"] for each in searched.json()["warnings"]] == ["tools.skipped.search"]


def test_an_answer_with_tools_is_not_recorded_and_says_so(looping: Running, tmp_path: Path) -> None:
    body = {"model": TARGET, "input": markup("web__search", query="a"), "tools": [SEARCH]}
    with journaled(looping, tmp_path / "answers") as (client, journal):
        keyed = client.post("/v1/responses", json=body, headers={"Idempotency-Key": "one"}).json()
        assert [each["code"] for each in keyed["warnings"]] == ["answer.off.tools"]
        stored = client.get(f"/v1/responses/{keyed['id']}").json()
        assert [item["type"] for item in stored["output"]] == ["web_search_call", "message"]
        streamed = client.post("/v1/responses", json=body | {"stream": True}).text
        assert "response.completed" in streamed
        assert "answer.off.tools" not in streamed
        assert journal.size == (0, 0)


def test_an_answer_begun_without_tools_is_not_continued_with_them(
    speller: Running, looping: Running, tmp_path: Path
) -> None:
    body = {"model": TARGET, "input": "word " * 40, "tools": [SEARCH], "stream": True}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with (
        journaled(speller, whole) as (client, _),
        client.stream("POST", "/v1/responses", json=body) as stream,
    ):
        _, created = next(events := numbered(stream))
        next(events)
        copy_files(whole, cut)
    with journaled(looping, cut) as (client, _):
        answer = client.get(f"/v1/responses/{created['response']['id']}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "answer.changed")
