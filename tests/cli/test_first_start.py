"""`omlx serve` on a machine without models: asks on a terminal, prints commands elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omlx.cli.serve import announcement as first_start
from omlx.models.catalog.discovery import BUNDLED, discover
from omlx.models.catalog.registry import Registry
from omlx.models.hub.offer import starters
from omlx.settings.schema import Settings
from tests.cli.inside import omlx
from tests.cli.serving import started
from tests.cli.terminal import CTRL_C, Terminal, terminal
from tests.lanes import few
from tests.models.hub import Hub, running
from tests.processes import environment

DEMO = BUNDLED / "omlx-demo"
SERVE = ("serve", "--port", "0", "--no-bundled", "--memory-limit", "5600MB")
MODEL, DRAFT = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-0.6B-4bit"
QUESTION, READY = "0 for none:", "is ready at "
NOWHERE = "http://127.0.0.1:9"
FULL = """\
import shutil, types
shutil.disk_usage = lambda path: types.SimpleNamespace(free=1000)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running(Hub()) as hub:
        hub.add(MODEL, DEMO / "target")
        hub.add(DRAFT, DEMO / "draft")
        yield hub


def address(screen: Terminal) -> str:
    """Wait for the server; return its address."""
    screen.wait_for(READY)
    screen.wait_for("\n")
    return screen.text.rpartition(READY)[2].split()[0]


def test_the_chosen_model_comes_with_its_draft_and_is_served(hub: Hub, tmp_path: Path) -> None:
    environ = environment(tmp_path, **hub.environment(tmp_path / "hub"))
    with terminal(environ, *SERVE) as screen:
        offered = screen.wait_for(QUESTION)
        assert [model.model in offered for model in starters(5_600 << 20)] == [True] * 4
        assert "135M parameters, 93 MB: answers at once" in offered.replace("\u202f", " ")
        assert f"with draft model {DRAFT} (350 MB)" in offered
        screen.type("four\n")
        screen.wait_for("Enter a number from 0 to 4.")
        screen.wait_for(QUESTION)
        screen.type("4\n")
        url = address(screen)
        assert f"{MODEL} now uses the draft model {DRAFT}." in screen.text
        card = httpx.get(f"{url}/v1/models/{MODEL}").json()
        assert (card["loaded"], card["speculation"]["draft"]) == (True, DRAFT)
        screen.type(CTRL_C)
        assert screen.end() == 0
    with terminal(environ, *SERVE) as screen:  # there is a model now
        address(screen)
        assert QUESTION not in screen.text


@pytest.mark.parametrize("full", few((False, True), True))
def test_a_failed_download_is_said_and_the_question_asked_again(
    tmp_path: Path, full: bool, hub: Hub
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FULL)
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    variables, said = {"HF_ENDPOINT": NOWHERE, "HF_HUB_ETAG_TIMEOUT": "1"}, "cannot be reached"
    if full:
        variables, said = {"PYTHONPATH": paths}, "Not enough disk space"
    environ = environment(tmp_path, **{**hub.environment(tmp_path / "hub"), **variables})
    with terminal(environ, *SERVE) as screen:
        screen.wait_for(QUESTION)
        screen.type("4\n")
        screen.wait_for(said)
        screen.wait_for(QUESTION)
        screen.type("0\n")
        url = address(screen)
        assert httpx.get(f"{url}/v1/models").json()["data"] == []
        screen.type(CTRL_C)
        assert screen.end() == 0


@pytest.mark.slow
def test_a_package_that_cannot_be_had_is_said_and_the_question_asked_again(tmp_path: Path) -> None:
    pip = {"PIP_INDEX_URL": NOWHERE, "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
    with terminal(environment(tmp_path, **pip), *SERVE) as screen:
        screen.wait_for(QUESTION)
        screen.type("\n")  # the first one
        screen.wait_for("the package index does not answer")
        screen.wait_for(QUESTION)
        assert screen.interrupt() == 130


@pytest.mark.parametrize("downloading", few((False, True), True))
def test_ctrl_c_ends_it(hub: Hub, tmp_path: Path, downloading: bool) -> None:
    hub.stall["tokenizer.json"] = 1000
    environ = environment(tmp_path, **hub.environment(tmp_path / "hub"))
    with terminal(environ, *SERVE) as screen:
        screen.wait_for(QUESTION)
        if downloading:
            screen.type("4\n")
            assert hub.stalled.wait(120)
        assert screen.interrupt() == 130
        assert ("What has arrived is kept" in screen.text) is downloading
        assert "Traceback" not in screen.text


def test_without_a_terminal_the_commands_are_printed(hub: Hub, tmp_path: Path) -> None:
    variables = hub.environment(tmp_path / "hub")
    with started(tmp_path, *SERVE[1:], until="/admin/models/get", **variables) as server:
        commands = [line for line in server.announced if line.startswith("omlx pull")]
        assert len(commands) == 4
        words = shlex.split(commands[-1].rpartition("  ")[0])
        result = omlx(tmp_path, *words[1:], **variables)
    assert result.returncode == 0, result.stderr
    assert f"{MODEL} now uses the draft model {DRAFT}." in result.stdout


def test_a_draft_that_does_not_fit_is_not_stored(hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(DEMO / "draft", tmp_path / "other")
    (tmp_path / "other" / "tokenizer.json").write_text("{")
    hub.add("org/other", tmp_path / "other")
    variables = hub.environment(tmp_path / "hub")
    result = omlx(tmp_path, "pull", MODEL, "--draft", "org/other", "--no-bundled", **variables)
    assert result.returncode == 2
    assert "org/other" in result.stderr
    assert not list((tmp_path / ".omlx").glob("*.json"))


def test_nothing_is_offered_where_it_would_not_help(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, memory_limit=64 << 30)
    bundled = discover(settings, {"HOME": str(tmp_path)})
    assert bundled.usable
    assert bundled.own == ()
    assert len(first_start.commands(bundled, settings, "http://here")) == 6
    unseen = Settings(home=tmp_path, memory_limit=64 << 30, hf_cache=False)
    _, command, _ = first_start.commands(Registry(), unseen, "http://here")
    assert command.split()[:3] == ["omlx", "pull", "smollm2"]
    assert (
        first_start.commands(Registry(), unseen.model_copy(update={"home_models": False}), "x")
        == []
    )
    small = Settings(home=tmp_path, memory_limit=1 << 20)
    assert first_start.commands(Registry(), small, "http://here") == []
    own = discover(Settings(home=tmp_path, model_dir=(DEMO,), memory_limit=64 << 30), {})
    assert first_start.commands(own, settings, "http://here") == []


def test_a_process_without_a_terminal_is_not_asked(tmp_path: Path) -> None:
    assert first_start.ask(Registry, Settings(home=tmp_path, memory_limit=64 << 30)) is None
