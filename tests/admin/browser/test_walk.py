"""From a machine with nothing but Python to an agent that uses the server, as a person does it:
the wheel, installed by uv; `omlx serve`; and then only what the browser shows."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, Locator, Page, expect

from omlx.models.catalog.discovery import BUNDLED
from tests.admin.browser.chromium import watched
from tests.admin.browser.process import log_in, origin_of, serving
from tests.admin.browser.site import CLIPBOARD, copied
from tests.admin.browser.test_chat import LONG as WORDS
from tests.admin.browser.test_chat import answers, ask
from tests.models.hub import Hub, running
from tests.processes import environment
from tests.wheel import build_wheel

pytestmark = pytest.mark.slow

MODEL, DRAFT = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-0.6B-4bit"
"""Names of models that are offered for this memory; the bundled ones take their places."""

DEMO: Final = BUNDLED / "omlx-demo"
MEMORY: Final = "5600MB"
CONTEXT: Final = 65_536
"""Tokens: room for the instructions of an agent."""

QUESTION: Final = "Count to 20."
"""The bundled model knows the answer."""

PYPI: Final = "https://pypi.org/simple"
REGISTRY_S: Final = 20
SLOW_S: Final = 0.3
LONG_MS: Final = 600_000


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `omlx`, which uv has installed from the wheel into folders of its own."""
    work = tmp_path_factory.mktemp("installed")
    wheel = build_wheel(work)
    run([sys.executable, "-m", "venv", str(work / "python")], work)
    python = work / "python" / "bin" / "python"
    report = run([str(python), "-m", "pip", "config", "list"], Path.home())
    needs(dict(re.findall(r"(\S*index-url)='(.*)'", report)).get("global.index-url", PYPI))
    run([str(python), "-m", "pip", "install", "--quiet", "uv"], Path.home())
    run(
        [str(python.with_name("uv")), "tool", "install", "--python", sys.executable, str(wheel)],
        work,
        UV_TOOL_DIR=str(work / "tools"),
        UV_TOOL_BIN_DIR=str(work / "bin"),
        UV_NATIVE_TLS="1",
    )
    return work / "bin" / "omlx"


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program `codex` of npm's registry."""
    if shutil.which("npm") is None:
        pytest.skip("needs npm, which brings Codex")
    needs(run(["npm", "config", "get", "registry"], Path.home()).strip())
    folder = tmp_path_factory.mktemp("npm")
    run(["npm", "install", "--prefix", str(folder), "@openai/codex"], Path.home())
    return folder / "node_modules/.bin/codex"


def needs(registry: str) -> None:
    """Skip the test if there is no connection to a registry, from which the walk begins. Whatever
    it answers, and a certificate that is refused, is no reason."""
    try:
        urlopen(Request(registry, method="HEAD"), timeout=REGISTRY_S).close()
    except HTTPError:
        pass
    except (URLError, TimeoutError) as error:
        if not isinstance(getattr(error, "reason", error), ssl.SSLError):
            pytest.skip(f"no connection to {registry}, which programs come from: {error}")


