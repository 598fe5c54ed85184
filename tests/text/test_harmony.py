"""The markup of gpt-oss over a real tokenizer: thoughts, answers and calls, cut anywhere."""

from __future__ import annotations

import json
from typing import Final

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.engine.step.masking import forced_tokens
from omlx.engine.types import FinishReason
from omlx.text.events import ReasoningDelta
from omlx.text.grammar import GrammarCompiler, GrammarKind, Preamble, StructuredOutput
from omlx.text.harmony import HarmonySplitter
from omlx.text.tools import ToolUse
from tests.schemas import SMALL, WORD, record
from tests.templates.parsing import Output, parse
from tests.text.calls import allowed, ids_of, mask, say, use, valid, walk
from tests.text.tokenizers import decode_byte_level

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    "{# <|channel|>analysis<|message|> #}"
)
MARKERS = ("start", "end", "message", "channel", "constrain", "call", "return")
LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
ASK = [{"role": "user", "content": "hello"}]

THOUGHT = "<|channel|>analysis<|message|>Hm. é to=functions."
NEXT = "<|end|><|start|>assistant"
ARGUMENTS = '{"at": "é <|x|> to=functions.look"}'
QUOTING = r'{"at": "\\", "to": ["<|end|> \"<|start|>", "<|call|>\\"], "<|return|>": 1}'
CALL = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
CALLS = [
    f"{CALL}{ARGUMENTS}<|call|>",
    f"<|channel|>analysis to=functions.look code<|message|>{ARGUMENTS}<|call|>",
    f" to=functions.look<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
    f"<|channel|>commentary to=functions.look<|message|>\n{ARGUMENTS}",
]


Read = tuple[str, str, list[str]]


@pytest.fixture(scope="module")
def oss(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return decode_byte_level(
        tmp_path_factory.mktemp("oss"),
        TEMPLATE,
        tuple(f"<|{each}|>" for each in (*MARKERS, "im_end")),
    )


def read(oss: TokenizerWrapper, output: str | list[int], seed: int = 0) -> Read:
    """Return reasoning, text and calls, each call as its name and arguments."""
    parsed = parse(oss, output, (LOOK,), seed)
    calls = [name + arguments for _, name, arguments in parsed.calls]
    return parsed.reasoning, parsed.text, calls


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"{THOUGHT}{NEXT}<|channel|>final<|message|>It is so.<|return|>",
            ("Hm. é to=functions.", "It is so.", []),
        ),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", ("", "{}", [])),
        (
            f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>So.",
            ("Hm. é to=functions.", "So.", []),
        ),
        (
            f"<|channel|>commentary<|message|>I look.{NEXT}{CALLS[0]}",
            ("", "I look.", [f"look{ARGUMENTS}"]),
        ),
        *(
            (f"{THOUGHT}{NEXT}{call}", ("Hm. é to=functions.", "", [f"look{ARGUMENTS}"]))
            for call in CALLS
        ),
        ("No header at all.", ("", "No header at all.", [])),
        ('{"analysis": "final"}', ("", '{"analysis": "final"}', [])),
        (THOUGHT, ("Hm. é to=functions.", "", [])),
        (f"{THOUGHT}<|en", ("Hm. é to=functions.<|en", "", [])),
        (
            "<|channel|>final<|message|>Use to=functions.look now",
            ("", "Use to=functions.look now", []),
        ),
        ("", ("", "", [])),
        (
            f"<|channel|>commentary to=look <|constrain|>json<|message|>{ARGUMENTS}<|call|>",
            ("", "", [f"look{ARGUMENTS}"]),
        ),
        (f" to=look<|channel|>analysis<|message|>{ARGUMENTS}", ("", "", [f"look{ARGUMENTS}"])),
        (
            f'{THOUGHT}{NEXT} to=container.exec<|channel|>commentary<|message|>python3 -c "1"',
            ("Hm. é to=functions.", "", []),
        ),
        (
            f"{THOUGHT}{NEXT}<|channel|>commentary to=python <|constrain|>code<|message|>print()"
            f"{NEXT}<|channel|>final<|message|>So.",
            ("Hm. é to=functions.", "So.", []),
        ),
        (
            "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm."
            f"{NEXT}<|channel|>commentary to=assistant<|channel|>final<|message|>So.",
            ("Hm.", "So.", []),
        ),
        ("Here to=5 and so on", ("", "Here to=5 and so on", [])),
        (f"{CALL}{QUOTING}{NEXT}<|channel|>final<|message|>So.", ("", "So.", [f"look{QUOTING}"])),
        (
            f'{CALL}{{"at": "never closed{NEXT}{THOUGHT}',
            ("Hm. é to=functions.", "", ['look{"at": "never closed"}']),
        ),
    ],
)
def test_reads(oss: TokenizerWrapper, text: str, expected: object) -> None:
    assert read(oss, text) == expected
    assert read(oss, text, seed=50) == expected


