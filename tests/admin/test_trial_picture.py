"""Trials with a picture, on a real socket, with the bundled model that sees and its draft."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.admin.running import API, Administered, administered
from tests.server.media.pictures import some_uri
from tests.server.running import SEEING, TARGET, VISION, VISION_DRAFT

pytestmark = pytest.mark.needs_extra

TRIAL = f"{API}/models/{VISION}/trial"
SMALL: dict[str, Any] = {"drafts": [VISION_DRAFT], "kinds": ["picture"], "tokens": 16}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), SEEING, default=VISION) as running:
        yield running


@pytest.fixture
def client(seeing: Administered) -> Iterator[httpx.Client]:
    with seeing.browser() as client:
        yield client


def last_report(client: httpx.Client) -> dict[str, Any]:
    report: dict[str, Any] = {}
    while report.get("state") not in ("done", "failed"):
        with client.stream("GET", f"{TRIAL}/events") as stream:
            for line in stream.iter_lines():
                if line.startswith("data: "):
                    report = json.loads(line.removeprefix("data: "))
    return report


def test_questions_about_a_picture_are_measured(seeing: Administered, client: httpx.Client) -> None:
    picture = some_uri(90, 70)
    body = SMALL | {"picture": picture}
    assert client.post(f"{TRIAL}/estimate", json=body).json()["fits"]
    assert client.post(TRIAL, json=body).status_code == 202
    report = last_report(client)
    assert report["state"] == "done", report["reason"]
    assert seeing.running.engine.newest is not None
    assert seeing.running.engine.newest.spans
    assert report["kinds"] == ["picture"]
    assert report["exact"]["same"] == report["exact"]["of"] > 0
    assert {cell["samples"] for cell in report["cells"]} == {report["rounds"]}
    kept = [file.read_bytes() for file in Path(seeing.home).rglob("*") if file.is_file()]
    assert any(b'"kinds":["picture"]' in content for content in kept)
    assert not any(picture[40:80].encode() in content for content in kept)


@pytest.mark.parametrize(
    ("model", "picture", "code", "param"),
    [
        (VISION, "", "trial.no_picture", "picture"),
        (VISION, "data:image/png;base64,AAAA", "image.format", "picture"),
        (VISION, "/etc/passwd", "image.source", "picture"),
        (TARGET, some_uri(9, 9), "image.model", "picture"),
    ],
)
def test_a_picture_that_cannot_be_read_is_named(
    client: httpx.Client, model: str, picture: str, code: str, param: str
) -> None:
    body = {"kinds": ["picture"], "picture": picture}
    answer = client.post(f"{API}/models/{model}/trial/estimate", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