def run(command: list[str], home: Path, **variables: str) -> str:
    """Return what a command prints; it finds certificates where the system has them."""
    given = environment(home, **variables)
    del given["SSL_CERT_FILE"]  # one that the tests have made
    ran = subprocess.run(
        command,
        cwd=home,
        env=given,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_a_person_installs_and_stays(
    browser: Browser, program: Path, codex: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with (
        running(published()) as hub,
        serving(
            home, 0, "--memory-limit", MEMORY, program=[str(program)], **hub.environment(home)
        ) as (_, link),
        watched(browser, origin_of(link), permissions=CLIPBOARD) as context,
    ):
        page = context.new_page()
        log_in(page, link)
        choose_a_model(page)
        watch_it_download(page)
        chat(page)
        see_drafted_tokens(page)
        stop_an_answer(page)
        reload_and_go_on(page)
        run_the_benchmark(page)
        find_the_requests(page)
        connect_codex(page, codex, tmp_path / "codex")


def published() -> Hub:
    """A slow hub with a model that has a long context, and its draft model."""
    hub = Hub(pause_s=SLOW_S)
    config = json.loads((DEMO / "target" / "config.json").read_text())
    longer = json.dumps({**config, "max_position_embeddings": CONTEXT}).encode()
    hub.add(MODEL, DEMO / "target", {"config.json": longer})
    hub.add(DRAFT, DEMO / "draft")
    return hub


def open_section(page: Page, name: str) -> None:
    follow(page, page.get_by_role("navigation").get_by_role("link", name=name, exact=True))


def follow(page: Page, link: Locator) -> None:
    """Open another page, until it has its scripts."""
    with page.expect_navigation():
        link.click()


def choose_a_model(page: Page) -> None:
    follow(page, page.get_by_role("button", name="Not now"))  # to a password
    expect(page.get_by_role("heading", name="Get a model")).to_be_visible()
    offers = page.locator("[id^='offer-']")
    expect(offers).to_have_count(4)  # three of the hub, and the one of PyPI
    offer = offers.filter(has_text=MODEL)
    expect(offer).to_contain_text("fits")
    offer.get_by_role("button", name="Download").click()


def watch_it_download(page: Page) -> None:
    download = page.locator(f'[id="download-{MODEL}"]')
    expect(download).to_contain_text(re.compile(r"\d+.MB of \d+.MB"))
    expect(download.get_by_role("progressbar")).to_be_visible()
    for model in (MODEL, DRAFT):
        done = page.locator(f'[id="download-{model}"]')
        expect(done).to_have_attribute("data-state", "done")
    expect(page.get_by_role("heading", name="Get a model")).to_have_count(0)


def chat(page: Page) -> None:
    open_section(page, "Chat")
    page.locator("omlx-chat[data-ready]").wait_for()
    expect(page.locator(".picker button").first).to_contain_text(MODEL)
    ask(page, QUESTION)
    answer = answers(page).first
    expect(answer).to_contain_text("18, 19, 20")
    expect(answer).to_contain_text("tok/s")


def see_drafted_tokens(page: Page) -> None:
    """This model is too small for drafts to be faster, so the person insists on them."""
    open_section(page, "Models")
    follow(page, page.get_by_role("link", name=MODEL))
    page.get_by_label("Strategy").select_option("draft")
    page.get_by_text("Draft length", exact=True).click()
    page.get_by_label("Draft tokens (fixed)").fill("4")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("[data-saved]").first).to_contain_text("Saved and in effect")
    open_section(page, "Chat")
    page.locator("omlx-chat[data-ready]").wait_for()
    ask(page, QUESTION)
    expect(answers(page).last).to_contain_text("of draft tokens accepted")
    page.get_by_role("button", name="Highlight drafted tokens").last.click()
    assert page.evaluate("CSS.highlights.get('drafted').size") > 0
    expect(page.get_by_text("came from accepted draft tokens").last).to_be_visible()


def stop_an_answer(page: Page) -> None:
    page.get_by_role("button", name="Chat settings").click()
    schema = page.get_by_label("JSON schema")
    schema.fill(WORDS.replace("100", "900"))
    ask(page, "Write words.")
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_visible()
    stop.click()
    expect(answers(page, "stopped")).to_contain_text("Stopped")
    schema.fill("")


def reload_and_go_on(page: Page) -> None:
    page.reload()
    page.locator("omlx-chat[data-ready]").wait_for()
    expect(answers(page)).to_contain_text("18, 19, 20")
    expect(answers(page, "stopped")).to_be_visible()
    ask(page, QUESTION)
    expect(answers(page)).to_have_count(2)


def run_the_benchmark(page: Page) -> None:
    open_section(page, "Models")
    follow(page, page.get_by_role("link", name=MODEL))
    follow(page, page.get_by_role("link", name="Open the benchmark"))
    page.get_by_label("Longest prompt").select_option("1024")
    page.get_by_role("button", name="Run the benchmark").click()
    expect(page.get_by_text(f"Measuring {MODEL}")).to_be_visible()
    results = page.get_by_role("heading", name=f"Results of {MODEL}")
    expect(results).to_be_visible(timeout=LONG_MS)
    expect(page.locator(".bar-figure").first).to_contain_text("tok")


def find_the_requests(page: Page) -> None:
    open_section(page, "Activity")
    page.get_by_label("Search requests").fill(MODEL)
    rows = page.locator("section[aria-labelledby=answers] tbody tr:visible")
    expect(rows).to_have_count(4)
    page.get_by_label("Result").select_option("cancelled")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Cancelled")


def connect_codex(page: Page, codex: Path, home: Path) -> None:
    """The copied file alone says where the server is, and Codex gets its answer there."""
    open_section(page, "Connect")
    page.get_by_label("Model").select_option(MODEL)
    app = page.locator("#app-codex")
    app.locator("summary").click()
    expect(app).to_contain_text("Waiting for its first request")
    app.get_by_role("button", name="Copy Codex").click()
    config = copied(page)
    home.mkdir()
    (home / "config.toml").write_text(config, encoding="utf-8")
    answered_by(tomllib.loads(config))
    assert "18, 19, 20" in run(
        [str(codex), "exec", "--skip-git-repo-check", *few_instructions(codex, home), QUESTION],
        home,
        CODEX_HOME=str(home),
        NO_PROXY="127.0.0.1",
    )
    expect(app.locator("summary")).to_contain_text("Last request")


def few_instructions(codex: Path, home: Path) -> list[str]:
    """Options of Codex with which it sends a sentence that the bundled model knows, and no tools:
    so small a model makes nothing of an agent's own instructions, and may write for ever."""
    (home / "instructions.md").write_text("You are a helpful assistant.")
    config = {
        "model_instructions_file": str(home / "instructions.md"),
        "include_permissions_instructions": "false",
        "include_environment_context": "false",
        "skills.bundled.enabled": "false",
    }
    features = run([str(codex), "features", "list"], home, CODEX_HOME=str(home))
    enabled = re.findall(r"^(\w+) .* true$", features, re.MULTILINE)
    options = [part for name, value in config.items() for part in ("-c", f"{name}={value}")]
    return options + [part for name in enabled for part in ("--disable", name)]


def answered_by(config: Mapping[str, Any]) -> None:
    """The official client gets an answer at the address of a configuration."""
    provider = config["model_providers"][config["model_provider"]]
    client = OpenAI(base_url=provider["base_url"], api_key="none")
    answer = client.responses.create(model=config["model"], input=QUESTION)
    assert "18, 19, 20" in answer.output_text
