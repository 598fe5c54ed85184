from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from omlx.clients.agents import Endpoint
from omlx.clients.apps import APPS
from tests.server.conftest import speller as speller
from tests.server.running import PATIENCE_S, TARGET, Running

HERE = Path(__file__).parent
ABSENT = shutil.which("node") is None or not (HERE / "node_modules").is_dir()
# In CI nothing is skipped.
pytestmark = pytest.mark.skipif(
    ABSENT and not os.environ.get("CI"), reason="needs node, and npm ci in tests/js"
)


def result(text: str) -> str:
    """The result of a tool as the template shows it to the model, which repeats it."""
    return f"<tool_response>\n{text}\n</tool_response>"


def output_of(script: str, server: Running) -> Any:
    """The JSON that a script prints."""
    command = ["node", str(HERE / script), server.url, TARGET]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.slow
def test_openai(speller: Running) -> None:
    seen = output_of("openai.mjs", speller)
    assert seen["streamed"].pop("tokens") > 100
    assert seen["streamed"] == {"whole": True, "several": True}
    assert seen["tools"] == {"said": result("It rains in Zürich."), "seen": ["Zürich"]}
    ends = {"first": "response.created", "last": "response.completed"}
    assert seen["responses"] == {
        "arguments": {"city": "Zürich"},
        "said": result("It rains."),
        **ends,
    }
    assert seen["refused"] == {"kind": "NotFoundError", "status": 404, "code": "model_not_found"}


def test_anthropic(speller: Running) -> None:
    seen = output_of("anthropic.mjs", speller)
    assert seen["streamed"].pop("tokens") > 100
    assert seen["streamed"] == {"whole": True, "several": True, "reason": "end_turn"}
    first = {"text": "Let me see.", "input": {"city": "Zürich"}, "reason": "tool_use"}
    assert seen["tools"] == first | {"said": result("It rains.")}
    assert seen["refused"] == {"kind": "NotFoundError", "status": 404, "type": "not_found_error"}


def test_the_dashboards_snippet_runs(speller: Running) -> None:
    app = next(app for app in APPS if app.id == "openai-js")
    snippet = app.snippet(Endpoint(speller.url, TARGET), 'It\'s "fine"')
    ran = subprocess.run(
        ["node", "--input-type=module", "-"],
        input=snippet.text,
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == 'It\'s "fine"'


def test_ollama(speller: Running) -> None:
    seen = output_of("ollama.mjs", speller)
    assert seen["streamed"].pop("tokens") > 100
    assert seen["streamed"] == {"whole": True, "several": True, "done": "stop"}
    assert seen["tools"] == {"arguments": {"city": "Zürich"}, "said": result("It rains.")}
    assert seen["thinking"] == {"response": "Yes.", "thinking": "Hm."}
    name = f"{TARGET}:latest"
    assert seen["models"] == {"first": name, "tools": True, "context": 4096, "running": [name]}
    assert seen["refused"] == {"kind": "ResponseError", "status": 404, "named": True}
