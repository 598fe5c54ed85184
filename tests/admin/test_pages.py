"""Pages over real HTTP: session, language, security policy, forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import httpx
import pytest

from omlx.admin.credentials import Credentials
from omlx.admin.web.rendering import BUNDLE, ENTRIES
from omlx.catalog import catalog, data_dir
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.registry import ModelEntry, Registry, Status
from omlx.settings.schema import Scope, table
from tests.admin.running import API, PASSWORD, Administered, administered, change
from tests.server.running import DRAFT, TARGET

PAGES = ("/admin", "/admin/models", f"/admin/models/{TARGET}", "/admin/settings", "/admin/password")
BROKEN = {
    "org/other": Reason("model.head_only", {"kind": "EAGLE"}),
    "org/<script>": Reason("model.unsupported", {"model_type": "<b>"}),
}
PARTS = ("/admin/parts/models", f"/admin/parts/model/{TARGET}", f"/admin/parts/prefixes/{TARGET}")


class Elements(HTMLParser):
    """The elements of a page with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def named(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.all if attributes.get("name") == name]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Administered]:
    """A server with a model that has a package, and some that cannot be used."""
    folder = tmp_path_factory.mktemp("models")
    packaged = folder / "org" / "packaged"
    packaged.mkdir(parents=True)
    for file in (BUNDLED / TARGET).iterdir():
        (packaged / file.name).symlink_to(file)
    declared = {
        "default": "small",
        "strategies": {"small": {"type": "draft-model", "draft_model": DRAFT}},
    }
    package = {"generation": {"speculative_decoding": declared}}
    (packaged / "model-package.json").write_text(json.dumps(package))
    entries = (
        ModelEntry("org/packaged", packaged, "model-dir", size_bytes=9_000_000),
        ModelEntry(TARGET, BUNDLED / TARGET, "bundled", size_bytes=9_000_000),
        ModelEntry(DRAFT, BUNDLED / DRAFT, "bundled", size_bytes=1_000_000),
        *(
            ModelEntry(name, folder / name, "home", Status.SKIPPED, reason)
            for name, reason in BROKEN.items()
        ),
    )
    with administered(tmp_path_factory.mktemp("home"), Registry(entries)) as running:
        yield running


