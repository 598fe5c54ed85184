"""Which program sent a request, and when the newest one came."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import httpx
import pytest

from omlx.admin.connect import ProgramView, group_views, other_programs
from omlx.admin.web.formats import count
from omlx.clients.agents import AGENTS, Endpoint
from omlx.clients.apps import APPS, Kind
from omlx.machine import program_words
from omlx.models.catalog.registry import Registry
from omlx.server.request.activity import MAX_PROGRAMS, LastSeen, Seen
from tests.admin.running import Administered, administered
from tests.agents.recordings import recorded
from tests.server.running import TARGET

NO_LIBRARY = "http://none:1/admin"
ENDPOINT = Endpoint("http://127.0.0.1:8000", "org/model")


def shown(seen: LastSeen, now: float) -> dict[str, ProgramView]:
    groups = group_views(ENDPOINT, "Hello?", seen.programs, now)
    return {app.id: app.seen for apps in groups.values() for app in apps if app.seen is not None}


def test_the_newest_request_of_a_program_counts_whatever_its_version() -> None:
    seen = LastSeen()
    seen.note("claude-cli/2.1.196 (external, cli)", 100)
    seen.note("claude-cli/2.1.197 (external, sdk-cli)", 200)
    seen.note("OpenAI/Python 3.52.0", 150, refused=True)
    assert shown(seen, 337.5) == {
        "claude": ProgramView("claude-cli", "2.1.197", 120, False),
        "openai": ProgramView("OpenAI/Python", "", 180, True),
    }
    assert other_programs(seen.programs, 337.5) == []


def test_other_programs_are_listed_and_the_dashboard_is_none() -> None:
    seen = LastSeen()
    for client in ("", "dashboard", "mine/1.0 x", "Python/3.11", "strange"):
        seen.note(client, 10)
    assert other_programs(seen.programs, 17) == [
        ProgramView("strange", "", 5, False),
        ProgramView("Python", "3.11", 5, False),
        ProgramView("mine", "1.0", 5, False),
    ]


def test_the_record_is_bounded() -> None:
    seen = LastSeen()
    for number in range(2 * MAX_PROGRAMS):
        seen.note(f"program-{number}", number)
    seen.note(f"program-{MAX_PROGRAMS}", 1000)
    assert len(seen.programs) == MAX_PROGRAMS
    assert seen.programs[0] == Seen(f"program-{MAX_PROGRAMS}", 1000, refused=False)


@pytest.mark.parametrize(("agent", "app"), [("claude_code", "claude"), ("codex", "codex")])
def test_recorded_requests_are_recognized(agent: str, app: str) -> None:
    client = recorded(agent)["headers"]["user-agent"]
    assert [known.id for known in APPS if known.sends(client)] == [app]


def test_each_agent_can_be_launched_from_the_page() -> None:
    assert {app.program for app in APPS if app.kind is Kind.AGENT} == set(AGENTS)
    assert len({app.id for app in APPS}) == len(APPS)


def test_commands_name_this_installation_to_a_browser_on_this_machine(
    browser: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    command = shlex.join([*program_words(), "launch", "--model", TARGET, "claude"])
    assert Path(command.split()[0]).is_absolute()
    assert command in html.unescape(browser.get("/admin/parts/connect").text)


def test_requests_over_the_socket_are_noted(server: Administered, browser: httpx.Client) -> None:
    body = {"model": TARGET, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    with server.browser(logged_in=False) as client:
        client.headers["User-Agent"] = "ollama-python/0.6.3 (x86_64 linux) Python/3.11"
        assert client.post("/api/chat", json={**body, "stream": False}).status_code == 200
        client.headers["User-Agent"] = "QwenCode/0.15 (linux)"
        assert client.post("/v1/chat/completions", json={**body, "model": "no"}).status_code == 404
    text = browser.get("/admin/parts/connect").text
    ollama = text[text.index('id="app-ollama"') :]
    qwen = text[text.index('id="app-qwen"') : text.index('id="app-aider"')]
    assert "Last request" in ollama
    assert "Last request refused" in qwen
    # The context of the model is short for each agent, and each needs another one.
    assert text.count("or more") == len(AGENTS)
    assert count(AGENTS["qwen"].least_context) in qwen
    assert count(AGENTS["claude"].least_context) not in qwen


def test_a_program_that_only_looks_for_models_is_noted(server: Administered) -> None:
    with server.browser(logged_in=False) as client, server.browser() as browser:
        for path in ("/api/tags", "/v1/models"):
            client.headers["User-Agent"] = f"looker{path}"
            assert client.get(path).status_code == 200
        client.headers["User-Agent"] = "refused/1"
        assert client.get("/api/v0/models/none").status_code == 404
        client.headers["User-Agent"] = "page/1"
        assert client.get("/favicon.ico").status_code == 404
        text = browser.get("/admin/parts/connect").text
        listed = browser.get("/admin/parts/activity/ended").text
    assert "looker/api/tags" in text
    assert "looker/v1/models" in text
    assert text.index("refused") < text.index("Last request refused")
    assert "/api/v0" in listed.replace("<wbr>", "")
    assert "page" not in [line.strip() for line in text.splitlines()]
    assert "<span>page</span>" not in text


def test_an_empty_machine_that_others_reach_has_a_page(
    browser: httpx.Client, tmp_path: Path
) -> None:
    key, empty = "sk-of-this-machine", Registry(())
    with (
        administered(tmp_path, empty, None, host="0.0.0.0", api_key=key) as server,
        server.browser() as other,
    ):
        page = other.get("/admin/connect?model=no/such")
    assert page.status_code == 200
    assert "org/model" in page.text
    (address,) = re.findall('<omlx-qr class="qr" data-text="(.*?)"', page.text) or [NO_LIBRARY]
    assert re.fullmatch(r"http://[\w.-]+:\d+/admin", address)
    assert key not in page.text
    assert "omlx-qr" not in browser.get("/admin/connect").text
