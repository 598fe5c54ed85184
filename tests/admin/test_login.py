"""Login over real HTTP: links that work once, passwords, sessions and their end."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from omlx.admin.credentials import (
    COOKIE,
    FREE_TRIES,
    LINK_S,
    MAX_AGE_S,
    MAX_SESSIONS,
    MAX_WAIT_S,
    SEEN_S,
    Credentials,
    Sessions,
    Throttle,
)
from omlx.admin.login import Gate, login_command
from omlx.admin.web.addresses import HOME, LOGIN, PARTS, PROFILES
from omlx.admin.web.rendering import MANIFEST, OFFLINE, STYLES, WORDS, WORKER
from omlx.errors import BadRequest, ConfigError, TooManyRequests
from omlx.machine import program_words
from omlx.settings.schema import table
from tests.admin.running import API, PASSWORD, Administered, administered, change
from tests.server.running import TARGET

OPEN = {
    ("GET", LOGIN),
    ("GET", f"{API}/session"),
    ("POST", f"{API}/login"),
    *(("POST", f"{HOME}/{name}") for name in ("login", "password", "password/later")),
    *(("POST", f"{place}/logout") for place in (HOME, API)),
    ("POST", f"{HOME}/preferences"),
    ("POST", f"{PROFILES}/{{name:path}}"),  # leads to a page
    *(("GET", path) for path in (STYLES, WORDS, MANIFEST, WORKER, OFFLINE)),
}
"""What is answered without a session: forms of the login look for one themselves."""
KEY = "a-key-of-the-api"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def set_password(
    client: httpx.Client, password: str = PASSWORD, current: str | None = None
) -> httpx.Response:
    return client.put(f"{API}/password", json={"password": password, "current": current})


def log_in(client: httpx.Client, password: str = PASSWORD) -> httpx.Response:
    return client.post(f"{API}/login", json={"password": password})


def is_in(client: httpx.Client) -> bool:
    logged_in = client.get(f"{API}/session").json()["logged_in"]
    assert (client.get(f"{API}/settings").status_code == 200) is logged_in
    return bool(logged_in)


def given(part: re.Match[str]) -> str:
    """What stands for a part of an address."""
    return {":path": TARGET, ":int": "1"}.get(part[1], "other")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    with administered(tmp_path_factory.mktemp("home"), api_key=KEY) as running:
        yield running


def routes(server: Administered) -> list[tuple[str, str]]:
    """Method and address of all that needs a session, of an existing model or another thing."""
    found = [route for route in server.routes if route not in OPEN]
    assert len(found) > 80
    assert len(found) + len(OPEN) == len(server.routes)
    return [(method, re.sub(r"{\w+(:\w+)?}", given, path)) for method, path in found]


@pytest.mark.parametrize(
    "headers", [{}, {"Cookie": f"{COOKIE}=guess"}, {"Authorization": f"Bearer {KEY}"}]
)
def test_nothing_is_open_without_a_session(server: Administered, headers: Any) -> None:
    with server.browser(logged_in=False) as client:
        for method, path in routes(server):
            answer = client.request(method, path, json={"changes": {}}, headers=headers)
            if path.startswith(API):
                assert answer.json()["error"]["code"] == "auth.session", path
            shows_login = answer.headers.get("location", "").startswith(f"{LOGIN}?next=")
            is_page = method == "GET" and not path.startswith((API, PARTS))
            assert (answer.status_code, shows_login) == ((303, True) if is_page else (401, False))


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}],
)
def test_other_pages_and_rebound_names_are_refused_even_with_a_session(
    server: Administered, browser: httpx.Client, headers: Any
) -> None:
    for method, path in server.routes:
        if method != "GET":
            answer = browser.request(method, path, json={"changes": {}}, headers=headers)
            assert answer.status_code == 403, path
    assert is_in(browser)


def test_pages_that_may_talk_to_models_may_not_administer(tmp_path: Path) -> None:
    page = {"Origin": "http://localhost:3000"}
    allowed = tuple(page.values())
    with administered(tmp_path, allow_origin=allowed) as running, running.browser() as client:
        assert client.post("/v1/tokenize", json={}, headers=page).status_code != 403
        for method, path in running.routes:
            answer = client.request(method, path, json={"changes": {}}, headers=page)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "guard.origin")
        assert is_in(client)


def test_a_link_works_once_and_its_cookie_is_for_this_site_alone(server: Administered) -> None:
    token = Credentials(server.home).invite()
    assert token not in Credentials(server.home).path.read_text()
    with server.browser(logged_in=False) as client, server.browser(logged_in=False) as second:
        answer = client.post(f"{API}/login", json={"token": token})
        cookie = answer.headers["set-cookie"].lower()
        assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/"))
        assert is_in(client)
        assert second.post(f"{API}/login", json={"token": token}).status_code == 401
        assert not is_in(second)
        client.post(f"{API}/logout")
        assert not is_in(client)


def test_after_the_link_a_password_and_a_new_one_needs_the_old_one(fresh: Administered) -> None:
    with fresh.browser() as first, fresh.browser(logged_in=False) as second:
        assert set_password(first, "short").json()["error"]["code"] == "auth.password_length"
        assert set_password(first).status_code == 200
        assert PASSWORD not in (fresh.home / "admin.json").read_text()
        assert (fresh.home / "admin.json").stat().st_mode & 0o777 == 0o600
        assert log_in(second, "wrong one").status_code == 401
        assert not is_in(second)
        assert log_in(second).status_code == 200
        assert is_in(second)
        assert set_password(second, "another one", "not this").status_code == 401
        assert set_password(second, "another one", PASSWORD).status_code == 200
        assert is_in(second)
        assert not is_in(first)  # stale: it began with the old password
        assert log_in(first).status_code == 401
        assert log_in(first, "another one").status_code == 200


def test_a_changed_key_ends_other_sessions_and_counts_at_once(fresh: Administered) -> None:
    with fresh.browser() as first, fresh.browser() as second:
        answer = change(first, "settings", api_key="a-secret-key")
        assert answer.json()["applied"] == {"api_key": "at_once"}
        assert "a-secret-key" not in answer.text + first.get(f"{API}/settings").text
        assert is_in(first)
        assert not is_in(second)
        assert second.get("/v1/models").status_code == 401
        assert (
            second.get("/v1/models", headers={"Authorization": "Bearer a-secret-key"}).status_code
            == 200
        )
        assert change(first, "settings", api_key=None).status_code == 200
        assert second.get("/v1/models").status_code == 200


def test_ten_wrong_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Throttle.__init__, "__defaults__", (Clock(),))  # no wait ends meanwhile
    with (
        administered(tmp_path) as fresh,
        fresh.browser() as first,
        fresh.browser(logged_in=False) as client,
    ):
        set_password(first)
        answers = [log_in(client, f"guess {number}") for number in range(10)]
        assert [answer.status_code for answer in answers] == [401] * FREE_TRIES + [429] * (
            10 - FREE_TRIES
        )
        assert int(answers[-1].headers["retry-after"]) >= 1
        right = log_in(client)
        assert right.status_code == 429
        assert not is_in(client)
        token = Credentials(fresh.home).invite()  # the owner of the machine is never locked out
        assert client.post(f"{API}/login", json={"token": token}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        r'{"password": "\ud800 long enough"}',
        "[" * 9999,
        '{"token": 1}',
        '{"password": "a", "token": "b"}',
        '{"user": "x"}',
    ],
)
def test_an_invalid_login_is_refused(server: Administered, body: str) -> None:
    with server.browser(logged_in=False) as client:
        assert client.post(f"{API}/login", content=body).status_code == 400


def test_links_end_after_an_hour_and_a_password_has_bounds(tmp_path: Path) -> None:
    clock = Clock()
    credentials = Credentials(tmp_path, clock)
    early, late = credentials.invite(), credentials.invite()
    clock.now += LINK_S - 1
    assert credentials.redeem(early)
    clock.now += 1
    assert not credentials.redeem(late)
    assert not credentials.redeem("")
    assert not credentials.is_password("")
    for password in ("", "seven77", "x" * 1025):
        with pytest.raises(BadRequest):
            credentials.set_password(password)
    assert not credentials.has_password


def test_a_corrupt_file_admits_no_login_and_is_replaced(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    for replace_file in (credentials.invite, lambda: credentials.set_password("correct horse")):
        credentials.path.write_text('{"format": "omlx-config/1", "links": [')
        assert not credentials.redeem("")
        credentials.path.write_text('{"format": "omlx-config/1", "links": [')
        replace_file()
    assert credentials.has_password


def test_sessions_end_when_unused_and_after_a_month(tmp_path: Path) -> None:
    clock = Clock()
    sessions = Sessions(Credentials(tmp_path, clock))
    unused, used = sessions.begin("f", by_link=False), sessions.begin("f", by_link=True)
    for _ in range(10):
        clock.now += MAX_AGE_S / 10
        assert sessions.find(used, "f") is not None
    assert sessions.find(unused, "f") is None
    clock.now += 1
    assert sessions.find(used, "f") is None


def test_a_session_survives_a_restart_and_no_cookie_is_stored(tmp_path: Path) -> None:
    with administered(tmp_path) as first, first.browser() as client:
        cookies = dict(client.cookies)
        assert not any(value in (tmp_path / "admin.json").read_text() for value in cookies.values())
    with administered(tmp_path) as second, second.browser(logged_in=False) as client:
        client.cookies.update(cookies)
        assert is_in(client)
        client.post(f"{API}/logout")
    with administered(tmp_path) as third, third.browser(logged_in=False) as client:
        client.cookies.update(cookies)
        assert not is_in(client)


def test_the_least_recently_used_session_ends_first(tmp_path: Path) -> None:
    clock = Clock()
    credentials = Credentials(tmp_path, clock)
    sessions = Sessions(credentials)
    tokens = []
    for _ in range(MAX_SESSIONS):
        tokens.append(sessions.begin("f", by_link=False))
        clock.now += 1
    clock.now += SEEN_S
    assert sessions.find(tokens[0], "f") is not None
    sessions.begin("f", by_link=False)
    assert len(credentials.sessions()) == MAX_SESSIONS
    assert sessions.find(tokens[0], "f") is not None
    assert sessions.find(tokens[1], "f") is None


def test_an_old_session_is_refused_where_nothing_can_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = Credentials(tmp_path)
    sessions = Sessions(credentials)
    token = sessions.begin("before the password changed", by_link=False)

    def fail(*_: object) -> None:
        raise ConfigError("config.unwritable", file="admin.json", detail="Read-only file system")

    monkeypatch.setattr("omlx.admin.credentials.write", fail)
    assert sessions.find(token, "f") is None
    gate, answer = Gate(credentials, sessions, Throttle(), lambda: None), Response()
    cookie = (b"cookie", f"{COOKIE}={token}".encode())
    scope = {"type": "http", "path": "/", "headers": [(b"host", b"localhost"), cookie]}
    gate.renew(Request(scope), answer, by_link=True)
    assert COOKIE in answer.headers["set-cookie"]


def test_a_login_that_cannot_be_stored_lasts_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("config.unwritable", file="admin.json", detail="No space left on device")

    monkeypatch.setattr("omlx.admin.credentials.write", fail)
    sessions = Sessions(Credentials(tmp_path))
    token = sessions.begin("f", by_link=True)
    assert sessions.find(token, "f") is not None
    assert Sessions(Credentials(tmp_path)).find(token, "f") is None
    sessions.end(token)
    assert sessions.find(token, "f") is None


def test_every_wrong_password_doubles_the_wait() -> None:
    clock = Clock()
    throttle = Throttle(clock)
    waits = []
    for _ in range(FREE_TRIES + 3):
        throttle.check()
        throttle.failed()
        try:
            throttle.check()
        except TooManyRequests as error:
            waits.append(error.retry_after_s)
            clock.now += error.retry_after_s
    assert waits == [3, 5, 9, 17]
    throttle.succeeded()
    throttle.check()


def test_thousands_of_wrong_passwords_do_not_break_the_throttle() -> None:
    throttle = Throttle()
    for _ in range(5_000):
        throttle.failed()
    with pytest.raises(TooManyRequests) as refusal:
        throttle.check()
    assert refusal.value.retry_after_s <= MAX_WAIT_S + 1
    throttle.succeeded()
    throttle.check()


def by_link(server: Administered, client: httpx.Client, wanted: str = "") -> str:
    """Log in by a new link, as `omlx dashboard` opens it; return the page that comes next."""
    token = Credentials(server.home).invite()
    shown = client.get(f"/admin/login?token={token}").text
    *_, then = re.findall(r'name="next" value="([^"]+)"', shown)
    assert then == (wanted or "/admin")
    answer = client.post("/admin/login", data={"next": then, "token": token})
    assert answer.status_code == 303
    return str(answer.headers["location"])


def test_a_password_is_offered_until_it_is_declined(fresh: Administered) -> None:
    with fresh.browser(logged_in=False) as client:
        assert client.post("/admin/password/later").status_code == 303  # a stranger's
        assert by_link(fresh, client) == "/admin/password?next=%2Fadmin"
        later = client.post("/admin/password/later", data={"next": "/admin/models"})
        assert (later.status_code, later.headers["location"]) == (303, "/admin/models")
        assert by_link(fresh, client) == "/admin"
        assert set_password(client).status_code == 200
        client.post(f"{API}/logout")
        assert by_link(fresh, client) == "/admin"
    assert not Credentials(fresh.home).offers_password


def test_a_link_leads_to_the_page_that_was_wanted(fresh: Administered) -> None:
    wanted = "/admin/activity/statistics?days=7"
    with fresh.browser(logged_in=False) as client:
        refused = client.get(wanted)
        assert refused.headers["location"].startswith("/admin/login?next=")
        assert by_link(fresh, client, wanted) == f"/admin/password?next={quote(wanted, safe='')}"
        assert by_link(fresh, client) == "/admin/password?next=%2Fadmin"


def test_it_names_the_program_and_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    default = table()["home"].default
    assert isinstance(default, Path)
    program = tmp_path / "bin" / "omlx"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert login_command(default, "127.0.0.1") == "omlx dashboard"
    other = login_command(tmp_path / "a home", "::1")
    assert shlex.split(other) == ["omlx", "dashboard", "--home", str(tmp_path / "a home")]
    monkeypatch.setenv("PATH", str(tmp_path))
    words = shlex.split(login_command(default, "127.0.0.1"))
    assert words == [*program_words(), "dashboard"]
    assert Path(words[0]).is_absolute()
    assert login_command(tmp_path, "192.168.1.20") == "omlx dashboard"


def test_it_runs_where_the_program_is_not_on_the_path(server: Administered) -> None:
    with server.browser(logged_in=False) as client:
        page = client.get("/admin/login").text
    command = page.partition("data-copied>")[2].partition("</code>")[0]
    assert str(server.home) in command
    done = subprocess.run(
        ["sh", "-c", f"{command} --print"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "omlx serve" in done.stderr  # this server has not published its address
    assert str(server.home) in done.stderr


def test_a_link_in_memory_works_once_and_in_this_process(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    token = credentials.link_in_memory("http://here").rpartition("token=")[2]
    assert [credentials.redeem(token), credentials.redeem(token)] == [True, False]
    assert not credentials.path.exists()
