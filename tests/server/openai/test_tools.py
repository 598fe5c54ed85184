"""Tools and reasoning by the official client, of models that spell the prompt or are forced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
from openai import BadRequestError, OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from omlx.models.catalog.discovery import BUNDLED, Registry
from omlx.models.catalog.registry import ModelEntry
from tests import lanes
from tests.lanes import few
from tests.server.dialects import markup, user
from tests.server.running import TARGET, omlx
from tests.server.test_contract import BOOK
from tests.server.test_contract import FORCED as SCHEMAS
from tests.text.test_harmony import TEMPLATE

PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    days: int = 1


TOOLS: list[Any] = [
    pydantic_function_tool(Weather, name="get_weather"),
    {"type": "function", "function": {"name": "look"}},
]


def ask(client: OpenAI, says: str, **fields: Any) -> ChatCompletion:
    fields = {"tools": TOOLS, "extra_body": PLAIN, "max_tokens": 400, **fields}
    return client.chat.completions.create(model=TARGET, messages=user(says), **fields)


def calls(answer: ChatCompletion, choice: int = 0) -> list[tuple[str, Any]]:
    found = answer.choices[choice].message.tool_calls or []
    return [(each.function.name, json.loads(each.function.arguments)) for each in found]


def test_a_stream_says_what_the_body_says(spelling: OpenAI) -> None:
    says = f"See.\n{markup('get_weather', city='Oslo', days=1)}{markup('look')}"
    with spelling.chat.completions.stream(
        model=TARGET, messages=user(says), tools=TOOLS, extra_body=PLAIN
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("See.", "tool_calls")
    parsed = [each.function.parsed_arguments for each in message.tool_calls or []]
    assert parsed[0] == Weather(city="Oslo")
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.arguments) for event in done] == [
        ("get_weather", '{"city": "Oslo", "days": 1}'),
        ("look", "{}"),
    ]
    assert sum(event.type == "tool_calls.function.arguments.delta" for event in events) > 2


def test_parse_gives_the_arguments_as_a_model(spelling: OpenAI) -> None:
    answer = spelling.chat.completions.parse(
        model=TARGET,
        messages=user(markup("get_weather", city="Rome", days=2)),
        tools=TOOLS[:1],
        extra_body=PLAIN,
    )
    (found,) = answer.choices[0].message.tool_calls or []
    assert found.function.parsed_arguments == Weather(city="Rome", days=2)
    assert answer.choices[0].message.content is None


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_all_that_the_model_is_told_of(spelling: OpenAI, mode: str) -> None:
    def choice(*names: str) -> Any:
        functions = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": functions}}

    alone = ask(spelling, markup("look", at="it"), tools=TOOLS[1:])
    answer = ask(spelling, markup("look", at="it"), tool_choice=choice("look"))
    assert calls(answer) == calls(alone) == [("look", {"at": "it"})]
    assert answer.usage.prompt_tokens == alone.usage.prompt_tokens
    with pytest.raises(BadRequestError, match="'jump'") as caught:
        ask(spelling, "x", tool_choice=choice("look", "jump"))
    assert (caught.value.code, caught.value.param) == ("tools.not_there", "tool_choice")


def test_a_thought_comes_before_a_forced_call(spelling: OpenAI) -> None:
    says = "<think>\nIt is there.\n</think>\n\n" + markup("look", at="it")
    answer = ask(spelling, says, tool_choice="required", extra_body={})
    message: Any = answer.choices[0].message
    assert message.reasoning_content == "It is there."
    assert calls(answer) == [("look", {"at": "it"})]


@pytest.mark.parametrize("fields", [{}, {"stop": "\n\nnever"}])
def test_without_parallel_calls_the_first_one_ends_the_answer(
    spelling: OpenAI, fields: dict[str, Any]
) -> None:
    says = markup("look", at="it") + markup("get_weather", city="Oslo") + " and much more" * 400
    answer = ask(spelling, says, parallel_tool_calls=False, max_tokens=1500, **fields)
    assert calls(answer) == [("look", {"at": "it"})]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens < 800  # more than 40 where the engine is far ahead


def test_a_call_that_is_cut_off_is_of_length(spelling: OpenAI) -> None:
    answer = ask(spelling, markup("get_weather", city="Oslo" * 50), max_tokens=40)
    assert answer.choices[0].finish_reason == "length"
    (found,) = answer.choices[0].message.tool_calls or []
    assert found.function.arguments.startswith('{"city": "Oslo')


def test_reasoning_that_is_given_back_is_rendered(spelling: OpenAI) -> None:
    def tokens(**extra: Any) -> int:
        messages: list[Any] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", **extra},
            {"role": "user", "content": "c"},
        ]
        usage = spelling.chat.completions.create(
            model=TARGET, messages=messages, extra_body=PLAIN
        ).usage
        assert usage is not None
        return usage.prompt_tokens

    assert tokens(reasoning_content="why") > tokens()
    assert tokens(reasoning="why") == tokens(reasoning_content="why")


def test_an_answer_that_was_begun_goes_on(spelling: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "One, two, three."},
        {"role": "assistant", "content": "One, two,"},
    ]
    for fields in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        answer = spelling.chat.completions.create(
            model=TARGET, messages=messages, extra_body=fields
        )
        assert answer.choices[0].message.content == " three."


def test_choices_have_calls_of_their_own(spelling: OpenAI) -> None:
    answer = ask(spelling, markup("look"), n=2)
    ids = [choice.message.tool_calls[0].id for choice in answer.choices]
    assert len(set(ids)) == 2


ASKED = user("Say something else.")
FORCED = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
]


def forced(client: OpenAI, **fields: Any) -> Any:
    fields = {
        "max_tokens": 300,
        "reasoning_effort": "none",
        "tools": FORCED,
        "tool_choice": "required",
        **fields,
    }
    return client.chat.completions.create(model=TARGET, messages=ASKED, **fields)


def forced_calls(answer: Any, choice: int = 0) -> list[tuple[str, Any]]:
    """The calls of an answer: at least one, all of them valid."""
    message = answer.choices[choice].message
    assert not message.content
    assert answer.choices[choice].finish_reason == "tool_calls"
    assert message.tool_calls
    found = [
        (each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls
    ]
    for name, arguments in found:
        jsonschema.validate(arguments, SCHEMAS[name])
    return found


@pytest.mark.parametrize(
    ("temperature", "parallel"),
    few(product((0.0, 0.9), (True, False)), (0.0, False), (0.9, True)),
)
def test_speculation_changes_no_forced_call(
    client: OpenAI, temperature: float, parallel: bool
) -> None:
    fields: Any = {
        "temperature": temperature,
        "seed": 4,
        "parallel_tool_calls": parallel,
        "max_tokens": 120,
    }

    def ask(speculation: str) -> Any:
        return forced(client, **fields, logprobs=True, extra_body={"speculation": speculation})

    def tokens(answer: Any) -> list[str]:
        return [entry.token for entry in answer.choices[0].logprobs.content]

    off = ask("off")
    assert off.timings["drafters"] == {}
    for speculation in ("draft", "ngram", "auto"):
        on = ask(speculation)
        assert tokens(on) == tokens(off)
        drafter = on.timings["drafters"]["forced"]
        assert drafter["proposed"] >= drafter["accepted"] > 0
        assert drafter["proposed"] == drafter["accepted"] or not parallel, (
            "what is forced behind the only call is not said"
        )
    if not parallel:
        assert len(forced_calls(off)) == 1


def test_forced_calls_of_choices_are_their_own(client: OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "look"}}
    several = forced(client, tool_choice=named, n=3, temperature=1.0, seed=1)
    assert len({json.dumps(forced_calls(several, i)) for i in range(3)}) > 1


def test_allowed_tools_of_a_response(client: OpenAI) -> None:
    tools: Any = [{"type": "function", **tool["function"], "strict": False} for tool in FORCED]
    book = {"type": "function", "name": "book"}
    choice: Any = {"type": "allowed_tools", "mode": "required", "tools": [book]}
    fields: Any = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    fields |= {"model": TARGET, "input": "Say something.", "reasoning": {"effort": "none"}}
    with client.responses.stream(**fields) as stream:
        streamed = stream.get_final_response()
    for answer in (client.responses.create(**fields), streamed):
        (item,) = answer.output
        assert item.name == "book"
        jsonschema.validate(json.loads(item.arguments), BOOK)


M3: Final = "]<]minimax[>["
FAMILIES: Final = {
    "gpt-oss": (
        TEMPLATE,
        [f"<|{name}|>" for name in ("call", "start", "end", "message", "channel", "constrain")],
    ),
    "minimax m3": (
        f"{{# {M3} <tool_call> #}}"
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        [M3],
    ),
}
"""By family: a chat template, and its markers, which stand in the place of tokens that the bundled
model has, the first one in that of `<|endoftext|>`, which ends generation.
"""


@pytest.fixture(scope="module", params=FAMILIES)
def caller(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("models") / "model"
    shutil.copytree(BUNDLED / TARGET, folder)
    template, markers = FAMILIES[request.param]
    _rename_tokens(folder, template, markers)
    registry = Registry((ModelEntry("model", folder, "bundled"),))
    with omlx(registry=registry, default="model") as running:
        yield running.openai


def _rename_tokens(folder: Path, template: str, markers: list[str]) -> None:
    body = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    spare = [token for token in body["added_tokens"] if token["content"] != config["eos_token"]]
    for number, token in enumerate(spare):
        token["content"] = markers[number] if number < len(markers) else f"<|spare {number}|>"
        token["special"] = True
    assert len(spare) >= len(markers)
    (folder / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": config["eos_token"],
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def called(caller: OpenAI, *, strict: bool = False, **fields: Any) -> Any:
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]
    fields = {"max_tokens": 120, "temperature": 1.0, "logprobs": True, **fields}
    return caller.chat.completions.create(model="model", messages=ASKED, tools=tools, **fields)


def checked(choice: Any) -> int:
    """Return how many calls a choice made; all that ended are valid."""
    calls = choice.message.tool_calls or []
    if choice.finish_reason == "length":
        return 0
    for call in calls:
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    return len(calls)


NAMED: Final[Any] = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("choice", few([NAMED, "required"], NAMED))
def test_a_forced_call_is_valid_with_any_speculation(caller: OpenAI, choice: Any) -> None:
    for seed in range(2 if lanes.slow else 1):
        fields: Any = {"seed": seed, "tool_choice": choice, "reasoning_effort": "none"}
        answers = [
            called(caller, **fields, extra_body={"speculation": speculation}).choices[0]
            for speculation in ("off", "auto")
        ]
        tokens = [[entry.token for entry in answer.logprobs.content] for answer in answers]
        assert tokens[0] == tokens[1]
        assert checked(answers[0]) >= (choice != "required")
        assert not answers[0].message.content


@pytest.mark.slow
def test_strict_functions_leave_answers_free(caller: OpenAI) -> None:
    for speculation in ("off", "auto"):
        answer = called(caller, strict=True, n=4, seed=1, extra_body={"speculation": speculation})
        for each in answer.choices:
            checked(each)