F: Final = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
ANSWER: Final = "<|start|>assistant<|channel|>final<|message|>A<|return|>"
THINK: Final = "<|start|>assistant<|channel|>analysis<|message|>R<|end|>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<|channel|>commentary?<|end|>{THINK}{ANSWER}", ("R", "A", [])),
        (f"<|channel|>analysis<|end|>{THINK}{ANSWER}", ("R", "A", [])),
        (f"<|channel|>final<|start|>assistant{ANSWER}", ("", "A", [])),
        (f"<|channel|>{THINK}<|channel|>{ANSWER}", ("R", "A", [])),
        ("<|channel|>analysis<|channel|>final<|message|>A", ("", "A", [])),
        ("<|channel|>analysis?<|message|>R<|end|>", ("R", "", [])),
        ("<|channel|>comment<|message|>A<|end|>", ("", "A", [])),
        ("<|channel|><|message|>A<|end|>", ("", "A", [])),
        ("<|message|>A<|return|>", ("", "A", [])),
        ("<|start|>assistant<|message|>A<|return|>", ("", "A", [])),
        ("<|constrain|>json<|message|>{}<|return|>", ("", "{}", [])),
        ("analysis<|message|>R<|end|><|channel|>final<|message|>A", ("R", "A", [])),
        (
            "<|channel|>analysis<|message|>R<|end|>assistant<|channel|>final<|message|>A",
            ("R", "A", []),
        ),
        ("<|channel|>analysis<|message|>R<|channel|>final<|message|>A", ("R", "A", [])),
        ("<|channel|>analysis<|message|>R<|message|>S<|end|>A", ("RS", "A", [])),
        ("<|channel|>final<|message|>A <|channel|>b <|constrain|>c<|message|>", ("", "A b c", [])),
        (f"<|channel|>final<|message|>A{F}{{}}<|call|>", ("", "A", ["look{}"])),
        (f"<|channel|>final<|message|>A{F[:-11]}", ("", "A", [])),
        (f"A<|end|>{THINK}", ("R", "A", [])),
        ("<|channel|>final", ("", "", [])),
        ("<|channel|>", ("", "", [])),
        (" to=functions.look", ("", "", [])),
        ("<|end|><|return|>", ("", "", [])),
        (
            "<|start|>functions.look to=assistant<|channel|>commentary<|message|>x<|end|>",
            ("", "", []),
        ),
        ("<|start|>user<|message|>x<|end|><|start|>assistant<|message|>A", ("", "A", [])),
        (
            f'{F}{{"a": 1}}<|call|><|start|>assistant{F}{{"b": 2}}<|call|>',
            ("", "", ['look{"a": 1}', 'look{"b": 2}']),
        ),
        (
            f'{F}{{"a": 1}}<|end|><|start|>assistant to=functions.look'
            '<|channel|>commentary<|message|>{"b": 2}',
            ("", "", ['look{"a": 1}', 'look{"b": 2}']),
        ),
        (
            f'{F}{{"a": 1}}<|call|>{THINK}<|start|>assistant{F}{{"b": 2}}<|call|>',
            ("R", "", ['look{"a": 1}', 'look{"b": 2}']),
        ),
        (f'{F}{{"a": 1}}<|start|>assistant{F}<|call|>', ("", "", ['look{"a": 1}', "look{}"])),
        (f"{F}<|call|>", ("", "", ["look{}"])),
        (F, ("", "", ["look{}"])),
        (f"{F}<|end|>{ANSWER}", ("", "A", ["look{}"])),
        (f"{F.replace('to=', 'to= ')}{{}}<|call|>", ("", "", ["look{}"])),
        (f"{F.replace('to=functions.', 'to=')}{{}}<|call|>", ("", "", ["look{}"])),
        (
            "<|channel|>commentary<|constrain|>json to=functions.look<|message|>{}",
            ("", "", ["look{}"]),
        ),
        (f'{F}[{{"a": 1}}]<|call|>', ("", "", ['look{"a": 1}'])),
        (f'{F}"{{\\"a\\": 1}}"<|call|>', ("", "", ['look{"a": 1}'])),
        (f"{F}*** Begin<|call|>", ("", "", ['look{"input": "*** Begin"}'])),
        (f'{F}{{"a": [1}}}} so<|call|>{ANSWER}', ("", "A", ['look{"a": [1]}'])),
        (f'{F}{{"a": 1<|call|>{ANSWER}', ("", "A", ['look{"a": 1}'])),
        (f'{F}```json\n{{"a": 1}}\n```<|call|>', ("", "", ['look{"a": 1}'])),
        (f'{F}{{"a": 1}} so "b<|call|>{ANSWER}', ("", "A", ['look{"a": 1}'])),
        (f'{F[:-11]}{{"a": "<|call|>"}}<|call|>{ANSWER}', ("", "A", ['look{"a": "<|call|>"}'])),
        (f'{F[:-11]}{{"a": 1}}', ("", "", ['look{"a": 1}'])),
        ("<|channel|>commentary to=assistant {}<|end|>", ("", "{}", [])),
        (f"{F[:-28]}<|end|>{ANSWER[:-10]} {{}}", ("", "A {}", [])),
    ],
)
def test_malformed_headers(
    oss: TokenizerWrapper, text: str, expected: tuple[str, str, list[str]]
) -> None:
    assert read(oss, text) == expected
    assert read(oss, text, seed=50) == expected
    splitter, pieces = HarmonySplitter((LOOK,)), list[object]()
    for character in text:
        pieces += splitter.feed(character)
    said = "".join(p.text for p in [*pieces, *splitter.finish()] if isinstance(p, ReasoningDelta))
    assert said == expected[0]


