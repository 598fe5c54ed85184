"""Servers that do one thing wrong, or do not support one thing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from lab.tests.word_server import Json, WordServer


class Random(WordServer):
    """Answers never repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = count()

    def depends_on(self, body: Json) -> list[Any]:
        return [next(self.answers)]


class Unseeded(Random):
    """Only temperature 0 repeats."""

    def depends_on(self, body: Json) -> list[Any]:
        return (
            WordServer.depends_on(self, body) if not body["temperature"] else [next(self.answers)]
        )


class OneSeed(WordServer):
    def depends_on(self, body: Json) -> list[Any]:
        return super().depends_on({**body, "seed": 0})


class Mute(WordServer):
    """Answers are empty."""

    def answer(self, body: Json) -> Json:
        return super().answer({**body, "max_tokens": 0})


class Batched(WordServer):
    """An answer depends on those that are generated with it."""

    def depends_on(self, body: Json) -> list[Any]:
        return [super().depends_on(body), self.running > 0]


class Alone(WordServer):
    """One request at a time."""

    def problem(self, raw: bytes) -> str | None:
        return "busy" if self.running else super().problem(raw)


class CacheMatters(WordServer):
    """A cached prompt has another answer."""

    def depends_on(self, body: Json) -> list[Any]:
        return [super().depends_on(body), bool(self.prompts)]


class AllCached(WordServer):
    def cached(self, prompt: list[str]) -> int:
        return len(prompt)


class MoreCached(WordServer):
    def cached(self, prompt: list[str]) -> int:
        return 2 * super().cached(prompt)


class NoCache(WordServer):
    def cached(self, prompt: list[str]) -> int:
        return 0


class LostPiece(WordServer):
    """A stream lacks its third chunk."""

    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        for number, chunk in enumerate(super().chunks(body, choice, usage)):
            if number != 2:
                yield chunk


class OtherFinish(WordServer):
    """Streams end with a finish reason of their own."""

    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        return super().chunks(body, {**choice, "finish_reason": "stop"}, usage)


class NoFinish(WordServer):
    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        return super().chunks(body, {**choice, "finish_reason": None}, usage)


class NoDone(WordServer):
    def events(self, chunks: Iterator[Json]) -> Iterator[str]:
        for event in super().events(chunks):
            if "[DONE]" not in event:
                yield event


class ManyIds(WordServer):
    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        for number, chunk in enumerate(super().chunks(body, choice, usage)):
            yield {**chunk, "id": str(number)}


class OtherObject(WordServer):
    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        for chunk in super().chunks(body, choice, usage):
            yield {**chunk, "object": "chat.completion"}


class LateText(WordServer):
    """Text after the finish reason."""

    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        first, *middle, last = super().chunks(body, choice, usage)
        yield from [first, *middle[:-1], last, middle[-1]]


class WrongSum(WordServer):
    def usage(self, body: Json, choice: Json) -> Json | None:
        return {**(super().usage(body, choice) or {}), "total_tokens": 1}


class OneTooMany(WordServer):
    """Counts a token that is not there, in sums too."""

    def usage(self, body: Json, choice: Json) -> Json | None:
        usage = super().usage(body, choice) or {}
        more = {name: usage[name] + 1 for name in ("completion_tokens", "total_tokens")}
        return {**usage, **more}


class OnePrompt(WordServer):
    """Every prompt has as many tokens."""

    def usage(self, body: Json, choice: Json) -> Json | None:
        return super().usage({**body, "messages": []}, choice)


class NegativeUsage(WordServer):
    def usage(self, body: Json, choice: Json) -> Json | None:
        return {"prompt_tokens": -1, "completion_tokens": 1, "total_tokens": 0}


class NoUsage(WordServer):
    def usage(self, body: Json, choice: Json) -> Json | None:
        return None


class OtherStreamUsage(OneTooMany):
    """Streams alone count a token that is not there."""

    def usage(self, body: Json, choice: Json) -> Json | None:
        if body.get("stream"):
            return super().usage(body, choice)
        return WordServer.usage(self, body, choice)


