"""Chat templates that run for ever or fill the memory, in real processes."""

from __future__ import annotations

import json
import os
import signal
import threading
from itertools import count
from pathlib import Path

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.template import process as template_process
from omlx.text.template.process import render_template, with_further_variables
from omlx.text.template.render import render
from tests.lanes import few
from tests.text.tokenizers import CHATML, decode_byte_level

HELLO = [{"role": "user", "content": "hello"}]
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}"
)


def refusal(tokenizer: TokenizerWrapper) -> str:
    with pytest.raises(BadRequest) as caught:
        render(tokenizer, HELLO)
    return caught.value.code


LARGE = (
    "{{ 'x' * 400000000 }}",
    "{{ 'x' | center(400000000) }}",
    "{% set ns = namespace(t='x') %}{% for i in range(40) %}{% set ns.t = ns.t ~ ns.t %}"
    "{% endfor %}{{ ns.t | length }}",
)


@pytest.mark.parametrize(
    "template",
    few((ENDLESS, *LARGE), ENDLESS, LARGE[2]),
    ids=["endless", "product", "filter", "doubling"],
)
def test_a_template_that_exceeds_a_limit_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(template_process, "MAX_SECONDS", 1)
    monkeypatch.setattr(template_process, "MAX_BYTES", 256 << 20)
    threads = threading.active_count()
    assert refusal(decode_byte_level(tmp_path, template)) == "template.limits"
    assert threading.active_count() == threads


def test_the_next_model_renders_while_one_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bpe: TokenizerWrapper
) -> None:
    render(bpe, HELLO)
    stuck = decode_byte_level(tmp_path, ENDLESS)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(refusal(stuck)))
    monkeypatch.setattr(template_process, "MAX_SECONDS", 600)
    monkeypatch.setattr(template_process, "MAX_WAIT_S", 600)
    thread.start()
    render(bpe, HELLO)
    assert not found
    monkeypatch.setattr(template_process, "MAX_BYTES", 0)  # ends it
    thread.join()
    assert found == ["template.limits"]


def test_a_process_that_waits_for_a_core_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, bpe: TokenizerWrapper
) -> None:
    prompt = render(bpe, HELLO)
    process = template_process._idle.take()
    template_process._idle.give_back(process)
    pid, seconds = process._process.pid, count()
    assert process is template_process._idle._processes[-1]

    def passing() -> float:
        """Let a second pass each time, and the process have a core after 30 of them."""
        now = next(seconds)
        if now == 30:
            os.kill(pid, signal.SIGCONT)
        return now

    monkeypatch.setattr(template_process, "monotonic", passing)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert render(bpe, HELLO) == prompt
    finally:
        os.kill(pid, signal.SIGCONT)
    assert next(seconds) > 30


def test_renders_have_the_priority_of_the_server() -> None:
    process = template_process._idle.take()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process._process.pid) == own
    template_process._idle.give_back(process)


def test_a_process_that_ended_while_idle_is_replaced(bpe: TokenizerWrapper) -> None:
    prompt = render(bpe, HELLO)
    for process in template_process._idle._processes:
        os.kill(process._process.pid, signal.SIGKILL)
        process._process.wait()
    assert render(bpe, HELLO) == prompt


@pytest.mark.parametrize(
    "messages",
    [
        HELLO,
        [{"role": "user", "content": "naïve 日本 \ud800 \x00 </s>"}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "n": 2**70}]}],
    ],
)
def test_the_text_is_that_of_transformers(
    bpe: TokenizerWrapper, tmp_path: Path, messages: list[dict[str, object]]
) -> None:
    for number, template in enumerate(
        (CHATML, "{{ eos_token }}{{ messages }}{{ tools | tojson }}")
    ):
        (tmp_path / str(number)).mkdir()
        tokenizer = decode_byte_level(tmp_path / str(number), template)
        for generation in (True, False):
            text = render_template(
                tokenizer, messages, {"tools": [{"a": 1}]}, add_generation_prompt=generation
            )
            assert text == tokenizer.apply_chat_template(
                messages, tools=[{"a": 1}], add_generation_prompt=generation, tokenize=False
            )


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_firefunction_gets_functions_as_text(tmp_path: Path) -> None:
    template = CHATML + "{{ '' + functions }} Today is {{ '' + datetime }}."
    model = decode_byte_level(tmp_path, template)
    text = render_template(model, [{"role": "user", "content": "x"}], {"tools": [TOOL]})
    functions, _, day = text.partition(" Today is ")
    assert json.loads(functions[functions.index("[") :]) == [TOOL["function"]]
    assert len(day) == len("Nov 22 2026.")


def test_others_get_what_was_asked(tmp_path: Path) -> None:
    assert with_further_variables(CHATML, {"tools": [TOOL]}) == {"tools": [TOOL]}
