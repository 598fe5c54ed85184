"""Mains power, as Linux and macOS tell it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omlx.server.beginnings.power import linux_on_mains, mac_on_mains

BATTERY = {"type": "Battery", "status": "Discharging"}
MOUSE = {"type": "Battery", "scope": "Device"}
UNPLUGGED = {"type": "Mains", "online": "0"}
PLUGGED = {"type": "Mains", "online": "1"}
USB = {"type": "USB", "online": "1"}


@pytest.mark.parametrize(
    ("supplies", "mains"),
    [
        ({}, True),
        ({"BAT0": BATTERY}, False),
        ({"AC": UNPLUGGED, "BAT0": BATTERY}, False),
        ({"AC": PLUGGED, "BAT0": BATTERY}, True),
        ({"BAT0": BATTERY, "ucsi-1": USB}, True),
        ({"hidpp_battery_0": MOUSE}, True),
    ],
)
def test_linux(tmp_path: Path, supplies: dict[str, dict[str, str]], mains: object) -> None:
    for name, values in supplies.items():
        (tmp_path / name).mkdir()
        for key, value in values.items():
            (tmp_path / name / key).write_text(f"{value}\n")
    assert linux_on_mains(tmp_path) is mains


def test_a_machine_without_a_list_has_no_battery(tmp_path: Path) -> None:
    assert linux_on_mains(tmp_path / "none")


@pytest.mark.parametrize(
    ("answer", "mains"),
    [
        ("Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged", True),
        ("Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t80%; AC Power", False),
        ("", False),
    ],
)
def test_macos(answer: str, mains: object) -> None:
    assert mac_on_mains([sys.executable, "-c", f"print({answer!r})"]) is mains


@pytest.mark.parametrize("command", [["/no/such/command"], [sys.executable, "-c", "exit(1)"]])
def test_no_answer_is_no_mains_power(command: list[str]) -> None:
    assert not mac_on_mains(command)