def text_of(client: httpx.Client, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("path", PAGES)
def test_without_a_session_a_page_redirects_to_the_login_and_back(
    server: Administered, path: str
) -> None:
    with server.browser(logged_in=False) as client:
        answer = client.get(path)
        assert answer.status_code == 303
        assert client.get(answer.headers["location"]).url.params["next"] == path
    with server.browser() as client:
        assert "<" in text_of(client, path)


@pytest.mark.parametrize("path", PARTS)
def test_an_unchanged_part_is_not_sent_again(kept: Administered, path: str) -> None:
    with kept.browser() as client:
        client.get(path, headers={"Accept-Language": "en"})  # the memory that it shows may grow
        first = client.get(path, headers={"Accept-Language": "en"})
        tag = {"If-None-Match": first.headers["etag"]}
        again = client.get(path, headers={"Accept-Language": "en", **tag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["cache-control"] == "no-store"
        assert client.get(path, headers={"Accept-Language": "ko", **tag}).status_code == 200


def test_a_changed_part_is_sent_again(kept: Administered) -> None:
    path = f"/admin/parts/model/{DRAFT}"
    with kept.browser() as client:
        tag = {"If-None-Match": client.get(path).headers["etag"]}
        for idle_s, status in ((600, 200), (None, 304)):
            change(client, f"models/{DRAFT}/settings", ttl_seconds=idle_s)
            assert client.get(path, headers=tag).status_code == status


@pytest.mark.parametrize(
    "path", ["/admin/login", "/admin/login?token=x", "/admin/models/unknown", *PAGES]
)
def test_a_page_loads_nothing_from_elsewhere_and_runs_nothing_inline(
    browser: httpx.Client, path: str
) -> None:
    answer = browser.get(path)
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'self'"
    assert "unsafe" not in str(policy)
    assert policy["frame-ancestors"] == "'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    for tag, attributes in Elements(answer.text).all:
        assert tag != "style"
        assert not [name for name in attributes if name == "style" or name.startswith("on")]
        assert tag != "script" or attributes.get("src")
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "/").startswith(("/", "#")), attributes


def test_the_frame_of_previews_has_no_origin_and_no_network(browser: httpx.Client) -> None:
    answer = browser.get("/admin/static/frame.html")
    policy = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts;" in policy
    assert "default-src 'none'" in policy
    assert "connect-src" not in policy
    assert "allow-same-origin" not in policy
    assert "frame-ancestors 'self'" in policy
    other = browser.get("/admin/static/css/app.css")
    assert "unsafe" not in other.headers["content-security-policy"]


def test_opening_a_login_link_does_not_use_it_up(fresh: Administered) -> None:
    token = Credentials(fresh.home).invite()
    with fresh.browser(logged_in=False) as client:
        for _ in range(2):
            assert token in text_of(client, f"/admin/login?token={token}")
        assert client.get("/admin").status_code == 303
        assert client.post(f"{API}/login", json={"token": token}).status_code == 200
        assert client.get("/admin").status_code == 200


def test_the_login_asks_for_a_password_if_one_is_set(fresh: Administered) -> None:
    with fresh.browser(logged_in=False) as client, fresh.browser() as inside:
        assert not Elements(text_of(client, "/admin/login")).named("password")
        assert not Elements(text_of(inside, "/admin/password")).named("current")
        assert inside.put(f"{API}/password", json={"password": PASSWORD}).status_code == 200
        assert Elements(text_of(client, "/admin/login")).named("password")
        # Now the session is like any other.
        assert Elements(text_of(inside, "/admin/password")).named("current")


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example", "/adminevil", "javascript:x", "/v1/models"],
)
def test_the_login_redirects_to_our_own_pages_only(browser: httpx.Client, elsewhere: str) -> None:
    page = text_of(browser, f"/admin/password?next={elsewhere}")
    assert [field["value"] for field in Elements(page).named("next")[-2:]] == ["/admin"] * 2
    later = browser.post("/admin/password/later", content=f"next={elsewhere}")
    assert (later.status_code, later.headers["location"]) == (303, "/admin")
    answer = browser.post("/admin/preferences", content=f"theme=dark&next={elsewhere}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/admin")


def test_the_forms_of_the_login_work_without_scripts(fresh: Administered) -> None:
    with fresh.browser(logged_in=False) as client:
        answer = client.post("/admin/login", data={"token": "used", "next": "/admin/models"})
        assert answer.status_code == 401
        assert "has been used or has expired" in answer.text
        assert (
            client.post("/admin/password", data={"password": PASSWORD}).headers["location"]
            == "/admin/login"
        )
        token = Credentials(fresh.home).invite()
        answer = client.post("/admin/login", data={"token": token, "next": "/admin/models"})
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            "/admin/password?next=%2Fadmin%2Fmodels",
        )
        answer = client.post("/admin/password", data={"password": "short", "next": "/admin/models"})
        assert (answer.status_code, Elements(answer.text).named("next")[-1]["value"]) == (
            400,
            "/admin/models",
        )
        answer = client.post(
            "/admin/password", data={"password": f"{PASSWORD} é&=", "next": "/admin/models"}
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin/models")
        assert client.get("/admin/models").status_code == 200
        assert client.post("/admin/logout").headers["location"] == "/admin/login"
        assert client.get("/admin/models").status_code == 303
        assert client.post("/admin/login", data={"password": PASSWORD}).status_code == 401
        assert client.post("/admin/login", data={}).status_code == 400
        answer = client.post(
            "/admin/login", data={"password": f"{PASSWORD} é&=", "next": "//evil.example"}
        )
        assert (answer.status_code, answer.headers["location"]) == (303, "/admin")
        assert client.get("/admin").status_code == 200


def test_no_form_puts_its_input_into_an_address(kept: Administered) -> None:
    with kept.browser() as client:
        for path in (
            "/admin/settings",
            "/admin/models/org/packaged",
            "/admin/password",
            "/admin/login?token=x",
        ):
            forms = [
                attributes
                for tag, attributes in Elements(text_of(client, path)).all
                if tag == "form"
            ]
            assert forms
            assert all(form.get("method") in ("post", "dialog") for form in forms), path


def test_language_and_theme_are_stored(server: Administered) -> None:
    with server.browser() as client:
        answer = client.get("/admin", headers={"Accept-Language": "xx, en;q=0.5"})
        assert answer.headers["content-language"] == "en"
        assert 'data-theme="auto"' in answer.text
        body = "language=en&theme=dark&next=%2Fadmin%2Fmodels%3Fa%3D1"
        kept = client.post("/admin/preferences", content=body)
        assert kept.headers["location"] == "/admin/models?a=1"
        assert 'data-theme="dark"' in text_of(client, "/admin")
        assert client.post("/admin/preferences", content="theme=light").status_code == 204
        for wrong in ("language=..%2Fen", "theme=pink"):
            assert client.post("/admin/preferences", content=wrong).status_code == 400


def test_a_model_has_a_page_by_its_id_raw_or_encoded(browser: httpx.Client) -> None:
    for path in (TARGET, TARGET.replace("/", "%2F")):
        assert f"/models/{TARGET}/settings" in text_of(browser, f"/admin/models/{path}")


@pytest.mark.parametrize(
    "name", ["no/such-model", "../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "%00", "omlx-demo"]
)
def test_an_unknown_model_has_an_error_page(browser: httpx.Client, name: str) -> None:
    answer = browser.get(f"/admin/models/{name}")
    assert answer.status_code == 404
    assert (
        "text/html" in answer.headers["content-type"]
        or answer.json()["error"]["code"] == "http.not_found"
    )


@pytest.mark.parametrize("logged_in", [True, False])
def test_an_unknown_address_has_a_page_for_browsers_and_json_for_others(
    server: Administered, logged_in: bool
) -> None:
    with server.browser(logged_in=logged_in) as client:
        page = client.get("/admin/nothing", headers={"Accept": "text/html,*/*;q=0.8"})
        assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "/admin/nothing does not exist." in page.text
        for path, accept, status in (
            ("/admin/nothing", "*/*", 404),
            ("/v1/nothing", "text/html", 404),
            ("/admin/logout", "text/html", 405),
        ):
            answer = client.get(path, headers={"Accept": accept})
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, None)


def test_every_setting_is_in_a_form_once(kept: Administered) -> None:
    with kept.browser() as client:
        for path, scope in (
            ("/admin/settings", Scope.GLOBAL),
            ("/admin/models/org/packaged", Scope.MODEL),
        ):
            page = Elements(text_of(client, path))
            for row in table().values():
                fields = [
                    field
                    for field in page.named(row.name)
                    if field.get("type") != "radio" or "checked" in field
                ]
                assert len(fields) == row.allowed_in(scope), (path, row.name)


def test_the_drafts_of_a_model_with_a_package(kept: Administered) -> None:
    with kept.browser() as client:
        page = text_of(client, "/admin/models/org/packaged")
        radios = Elements(page).named("draft_model")
        assert [(radio["value"], "checked" in radio) for radio in radios] == [
            ("", False),
            (DRAFT, True),
        ]
        assert page.count("package default") == 1
        assert "data-inherits-draft" in page
        assert "draft head (EAGLE)" in text_of(client, "/admin/parts/unfit/org/packaged")
        change(client, "models/org/packaged/settings", speculation="ngram")
        radios = Elements(text_of(client, "/admin/models/org/packaged")).named("draft_model")
        assert [(radio["value"], "checked" in radio) for radio in radios] == [
            ("", True),
            (DRAFT, False),
        ]
        change(client, "models/org/packaged/settings", draft_model="org/gone", speculation=None)
        page = text_of(client, "/admin/models/org/packaged")
        radios = Elements(page).named("draft_model")
        assert [(radio["value"], "checked" in radio) for radio in radios] == [
            ("", False),
            ("org/gone", True),
            (DRAFT, False),
        ]
        assert "draft model not downloaded" in page
        change(client, "models/org/packaged/settings", draft_model=None)


def test_unusable_models_show_their_reason_and_are_escaped(kept: Administered) -> None:
    with kept.browser() as client:
        listed = text_of(client, "/admin/models")
        assert "org/&lt;script&gt;" in listed
        assert "&#39;&lt;b&gt;&#39;" in listed
        page = text_of(client, "/admin/models/org/other")
        assert "draft head (EAGLE)" in page
        assert "omlx-speculation" not in page


def test_files_of_a_page_need_no_session(server: Administered) -> None:
    with server.browser(logged_in=False) as client:
        page = Elements(text_of(client, "/admin/login"))
        files = [
            attributes.get("src") or attributes.get("href")
            for tag, attributes in page.all
            if tag in ("script", "link")
        ]
        assert files
        for file in files:
            assert file is not None
            answer = client.get(file)
            assert answer.status_code == 200
            bundled = f"/{BUNDLE}/" in file
            caching = "max-age=31536000, immutable" if bundled else "no-cache"
            assert answer.headers["cache-control"] == caching
            assert answer.headers["etag"]


MOST_WORDS = 145_000
"""Bytes — the chat page may have 450 kB in all, in every language."""


def test_scripts_get_the_catalog_in_the_language_of_the_page(server: Administered) -> None:
    with server.browser(logged_in=False) as client:
        answers = {
            tag: client.get("/admin/static/js/words.js", headers={"accept-language": tag})
            for tag in ("en", "ko-KR", "ja", "zh")
        }
        for tag, answer in answers.items():
            assert answer.headers["content-type"].startswith("text/javascript")
            words, known = words_of(answer), catalog(tag[:2])
            assert words.items() <= known.items()
            left = {
                key for key in known if not key.startswith("cli.") and not key.endswith(".help")
            }
            assert left <= words.keys()
            assert len(answer.content) < MOST_WORDS
        sent = {"accept-language": "en", "if-none-match": answers["en"].headers["etag"]}
        assert client.get("/admin/static/js/words.js", headers=sent).status_code == 304
        changed = {**sent, "accept-language": "ko"}
        korean = client.get("/admin/static/js/words.js", headers=changed)
        assert words_of(korean) == words_of(answers["ko-KR"])


def words_of(answer: httpx.Response) -> dict[str, str]:
    """Return what the script module exports."""
    module = answer.text.removeprefix("export default ").removesuffix(";")
    words: dict[str, str] = json.loads(module)
    return words


def test_nothing_needs_a_browser_newer_than_that_of_macos_14() -> None:
    """Safari 17.0 has neither light-dark() nor import attributes."""
    static = data_dir("static")
    for path in (*static.glob("css/*.css"), *static.glob("js/*.js")):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
        assert not re.search(r"light-dark\(|^import .* with \{", code, re.M), path.name


def test_letters_are_written_as_they_are_shown() -> None:
    """A transformed name, such as a pattern to type, would be typed wrongly."""
    for path in (data_dir("static") / "css").glob("*.css"):
        assert "text-transform" not in path.read_text(encoding="utf-8"), path.name


def test_every_style_sheet_and_script_is_loaded() -> None:
    static = data_dir("static")
    styles = set(re.findall(r'url\("([\w-]+)\.css"\)', (static / "css/app.css").read_text()))
    assert styles == {path.stem for path in (static / "css").glob("*.css")} - {"app"}
    sources = [path.read_text() for path in (static / "js").glob("*.js")]
    sources += [path.read_text() for path in data_dir("templates").rglob("*.html")]
    sources += ENTRIES.values()
    named = set(re.findall(r"[\w-]+(?=\.js)", "\n".join(sources)))
    assert {path.stem for path in (static / "js").glob("*.js")} - named == set()


def test_colours_are_defined_in_one_file() -> None:
    for path in (data_dir("static") / "css").glob("*.css"):
        if path.name != "tokens.css":
            assert not re.search(
                r"#[0-9a-f]{3,8}\b|rgb\(|hsl\(|oklch\(|!important.*color", path.read_text()
            ), path.name
