from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from omlx.errors import BadRequest
from omlx.text.template.render import render
from tests.text.tokenizers import decode_byte_level

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]


def test_renders_and_leaves_the_messages_alone(bpe: TokenizerWrapper) -> None:
    messages = deepcopy(MESSAGES)
    prompt = render(bpe, messages)
    text = (
        "<|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert bpe.decode(prompt.tokens) == text
    assert not prompt.thinking
    assert messages == MESSAGES
    assert render(bpe, messages) == prompt


def test_the_generation_prompt_is_not_stable(bpe: TokenizerWrapper) -> None:
    prompt = render(bpe, MESSAGES)
    assert bpe.decode(prompt.tokens[prompt.stable :]) == "<|im_start|>assistant\n"
    longer = [*MESSAGES, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "bye"}]
    assert render(bpe, longer).tokens[: prompt.stable] == prompt.tokens[: prompt.stable]
    assert (
        render(bpe, [*MESSAGES, {"role": "assistant", "content": "He"}], continue_last=True).stable
        == 0
    )


def test_a_template_that_begins_otherwise_without_an_answer_has_nothing_stable(
    tmp_path: Path,
) -> None:
    odd = "{{ 'ask: ' if add_generation_prompt else 'tell: ' }}{{ messages[0].content }}"
    assert render(decode_byte_level(tmp_path, odd), MESSAGES).stable == 0


def test_continues_the_last_message(bpe: TokenizerWrapper) -> None:
    prompt = render(
        bpe, [*MESSAGES, {"role": "assistant", "content": "He said"}], continue_last=True
    )
    assert bpe.decode(prompt.tokens).endswith("<|im_start|>assistant\nHe said")


def test_knows_when_the_prompt_opens_the_reasoning(bpe: TokenizerWrapper) -> None:
    assert render(bpe, MESSAGES, {"deep": True}).thinking
    assert not render(bpe, [{"role": "user", "content": "what is <think>"}]).thinking


@pytest.mark.parametrize(
    "name",
    ["chat_template", "tokenize", "messages", "tools", "return_dict", "add_generation_prompt"],
)
def test_a_request_cannot_set_what_the_renderer_owns(bpe: TokenizerWrapper, name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        render(bpe, MESSAGES, {name: "{{ 1 }}"})
    assert (caught.value.code, caught.value.params) == ("template.reserved", {"name": name})


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages | unknown_filter }}",
        "{{ messages[0].content.nothing.there }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ '{}' | format }}{{ '{}'.format() }}",
        "{{ messages[0].content | dictsort }}",
    ],
)
def test_what_a_template_must_not_do_is_a_clear_error(tmp_path: Path, template: str) -> None:
    with pytest.raises(BadRequest) as caught:
        render(decode_byte_level(tmp_path, template), MESSAGES)
    assert caught.value.code == "template.failed"
    assert caught.value.params["detail"]


def test_what_a_template_in_python_does_not_take_is_a_clear_error(tmp_path: Path) -> None:
    decode_byte_level(tmp_path, None)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template_type": "deepseek_v32"})
    )
    tokenizer = load(tmp_path)
    assert render(tokenizer, MESSAGES).tokens
    with pytest.raises(BadRequest, match="rejected these messages"):
        render(tokenizer, [{"role": "user", "content": ""}, {"role": "missing", "content": "x"}])


def test_a_message_that_is_nested_too_deeply_is_a_clear_error(bpe: TokenizerWrapper) -> None:
    nested: object = 1
    for _ in range(600):
        nested = {"a": nested}
    with pytest.raises(BadRequest) as caught:
        render(bpe, [{"role": "assistant", "content": nested}])
    assert caught.value.code == "template.failed"


def test_no_template_and_an_empty_prompt_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="template"):
        render(decode_byte_level(tmp_path, None), MESSAGES)
    with pytest.raises(BadRequest, match="empty"):
        render(decode_byte_level(tmp_path, "{# nothing #}"), MESSAGES)
    with pytest.raises(BadRequest, match="assistant"):
        render(decode_byte_level(tmp_path), MESSAGES, continue_last=True)
