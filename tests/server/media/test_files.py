"""Files that a user or a tool attached: their text, or a note that names them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from omlx.server.dialects.anthropic.request import MessageRequest
from omlx.server.dialects.openai.chat_request import ChatRequest
from omlx.server.dialects.openai.responses_request import ResponseRequest
from omlx.server.request.generation_request import GenerationRequest
from omlx.server.request.media.files import MAX_FILES, FileTexts
from omlx.server.request.media.pdf_worker import READ, reply
from omlx.server.workers import Workers
from tests.server.media.pdfs import bomb, encrypted, pdf, uri
from tests.server.running import TARGET

PAGES = pdf("It rains", "in Bergen")
READ_PAGES = "[file: a.pdf]\nIt rains\n\nin Bergen"
DATA = uri(PAGES).partition(",")[2]


def attached(request: GenerationRequest) -> tuple[Any, list[tuple[str, str]]]:
    """The content of the last message, code and field of each warning."""
    request = asyncio.run(FileTexts(Workers()).attach(request))
    warnings = [(reason.code, str(reason.params["field"])) for reason in request.warnings]
    return request.messages[-1]["content"], warnings


def chat(*parts: Any, role: str = "user") -> GenerationRequest:
    message = {"role": role, "content": list(parts)}
    return ChatRequest.parse(json.dumps({"messages": [message]}).encode()).generation_request()


def message(*blocks: Any) -> GenerationRequest:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": list(blocks)}]}
    return MessageRequest.parse(json.dumps(body).encode()).generation_request()


def in_chat(data: str, name: str = "a.pdf") -> Any:
    return {"type": "file", "file": {"filename": name, "file_data": data}}


def test_a_pdf_becomes_its_text_in_every_dialect() -> None:
    expected = (f"Read.\n\n{READ_PAGES}", [])
    text = {"type": "text", "text": "Read."}
    assert attached(chat(text, in_chat(uri(PAGES)))) == expected
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    assert attached(message(text, {"type": "document", "title": "a.pdf", "source": source})) == (
        expected
    )
    part = {"type": "input_file", "filename": "a.pdf", "file_data": uri(PAGES)}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Read."}, part]}]
    body = ResponseRequest.parse(json.dumps({"input": items}).encode())
    assert attached(body.generation_request(body.conversation(()))) == expected


def test_a_pdf_in_a_result_is_read_too() -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    document = {"type": "document", "title": "a.pdf", "source": source}
    call = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [document]}
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    body = {"max_tokens": 9, "messages": messages}
    request = MessageRequest.parse(json.dumps(body).encode()).generation_request()
    assert attached(request) == (READ_PAGES, [])


def test_a_text_about_pdfs_is_a_text() -> None:
    text = "A file of this kind begins with %PDF-1.7."
    content, warnings = attached(chat(in_chat(uri(text.encode(), "text/plain"), "a.txt")))
    assert (content, warnings) == (f"[file: a.txt]\n{text}", [])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (uri(encrypted(PAGES)), "file.encrypted"),
        (uri(pdf("")), "file.no_text"),
        (uri(pdf()), "file.no_text"),
        (uri(PAGES[:90]), "file.broken"),
        (uri(b"%PDF-1.7"), "file.broken"),
        ("data:application/pdf;base64,!", "file.broken"),
        (uri(b"PK\x03\x04\xff"), "file.unknown"),
        (uri(b"\0" * 9, "text/plain"), "file.unknown"),
        ("", "file.elsewhere"),
    ],
    ids=lambda value: value[:40],
)
def test_a_file_without_text_becomes_a_note(data: str, code: str) -> None:
    content, warnings = attached(chat(in_chat(data)))
    assert content == "[file: a.pdf, left out: its text cannot be read here]"
    assert warnings == [(code, "messages[0].content[0]")]


@pytest.mark.slow
def test_a_bomb_becomes_a_note() -> None:
    content, warnings = attached(chat(in_chat(uri(bomb(1 << 30)))))
    assert "left out" in content
    assert warnings[0][0] in ("file.broken", "file.limits")


def test_text_files_are_read_whatever_they_are_called() -> None:
    content, _ = attached(chat(in_chat(uri("é\n".encode(), "x/y"), "a\nb.txt")))
    assert content == "[file: a b.txt]\né\n"


@pytest.mark.parametrize("data", ["data:,a%20b", "data:text/plain;charset=utf-8,a b"])
def test_data_uris_may_hold_the_text_itself(data: str) -> None:
    assert attached(chat(in_chat(data))) == ("[file: a.pdf]\na b", [])


def test_files_elsewhere_are_named() -> None:
    for part in (
        {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
        {"type": "document", "source": {"type": "file", "file_id": "https://example.org/a.pdf"}},
    ):
        content, warnings = attached(message(part))
        assert "https://example.org/a.pdf" in content
        assert warnings == [("file.elsewhere", "messages[0].content[0]")]


def test_documents_with_texts_need_no_file() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    content = {"type": "document", "source": {"type": "content", "content": blocks}}
    assert attached(message(content)) == ("a\n\nb", [])


def test_files_beyond_the_limit_become_notes() -> None:
    parts = [in_chat(uri(str(i).encode(), "text/plain")) for i in range(MAX_FILES + 1)]
    _, warnings = attached(chat(*parts))
    assert warnings == [("file.limits", f"messages[0].content[{MAX_FILES}]")]


def test_pages_are_joined() -> None:
    assert reply(PAGES) == READ + b"It rains\n\nin Bergen"


def test_a_session_with_a_file_goes_on(http_text: httpx.Client) -> None:
    messages = [
        {"role": "user", "content": [in_chat(uri(PAGES)), in_chat(uri(encrypted(PAGES)))]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    asked = {"model": TARGET, "messages": messages, "max_tokens": 1}
    answer = http_text.post("/v1/chat/completions", json=asked)
    assert [warning["code"] for warning in answer.json()["warnings"]] == ["file.encrypted"]
    ids = http_text.post("/tokenize", json={"model": TARGET, "messages": messages}).json()
    text = http_text.post("/detokenize", json={"model": TARGET, "tokens": ids["tokens"]}).json()
    assert READ_PAGES in text["content"]
