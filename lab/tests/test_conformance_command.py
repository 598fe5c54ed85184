"""`python -m lab.conformance`: reports, exit status."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lab.conformance.__main__ import main
from lab.conformance.checks import CHECKS
from lab.tests import flaws
from tests.server.running import serving

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


def test_the_table_shows_what_was_seen_and_the_status_that_something_failed(
    locked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([locked, "--api-key", KEY])
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
    assert main([locked, "--api-key", KEY, "--markdown"]) == 1
    head, _, *table = capsys.readouterr().out.splitlines()
    assert head.startswith(r"\<model\>\|\x1b\[31m at http://127.0.0.1:")
    assert table[:2] == ["| check | outcome | seen |", "|---|---|---|"]
    assert table[-1].startswith("| Errors of invalid requests | failed | invalid messages")
    assert len(table) == 2 + len(CHECKS)
    assert KEY not in head


def test_a_server_that_does_not_answer_is_named(
    locked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([locked]) == 2
    assert f"{locked} does not answer: 401: no key" in capsys.readouterr().err
    assert main(["http://127.0.0.1:1"]) == 2
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err