class NoStreamUsage(WordServer):
    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        return super().chunks({**body, "stream_options": {}}, choice, usage)


class StopIgnored(WordServer):
    def answer(self, body: Json) -> Json:
        return super().answer({**body, "stop": ()})


class StopKept(WordServer):
    def cut(self, content: str, stop: str) -> str:
        return super().cut(content, stop) + stop


class StopIsLength(WordServer):
    def answer(self, body: Json) -> Json:
        return {**super().answer(body), "finish_reason": "length"}


class StopIgnoredInStreams(WordServer):
    def answer(self, body: Json) -> Json:
        if body.get("stream"):
            return super().answer({**body, "stop": ()})
        return super().answer(body)


class Prose(WordServer):
    """Ignores tools and formats."""

    def answer(self, body: Json) -> Json:
        return super().answer({name: body[name] for name in ("messages", "max_tokens")})


class CutCall(WordServer):
    def call(self, body: Json) -> Json:
        message = super().call(body)
        message["tool_calls"][0]["function"]["arguments"] = '{"day": "tom'
        return message


class UntypedCall(WordServer):
    def call(self, body: Json) -> Json:
        message = super().call(body)
        message["tool_calls"][0]["function"]["arguments"] = '{"day": "tomorrow", "loud": 1}'
        return message


class CallIsLength(WordServer):
    def answer(self, body: Json) -> Json:
        return {**super().answer(body), "finish_reason": "length"}


class TwoCalls(WordServer):
    def call(self, body: Json) -> Json:
        message = super().call(body)
        return {**message, "tool_calls": 2 * message["tool_calls"]}


class NameTwice(WordServer):
    """Each delta of a call has its name."""

    def chunks(self, body: Json, choice: Json, usage: Json | None) -> Iterator[Json]:
        for chunk in super().chunks(body, choice, usage):
            for part in chunk["choices"]:
                for call in part["delta"].get("tool_calls", ()):
                    call["function"]["name"] = "set_alarm"
            yield chunk


class OtherStreamCall(WordServer):
    """Streams alone have other arguments."""

    def call(self, body: Json) -> Json:
        message = super().call(body)
        if body.get("stream"):
            message["tool_calls"][0]["function"]["arguments"] = '{"day": "today", "loud": true}'
        return message


class Unconstrained(WordServer):
    """JSON of another schema."""

    def answer(self, body: Json) -> Json:
        choice = super().answer(body)
        if "response_format" in body:
            choice["message"]["content"] = '{"colour": "grey", "bright": true}'
        return choice


class MoreProperties(WordServer):
    def answer(self, body: Json) -> Json:
        choice = super().answer(body)
        if "response_format" in body:
            choice["message"]["content"] = '{"colour": "red", "bright": true, "size": 1}'
        return choice


class Refuses(WordServer):
    """Refuses tools, formats, stop strings and seeds."""

    def problem(self, raw: bytes) -> str | None:
        for name in ("tools", "response_format", "stop", "seed"):
            if f'"{name}"'.encode() in raw:
                return f"{name} is not supported"
        return super().problem(raw)


class Unprocessable(WordServer):
    def refusal(self, message: str) -> Response:
        return JSONResponse({"error": {"message": message}}, 422)


class Detail(WordServer):
    def refusal(self, message: str) -> Response:
        return JSONResponse({"detail": message}, 400)


class PlainErrors(WordServer):
    def refusal(self, message: str) -> Response:
        return PlainTextResponse(message, 400)


class Credulous(WordServer):
    """Answers requests with an invalid temperature."""

    def problem(self, raw: bytes) -> str | None:
        problem = super().problem(raw)
        return None if problem == "temperature is no number" else problem


class Crashes(WordServer):
    """Fails once a model would write."""

    def problem(self, raw: bytes) -> str | None:
        return "out of memory"

    def refusal(self, message: str) -> Response:
        return JSONResponse({"error": {"message": message}}, 500)


class OtherForm(WordServer):
    def answer(self, body: Json) -> Json:
        return {"text": "river"}

    def usage(self, body: Json, choice: Json) -> Json | None:
        return None


class Nothing(WordServer):
    """Lists no model."""

    models = ()
