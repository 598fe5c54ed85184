"""Test lanes: `--quick` runs unit tests alone, and proves that they open no socket. Property tests
have no deadline, and more examples with slow tests. Tests marked `needs_extra` are skipped without
omlx[vision], which `make test` installs.
"""

from __future__ import annotations

import gc
import math
import os
import socket
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import certifi
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis import settings

from tests import lanes

QUICK: Final = (
    "engine/prefix",
    "engine/speculation",
    "engine/test_memory.py",
    "engine/test_plan.py",
    "engine/test_sampling.py",
    "engine/test_scheduler.py",
    *(f"project/test_{name}.py" for name in ("assets", "bounds", "catalog", "documents", "words")),
    "settings",
    "telemetry",
    "text",
    *(f"measure/test_{name}.py" for name in ("results", "sample", "spread", "trial")),
)
"""Folders and files of the quick lane: no sockets, no models beyond toys."""
LENGTHY: Final = (
    "engine/speculation/test_regret.py",
    "engine/speculation/test_replay.py",
    *(f"text/test_{name}_grammar.py" for name in ("call", "tag", "value")),
    "text/test_template_process.py",
)
"""Files of these folders that the quick lane leaves out: long simulations, grammars checked by
token, real processes.
"""

HERE: Final = Path(__file__).parent
MISSING: Final = [name for name in ("mlx_vlm", "PIL") if find_spec(name) is None]
"""Packages of the extra that are not installed."""

settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("all", deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="run the unit tests, without sockets")


def pytest_configure(config: pytest.Config) -> None:
    """Try a hundred examples of each property where slow tests run, a quarter elsewhere."""
    lanes.slow = config.option.markexpr != "not slow"
    settings.load_profile("all" if lanes.slow else "quick")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collections, and keep later ones from walking through the modules and
    tests, which stay to the end: a third of the time of collecting, and 0.2 s of each full one.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let every new HTTP client read one certificate: nothing here is encrypted, and those of all
    authorities take 18 ms of the processor each time.
    """
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end
    file = tmp_path_factory.mktemp("authority") / "ca.pem"
    file.write_text(first[first.index("-----BEGIN") :], encoding="utf-8")
    os.environ["SSL_CERT_FILE"] = str(file)
    os.environ.pop("SSL_CERT_DIR", None)


@pytest.fixture(scope="session", autouse=True)
def patient_clients() -> None:
    """Give a request a minute where its test says nothing: five seconds, the default of httpx, are
    few on a busy machine.
    """
    for phase in ("connect", "read", "write", "pool"):
        setattr(DEFAULT_TIMEOUT_CONFIG, phase, 60.0)


@pytest.fixture(scope="session", autouse=True)
def quiet_machine() -> Iterator[None]:
    """Let measurements see no other programs: a test's result must not depend on them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omlx.measure.sample.processor_times", lambda: None)
        for limit in ("NOISY_RATE", "NOISY_SPEEDUP"):
            patch.setattr(f"omlx.measure.sample.{limit}", math.inf)
        yield


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is neither in the quick lane nor a folder on the way to it."""
    if not config.getoption("--quick"):
        return None
    path = collection_path.relative_to(HERE).as_posix() if collection_path != HERE else ""
    if path in LENGTHY:
        return True
    leads_there = any(lane.startswith(f"{path}/") for lane in QUICK) or not path
    in_lane = any(path == lane or path.startswith(f"{lane}/") for lane in QUICK)
    return None if leads_there or in_lane else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests an hour, where others have the five minutes of pyproject.toml.

    Skip the tests of the extra where it is missing; in CI they run, and fail.
    """
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.timeout(3600))
    if not MISSING or os.environ.get("CI"):
        return
    skip = pytest.mark.skip(reason="needs the extra: pip install 'omlx[vision]', or make setup-dev")
    for item in items:
        if "needs_extra" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def no_sockets(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the quick lane, fail a test that connects or listens."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a test of the quick lane opened a socket")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "bind") if request.config.getoption("--quick") else ():
            patch.setattr(socket.socket, name, refuse)
        yield
