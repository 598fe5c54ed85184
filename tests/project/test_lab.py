"""The tools in lab/ start: each prints its options, and ends with the reader of its output."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.processes import into_closed_pipe

TOOLS = ("lab.bench.__main__", "lab.fuzz.__main__", "lab.fuzz.stalls", "lab.fuzz.tokens")
TOOLS += ("lab.soak.__main__", "lab.soak.faults", "lab.conformance.__main__")
TOOLS += ("lab.dashboard.loads", "lab.dashboard.screenshots")


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_prints_its_options(
    tool: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = tool.removesuffix(".__main__")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        import_module(tool).main()
    assert ended.value.code == 0
    assert f"python -m {name}" in capsys.readouterr().out


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_tool_that_writes_into_a_closed_pipe_ends_quietly(
    tmp_path: Path, unbuffered: str
) -> None:
    ended = into_closed_pipe(tmp_path, "lab.settings_page", unbuffered=unbuffered)
    assert ended == (141, "")


def test_every_tool_runs_as_the_product_does() -> None:
    for path in Path(import_module("lab").__file__ or "").parent.rglob("*.py"):
        _, found, last = path.read_text(encoding="utf-8").partition('if __name__ == "__main__":\n')
        assert not found or last == "    run_process(main)\n", path
