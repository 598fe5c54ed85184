"""Messages with images: joined, separated, rendered by templates that know parts alone."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from omlx.engine.vision.spans import PreparedImage
from omlx.errors import BadRequest
from omlx.text.template.abilities import TemplateAbilities, probe
from omlx.text.template.conversation import IMAGE_LEFT_OUT, adapt
from omlx.text.template.process import render_template
from omlx.text.template.render import check_markers, render, separate_images
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


def test_a_known_generation_prompt_saves_a_render(
    bpe: TokenizerWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = list[str]()

    def counting(*arguments: Any, **options: Any) -> str:
        rendered.append(render_template(*arguments, **options))
        return rendered[-1]

    monkeypatch.setattr("omlx.text.template.render.render_template", counting)
    for variables, ending in ({}, "assistant\n"), ({"deep": True}, "<think>\n"):
        cold = render(tokenizer := TokenizerWrapper(bpe._tokenizer), MESSAGES, variables)
        rendered.clear()
        longer = render(tokenizer, [*MESSAGES, *MESSAGES[1:]], variables)
        assert [text.endswith(ending) for text in rendered] == [True]
        for prompt in (cold, longer):
            assert bpe.decode(prompt.tokens[prompt.stable :]).startswith("<|im_start|>assistant\n")


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


CAT, DOG = (PreparedImage(name, {}, 4, 4) for name in ("cat", "dog"))
PARTS_ALONE = (  # as SmolVLM's, which reads a text character by character
    "{% for m in messages %}<|im_start|>{{ m.role }}:{% for part in m.content %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}"
    "{% elif part['type'] == 'image' %}<image>{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
PYTHON = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def image(of: PreparedImage) -> dict[str, Any]:
    return {"type": "image", "image": of}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content) if len(content) > 1 else content[0]}


def adapted(*messages: dict[str, Any], **lacks: bool) -> tuple[list[Any], list[str]]:
    abilities = replace(TemplateAbilities(), **lacks)
    changed, reasons = adapt(messages, abilities, lambda calls: "")
    return [message["content"] for message in changed], [reason.code for reason in reasons]


def test_joined_messages_keep_their_parts_in_order() -> None:
    messages = [user("a"), user(text("b"), image(CAT)), user(image(DOG), text("c")), user("d")]
    contents, changes = adapted(*messages, users=False)
    assert contents == [[text("a\n\nb"), image(CAT), image(DOG), text("c\n\nd")]]
    assert changes == ["conversation.joined"]


def test_an_image_that_would_fall_into_a_result_becomes_a_note() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages = [
        user("a"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "b"},
        user(text("See: "), image(CAT)),
    ]
    contents, changes = adapted(*messages, users_after_results=False)
    assert contents == ["a", "", f"b\n\nSee: {IMAGE_LEFT_OUT}"]
    assert changes == ["conversation.user_in_result", "conversation.image_left_out"]


def test_templates_see_parts_and_images_come_in_order() -> None:
    messages, images = separate_images([user(image(CAT), text("a"), image(DOG)), user("b")])
    assert images == (CAT, DOG)
    assert messages == [user({"type": "image"}, text("a"), {"type": "image"}), user("b")]


def test_templates_that_know_texts_alone_see_markers_in_them() -> None:
    messages = [user(image(CAT), text("a"), image(DOG)), user("b")]
    written, images = separate_images(messages, "<image>\n")
    assert images == (CAT, DOG)
    assert written == [user("<image>\na<image>\n"), user("b")]


@pytest.mark.parametrize("variables", [{}, {"tools": [{"description": "an <image>"}]}])
def test_a_marker_in_a_text_is_refused(variables: dict[str, Any]) -> None:
    said = "the" if variables else "the <image>"
    with pytest.raises(BadRequest) as refused:
        check_markers([user({"type": "image"}, text(said))], variables, "<image>")
    assert refused.value.code == "image.marker"


def test_a_template_that_knows_parts_alone_renders_texts(tmp_path: Path) -> None:
    tokenizer = decode_byte_level(tmp_path, PARTS_ALONE)
    assert probe(tokenizer).parts_only
    prompt = render(tokenizer, [user("Hello there"), user(text("you "), text("all"))])
    shown = tokenizer.decode(prompt.tokens)
    assert "user:Hello there<|im_end|>" in shown
    assert "user:you all<|im_end|>" in shown


def test_a_template_without_images_is_named(tmp_path: Path) -> None:
    class Placer:
        marker = "<image>"
        text_marker = None

        def expand(self, text: str, images: Any) -> str:
            raise AssertionError

        place = expand

    tokenizer = decode_byte_level(tmp_path, PYTHON)
    with pytest.raises(BadRequest) as refused:
        render(tokenizer, [user(text("a"), image(CAT))], placer=Placer())  # type: ignore[arg-type]
    assert refused.value.code == "image.template"