def test_a_call_without_functions_is_dropped(oss: TokenizerWrapper) -> None:
    output = parse(oss, f"{F}{{}}<|call|>{ANSWER}")
    assert (output.text, output.calls) == ("A", [])


def test_a_call_that_is_cut_off_before_its_arguments_has_none(oss: TokenizerWrapper) -> None:
    output = parse(oss, F, (LOOK,), reason=FinishReason.LENGTH)
    assert output.calls[0][1:] == ("look", "{")
    assert output.complete == [False]


SCHEMAS = {"look": record(["at"], at=WORD, days=SMALL), "wait": record()}


def held(oss: TokenizerWrapper, seed: int, more: ToolUse, said: str = "") -> Output:
    """What may be said at random behind a text, as clients get it."""
    of = mask(oss, more, may_think=True)
    tokens = say(of, oss, said)
    tokens += walk(of, oss, seed, "<|end|>")
    if more.forced:
        assert of.ended
    return parse(oss, tokens, more.functions)


def valid_calls(output: Output) -> set[str]:
    calls = [(name, json.loads(arguments)) for _, name, arguments in output.calls]
    assert valid(calls, SCHEMAS)
    return {name for name, _ in calls}


def test_a_forced_answer_is_a_call_behind_reasoning_at_most(oss: TokenizerWrapper) -> None:
    seen, thoughts = set[str](), set[bool]()
    for seed in range(12):
        output = held(oss, seed, use(SCHEMAS, forced=True))
        assert (output.text, len(output.calls)) == ("", 1)
        seen |= valid_calls(output)
        thoughts.add(bool(output.reasoning))
    assert seen == set(SCHEMAS)
    named = use(SCHEMAS, forced=True, single=True, name="wait")
    assert valid_calls(held(oss, 1, named, f"{THOUGHT}{NEXT}")) == {"wait"}


