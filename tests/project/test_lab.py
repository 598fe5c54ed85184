"""The tools in lab/ start: each prints its options."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest

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
