"""`omlx verify --server`: this server passes; reports, exit status, invalid command lines."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from omlx.cli.main import main
from omlx.conformance.checks import CHECKS
from omlx.settings.schema import Settings
from tests.conformance import flaws
from tests.server.running import DRAFT, HYBRID, TARGET, omlx, serving

KEY = "secret-key"


class Locked(flaws.Unprocessable):
    """Wants a key, and has a flaw."""

    models = ("<model>|\x1b[31m",)

    async def _chat(self, request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": {"message": "no key"}}, 401)
        return await super()._chat(request)


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    with serving(Locked().app) as url:
        yield url


@pytest.mark.parametrize("model", [TARGET, pytest.param(HYBRID, marks=pytest.mark.slow)])
def test_this_server_passes_every_check(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a draft model: drafts, batches and cached prefixes change nothing."""
    with omlx(Settings(draft_model=DRAFT)) as running:
        status = main(["verify", "--server", running.url, "--model", model, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [check for check in record["checks"] if check["outcome"] != "passed"] == []
    assert status == 0
    assert record["model"] == model
    assert [check["name"] for check in record["checks"]] == [check.name for check in CHECKS]


def test_the_table_shows_what_was_seen_and_the_status_that_something_failed(
    locked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["verify", "--server", locked, "--api-key", KEY])
    output = capsys.readouterr().out
    assert status == 1
    *rows, summary = output.splitlines()
    assert len(rows) == len(CHECKS)
    assert [row.split("  ")[0] for row in rows] == ["✓"] * (len(CHECKS) - 1) + ["✗"]
    assert rows[-1].endswith("invalid messages: status 422, not 400")
    assert summary == f"{len(CHECKS) - 1} passed, 1 failed, 0 not supported"


def test_the_table_in_markdown_can_be_published(
    locked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--server", locked, "--api-key", KEY, "--markdown"]) == 1
    head, _, *table = capsys.readouterr().out.splitlines()
    assert head.startswith(r"\<model\>\|\x1b\[31m at http://127.0.0.1:")
    assert table[:2] == ["| check | outcome | seen |", "|---|---|---|"]
    assert table[-1].startswith("| Errors of invalid requests | failed | invalid messages")
    assert len(table) == 2 + len(CHECKS)
    assert KEY not in head


def test_a_server_that_does_not_answer_is_named(
    locked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--server", locked]) == 2
    assert f"{locked} does not answer: 401: no key" in capsys.readouterr().err
    assert main(["verify", "--server", "http://127.0.0.1:1"]) == 2
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ID", "--server", "http://127.0.0.1:1"],
        ["ID", "--markdown"],
        ["ID", "--model", "name"],
        ["ID", "--api-key", "key"],
    ],
)
def test_answers_or_a_server_are_verified(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *arguments]) == 2
    assert "either answers, or a server" in capsys.readouterr().err