def test_a_forced_call_without_reasoning_begins_with_its_header(oss: TokenizerWrapper) -> None:
    of = mask(oss, use(SCHEMAS, forced=True))
    assert {oss.decode([token]) for token in allowed(of)} == {"<|channel|>", " ", " t"}
    say(of, oss, "<|channel|>")
    assert oss.decode(forced_tokens(of, 40)) == "commentary to=functions."


@pytest.mark.parametrize("call", CALLS[:1] + CALLS[2:3])
@pytest.mark.parametrize(
    "before", ["", f"{THOUGHT}{NEXT}", f"<|channel|>commentary<|message|>So.{NEXT}"]
)
def test_a_strict_call_is_held_in_its_message(
    oss: TokenizerWrapper, before: str, call: str
) -> None:
    strict = use(SCHEMAS, strict=frozenset(SCHEMAS))
    for seed in range(4):
        output = held(oss, seed, strict, before + call[: call.index("{") + 1])
        assert (output.text, len(output.calls)) == ("So." if "So." in before else "", 1)
        assert valid_calls(output) == {"look"}


def test_an_answer_beside_strict_functions_is_free_but_for_markup(oss: TokenizerWrapper) -> None:
    strict = use(SCHEMAS, strict=frozenset(SCHEMAS))
    of = mask(oss, strict, may_think=True)
    said = f"{THOUGHT}{NEXT}<|channel|>final<|message|>Use to=functions.look, é <|x|> {{}}"
    tokens = say(of, oss, said)
    for marker in MARKERS:
        spelled = [token for letter in f"<|{marker}|>" for token in ids_of(oss, letter)]
        before = len(of.tokens)
        assert not all(of.advance(token) for token in spelled)
        of.rollback(len(of.tokens) - before)
    assert of.advance(next(iter(oss.eos_token_ids)))
    output = parse(oss, tokens, strict.functions)
    assert (output.text, output.calls) == ("Use to=functions.look, é <|x|> {}", [])


def test_a_continued_answer_needs_no_header(oss: TokenizerWrapper) -> None:
    of = mask(oss, use(SCHEMAS, strict=frozenset(SCHEMAS)))
    tokens = say(of, oss, "So it goes on. to=functions.look")
    assert of.advance(next(iter(oss.eos_token_ids)))
    of.rollback(1)
    assert not any(of.advance(token) for token in ids_of(oss, "<|channel|><|message|><|end|>"))
    assert parse(oss, tokens, use(SCHEMAS).functions).text == oss.decode(tokens)


def test_an_answer_in_a_form_comes_behind_a_thought_and_its_header(oss: TokenizerWrapper) -> None:
    grammars = GrammarCompiler(oss, oss.eos_token_ids)
    yes = grammars.compile(
        StructuredOutput(GrammarKind.JSON, json.dumps({"const": {"a": 1}}), "form")
    )
    of = grammars.mask(yes, Preamble(may_think=True, may_call=True))
    tokens = say(of, oss, "<|channel|>")
    assert oss.decode(forced_tokens(of, 20)) == "analysis<|message|>"
    tokens += say(
        of, oss, "analysis<|message|>It is <|end|><|start|>assistant<|channel|>final<|message|>"
    )
    assert oss.decode(forced_tokens(of, 20)) in ('{"a": 1}', "")
    tokens += say(of, oss, '{"a": 1}')
    assert of.ended
    assert read(oss, tokens) == ("It is ", '{"a": 1}', [])
    assert len(allowed(grammars.mask(yes, Preamble()))) == 1
