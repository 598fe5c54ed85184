"""One contract for every dialect, with its official client, whole and streamed.

The model of `speller` spells its prompt, the bundled one of `server` answers by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from tests.schemas import SMALL, listed, record
from tests.server.dialects import DIALECTS, NO_PARAMETERS, Ask, Said, markup
from tests.server.running import TARGET, Running

CITY: Any = record(["city"], city={"type": "string"}, days={"type": "integer"})
TOOLS: Any = {"get_weather": CITY, "look": NO_PARAMETERS}
PERSON: Any = record(name={"type": "string", "maxLength": 12}, age=SMALL)
ADA = json.dumps({"name": "Ada", "age": 36})
BOOK: Any = record(
    ["city", "nights"],
    city={"enum": ["Oslo", "Zürich", "Porto"]},
    nights={"type": "integer", "minimum": 1, "maximum": 14},
    guests=listed(record(name={"type": "string", "maxLength": 8}, age=SMALL), 0, 2),
)
FORCED: Any = {"book": BOOK, "look": record(at={"type": "string", "pattern": "^/[a-z]{1,6}$"})}
BAD: Any = {"type": "object", "properties": {"a": {"type": "strin"}}}
THOUGHT = "<think>\nHm.\n</think>\n\n"

Tell = Callable[..., Said]
WAYS = ("whole", "stream")


def having(part: str) -> pytest.MarkDecorator:
    """The dialects whose API has this part of `Ask`."""
    names = [name for name, dialect in DIALECTS.items() if part not in dialect.lacks]
    return pytest.mark.parametrize("dialect", names)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def telling(dialect: str, running: Running) -> Iterator[Tell]:
    adapter = DIALECTS[dialect]
    with adapter.client(running.url) as client:

        def tell(*turns: Any, way: str = "whole", **asked: Any) -> Said:
            said: Said = getattr(adapter, way)(client, Ask(turns, **asked))
            return said

        yield tell


@pytest.fixture
def tell(dialect: str, speller: Running) -> Iterator[Tell]:
    """Ask the model that spells."""
    yield from telling(dialect, speller)


@pytest.fixture
def demo(dialect: str, server: Running) -> Iterator[Tell]:
    """Ask the bundled model."""
    yield from telling(dialect, server)


@pytest.mark.parametrize("way", WAYS)
def test_an_answer(tell: Tell, dialect: str, way: str) -> None:
    said = tell("Hello there.", way=way)
    assert said.text == "Hello there."
    assert said.reasoning == ""
    assert said.calls == []
    assert said.end == "stop"
    assert said.model == TARGET
    assert said.id.startswith(DIALECTS[dialect].prefix)
    assert said.output > 2
    assert said.warnings == []
    assert tell("Hello there.", way=way, system="Be kind.").prompt > said.prompt


@pytest.mark.parametrize("way", WAYS)
def test_a_thought_a_text_and_two_calls(tell: Tell, way: str) -> None:
    calls = markup("get_weather", city="Oslo", days=3) + markup("look")
    said = tell(f"{THOUGHT}I look.\n{calls}", way=way, tools=TOOLS, think=True)
    assert said.reasoning == "Hm."
    assert said.text.strip() == "I look."
    assert said.made == [("get_weather", {"city": "Oslo", "days": 3}), ("look", {})]
    assert said.end == "calls"
    ids = [call.id for call in said.calls if call.id]
    assert len({*ids}) == len(ids)


def test_a_stream_says_what_the_body_says(demo: Tell) -> None:
    for asked in ({}, {"think": True}):
        answers = [
            demo("Say hello, then count.", way=way, limit=16, extra={"seed": 5}, **asked)
            for way in WAYS
        ]
        first, second = ((each.text, each.reasoning, each.end, each.output) for each in answers)
        assert first == second


def test_a_tool_loop_of_two_turns(tell: Tell, dialect: str) -> None:
    asked = markup("get_weather", city="Oslo")
    first = tell(asked, tools=TOOLS)
    (call,) = first.calls
    second = tell(asked, first, (call, "4 degrees"), tools=TOOLS)
    assert second.text == "<tool_response>\n4 degrees\n</tool_response>"
    assert second.end == "stop"
    if "cached" not in DIALECTS[dialect].lacks:
        assert second.cached > first.prompt / 2


def test_the_bundled_model_calls_a_tool_and_repeats_its_result(demo: Tell, dialect: str) -> None:
    """Greedily."""
    asked = "How is the weather in London today?"
    schema = record(["location"], location={"type": "string"})
    schema.pop("additionalProperties", None)
    fields: Any = {"tools": {"get_weather": schema}, "limit": 60, "extra": {"temperature": 0}}
    first = demo(asked, **fields)
    (call,) = first.calls
    assert (call.name, call.arguments) == ("get_weather", {"location": "London"})
    assert first.end == "calls"
    second = demo(asked, first, (call, "data total 12"), **fields)
    assert second.text == "get_weather says: data total 12"
    assert second.cached > 0 or "cached" in DIALECTS[dialect].lacks


@having("choice")
@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({}, ["look", "get_weather"]),
        ({"single": True}, ["look"]),
        ({"choice": "required"}, ["look", "get_weather"]),
        ({"choice": "required", "single": True}, ["look"]),
        ({"choice": "look"}, ["look"]),
        ({"choice": "none"}, []),
    ],
)
def test_tool_choice(tell: Tell, dialect: str, asked: Any, made: list[str]) -> None:
    says = markup("look") + markup("get_weather", city="Oslo")
    said = tell(says, tools=TOOLS, **asked)
    assert [call.name for call in said.calls] == made
    assert made or said.text == says


@having("choice")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("choice", ["required", "look"])
def test_forced_calls_are_valid_whatever_the_logits(
    demo: Tell, dialect: str, choice: str, way: str
) -> None:
    said = demo("Say something else.", way=way, tools=FORCED, choice=choice, single=True, limit=300)
    assert said.end == "calls"
    assert not said.text
    for name, arguments in said.made:
        jsonschema.validate(arguments, FORCED[name])
    assert {name for name, _ in said.made} <= ({"look"} if choice == "look" else {*FORCED})


@having("strict")
def test_a_strict_call_is_constrained_in_a_free_answer(tell: Tell) -> None:
    nights = record(["nights"], nights={"type": "integer", "minimum": 1, "maximum": 9})
    said = tell(f"See. {markup('book', nights=70)}", tools={"book": nights}, strict=True)
    assert said.text == "See."
    assert said.made == [("book", {"nights": 7})]
    loose = tell(f"See. {markup('book', nights=70)}", tools={"book": nights})
    assert loose.made == [("book", {"nights": 70})]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", [{"choice": "required"}, {"strict": True}])
@having("strict")
def test_an_invalid_schema_is_refused_before_anything_runs(
    demo: Tell, dialect: str, server: Running, asked: Any, way: str
) -> None:
    before = len(server.engine.submitted)
    with pytest.raises(DIALECTS[dialect].error, match="'worse'") as caught:
        demo("x", way=way, tools={**FORCED, "worse": BAD}, **asked)
    assert caught.value.status_code == 400
    if dialect == "chat":
        assert caught.value.code == "tools.schema"
        assert caught.value.param == "tools"
    assert len(server.engine.submitted) == before
    if "choice" in asked:
        assert demo("x", tools={**FORCED, "worse": BAD}, limit=3).output  # it binds nothing


@pytest.mark.parametrize("way", WAYS)
def test_a_form(tell: Tell, way: str) -> None:
    said = tell(f"{ADA} is her name.", way=way, schema=PERSON)
    assert said.text == ADA
    assert said.end == "stop"
    says = f"<think>\nLet me see, {{}}.\n</think>\n\n{ADA}"
    thought = tell(says, way=way, schema=PERSON, think=True)
    assert thought.reasoning == "Let me see, {}."
    assert thought.text == ADA


@pytest.mark.parametrize("way", WAYS)
def test_the_bundled_model_fills_a_form(demo: Tell, way: str) -> None:
    said = demo("Who is there?", way=way, schema=PERSON, extra={"seed": 1})
    jsonschema.validate(json.loads(said.text), PERSON)


@pytest.mark.parametrize("way", WAYS)
def test_an_invalid_form_is_refused_before_anything_runs(
    demo: Tell, dialect: str, server: Running, way: str
) -> None:
    before = len(server.engine.submitted)
    with pytest.raises(DIALECTS[dialect].error, match="strin") as caught:
        demo("x", way=way, schema=BAD)
    assert caught.value.status_code == 400
    if dialect == "chat":
        assert caught.value.code == "format.invalid"
        assert caught.value.param == "response_format.json_schema.schema"
    assert len(server.engine.submitted) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_limit(tell: Tell, way: str) -> None:
    said = tell("One, two, three, four.", way=way, limit=2)
    assert said.end == "length"
    assert said.output == 2


@having("stop")
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_string_cuts_before_itself(tell: Tell, way: str) -> None:
    said = tell("One, two, END, three.", way=way, stop="END")
    assert said.text == "One, two, "
    assert said.end == "stop"


def test_without_thinking_no_reasoning_is_opened(tell: Tell) -> None:
    assert tell("Hi.").reasoning == ""
    assert tell(f"{THOUGHT}Yes.", think=True).reasoning == "Hm."


def test_speculation_changes_no_token_of_any_dialect(demo: Tell, server: Running) -> None:
    """Whole and streamed, drawn with a seed, as chat completions has them."""
    with DIALECTS["chat"].client(server.url) as client:
        drawn = {"seed": 7, "temperature": 0.7}
        turns = ("List three rivers, then list them again.",)
        ask = Ask(turns, limit=24, think=True, extra=drawn | {"speculation": "off"})
        expected = DIALECTS["chat"].whole(client, ask)
    for speculation, way in (("draft", "stream"), ("ngram", "whole")):
        extra = drawn | {"speculation": speculation}
        said = demo(*turns, way=way, limit=24, think=True, extra=extra)
        assert said.text == expected.text
        assert said.reasoning.strip() == expected.reasoning.strip()
        assert said.prompt == expected.prompt
        assert said.output == expected.output


def test_what_is_refused(demo: Tell, dialect: str) -> None:
    error = DIALECTS[dialect].error
    with pytest.raises(error, match="nobody") as caught:
        demo("x", model="nobody")
    assert caught.value.status_code == 404
    if dialect == "ollama":  # which cuts the text: tests/server/test_truncation.py
        return
    with pytest.raises(error, match="4096") as caught:
        demo("word " * 9000)
    assert caught.value.status_code == 400


@having("warnings")
def test_a_tool_that_cannot_be_offered_is_left_out(tell: Tell, dialect: str) -> None:
    search, shell = {"type": "web_search"}, {"type": "shell"}
    if dialect == "messages":
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
        shell = {"type": "bash_20250124", "name": "bash"}
    kind = "provider" if dialect == "chat" else "search"  # which others may run here
    expected = [(f"tools.skipped.{kind}", "tools[0]"), ("tools.skipped.client", "tools[1]")]
    for way in WAYS:
        said = tell(markup("look"), way=way, tools=TOOLS, more_tools=(search, shell))
        assert [call.name for call in said.calls] == ["look"]
        codes = [(each["code"], each["params"]["field"]) for each in said.warnings]
        assert codes == expected


@having("cached")
@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_that_is_only_prepared(demo: Tell, dialect: str, way: str) -> None:
    system, extra = (
        "An answer that was prepared. " * 20,
        {"prompt_cache_options": {"prewarm": True}},
    )
    warmed = demo(f"Go {way}.", way=way, system=system, extra=extra)
    assert warmed.text == ""
    assert warmed.output == 0
    assert warmed.calls == []
    assert dialect == "chat" or warmed.turn == []
    assert warmed.end == ("stop" if dialect == "responses" else "length")
    answered = demo(f"Go {way}.", way=way, system=system, limit=2)
    assert answered.cached == answered.prompt - 1
