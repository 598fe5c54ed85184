"""Ollama's official client against a real server: as exact as the other dialects."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ollama
import pytest
from openai import OpenAI

from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry
from tests.schemas import record
from tests.server.dialects import markup, user
from tests.server.running import DRAFT, TARGET, Running, omlx
from tests.server.spelling import CONTEXT

TAGGED = f"{TARGET}:latest"
QUESTION = user("List three rivers, then list them again.")
OPTIONS: dict[str, Any] = {"seed": 7, "temperature": 0.7, "num_predict": 48}
CALL = markup("look", at="Zürich")
THOUGHT = "<think>\nHm.\n</think>\n\nYes."


def test_python_functions_are_tools(spelling_llama: Any) -> None:
    def look(at: str) -> str:
        """Look somewhere."""
        return at

    said = spelling_llama.chat(TARGET, user(CALL), tools=[look], think=False)
    assert said.message.tool_calls[0].function.arguments == {"at": "Zürich"}


def test_thinking_of_a_prompt_and_by_a_level(spelling_llama: Any) -> None:
    parts = list(spelling_llama.chat(TARGET, user(THOUGHT), think="high", stream=True))
    assert "".join(part.message.thinking or "" for part in parts).strip() == "Hm."
    plain = spelling_llama.chat(TARGET, user("Yes."), think=False)
    assert plain.message.thinking is None
    made = spelling_llama.generate(TARGET, THOUGHT, think=True)
    assert made.thinking.strip() == "Hm."
    assert made.response == "Yes."
    ada = '{"name": "Ada", "age": 36}'
    form = record(name={"type": "string"}, age={"type": "integer"})
    parts = spelling_llama.generate(TARGET, f"{ada} is it.", think=False, format=form, stream=True)
    assert "".join(part.response for part in parts) == ada


def test_any_object(spelling_llama: Any) -> None:
    said = spelling_llama.chat(TARGET, user('{"a": 1}'), format="json", think=False)
    assert json.loads(said.message.content) == {"a": 1}
    assert spelling_llama.chat(TARGET, user("a"), format="", think=False).message.content == "a"


def test_generate_with_and_without_a_template(server: Running, llama: Any) -> None:
    options = {"seed": 3, "temperature": 0, "num_predict": 12}
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as openai:
        raw = openai.completions.create(
            model=TARGET, prompt="Once upon", temperature=0, seed=3, max_tokens=12
        )
    made = llama.generate(TARGET, "Once upon", raw=True, options=options)
    assert made.response == raw.choices[0].text
    system = [{"role": "system", "content": "Be short."}, *user("Once upon")]
    chat = llama.chat(TARGET, system, options=options)
    parts = list(
        llama.generate(TARGET, "Once upon", system="Be short.", stream=True, options=options)
    )
    assert "".join(part.response or "" for part in parts) == chat.message.content
    assert "".join(part.thinking or "" for part in parts) == (chat.message.thinking or "")
    assert parts[-1].done_reason == chat.done_reason
    with pytest.raises(ollama.ResponseError) as caught:
        llama.generate(TARGET, "def f():", suffix="return x")
    assert caught.value.status_code == 400  # the bundled model has no tokens for gaps
    assert "infill" in caught.value.error or "suffix" in caught.value.error


def test_logprobs(llama: Any) -> None:
    said = llama.chat(TARGET, QUESTION, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert len(said.logprobs) >= said.eval_count - 1
    assert all(len(entry.top_logprobs) == 2 for entry in said.logprobs)
    parts = llama.chat(TARGET, QUESTION, options=OPTIONS, logprobs=True, stream=True)
    streamed = [entry.token for part in parts for entry in part.logprobs or ()]
    assert streamed == [entry.token for entry in said.logprobs]


def test_models_their_context_and_abilities(llama: Any) -> None:
    assert {TAGGED, f"{DRAFT}:latest"} <= {model.model for model in llama.list().models}
    llama.chat(TARGET, user("a"), options={"num_predict": 1})
    shown = llama.show(TARGET)
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] == CONTEXT
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities)
    assert "vision" not in shown.capabilities
    (running,) = [loaded for loaded in llama.ps().models if loaded.model == TAGGED]
    assert running.context_length == CONTEXT
    assert running.size_vram == running.size > 0
    assert running.expires_at.year > 2300


def test_errors_are_ollamas(llama: Any) -> None:
    def refused(status: int, word: str, **body: Any) -> None:
        with pytest.raises(ollama.ResponseError) as caught:
            llama.chat(**{"model": TARGET, "messages": QUESTION, **body})
        assert caught.value.status_code == status
        assert word in caught.value.error

    refused(404, "nobody", model="nobody")
    refused(400, "options.temperature", options={"temperature": "hot"})
    refused(400, "options.top_p", options={"top_p": 2})
    refused(400, "keep_alive", keep_alive="soon")
    refused(400, "messages[0].images[0]", messages=[user("a")[0] | {"images": ["AAAA"]}])
    refused(400, "format", format={"type": "nothing"})


def test_what_has_no_effect_is_named(llama: Any) -> None:
    options = {"mirostat": 2, "num_gpu": 1, "tfs_z": 1.0, "num_ctx": 1 << 20, "num_predict": 1}
    body = {"model": TARGET, "messages": QUESTION, "stream": False, "options": options}
    answer = llama._client.post("/api/chat", json=body).json()
    codes = {warning["code"]: warning["params"] for warning in answer["warnings"]}
    assert codes["ollama.options"]["fields"] == "options.mirostat, options.num_gpu"
    assert codes["ollama.num_ctx"] == {"asked": 1 << 20, "length": CONTEXT}


def test_a_model_that_does_not_think_says_so(tmp_path: Path) -> None:
    """Before it is loaded."""
    shutil.copy(BUNDLED / TARGET / "config.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    registry = Registry((ModelEntry("org/plain", tmp_path, "test"),))
    with omlx(registry=registry, default=None) as running, ollama.Client(running.url) as client:
        assert client.show("org/plain").capabilities == ["completion"]
        for think in (True, "low"):
            with pytest.raises(ollama.ResponseError, match="thinking") as caught:
                client.generate("org/plain", "Why?", think=think)
            assert caught.value.status_code == 400
        assert client.ps().models == []
