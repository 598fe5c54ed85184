"""Mains power, Low Power Mode and heat, as Linux and macOS report them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.power import (
    INTERVAL_S,
    Heat,
    MainsWatch,
    Power,
    linux_on_mains,
    on_mains,
    parse_heat,
    parse_low_power,
    parse_mains,
    read_power,
)

BATTERY = {"type": "Battery", "status": "Discharging"}
MOUSE = {"type": "Battery", "scope": "Device"}
UNPLUGGED = {"type": "Mains", "online": "0"}
PLUGGED = {"type": "Mains", "online": "1"}
USB = {"type": "USB", "online": "1"}

ON_MAINS = "Now drawing from 'AC Power'\n -InternalBattery-0 (id=1)\t100%; charged\n"
ON_BATTERY = "Now drawing from 'Battery Power'\n -InternalBattery-0 (id=1)\t80%; AC Power\n"
IN_USE = """\
System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 sleep                1 (sleep prevented by caffeinate, powerd)
 displaysleep         10
 {mode}         {value}
 womp                 1
"""
COOL = """\
Note: No thermal warning level has been recorded
Note: No performance warning level has been recorded
Note: No CPU power status has been recorded
"""
WARNED = """\
Thermal Warning Level = 2
Note: No performance warning level has been recorded
"""
SLOWED = """\
2024-07-02 14:03:11 +0200 CPU Power notify
\tCPU_Scheduler_Limit \t= 100
\tCPU_Available_CPUs \t= 8
\tCPU_Speed_Limit \t= 65
"""


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
    [(ON_MAINS, True), ("Now drawing from 'AC Power'\n", True), (ON_BATTERY, False), ("", None)],
)
def test_the_first_line_names_the_source(answer: str, mains: object) -> None:
    assert parse_mains(answer) is mains


@pytest.mark.parametrize(
    ("mode", "value", "low"),
    [
        ("lowpowermode", 0, False),
        ("lowpowermode", 1, True),
        ("powermode", 0, False),
        ("powermode", 1, True),
        ("powermode", 2, False),
        ("hibernatemode", 1, None),
    ],
)
def test_low_power_mode(mode: str, value: int, low: object) -> None:
    assert parse_low_power(IN_USE.format(mode=mode, value=value)) is low


@pytest.mark.parametrize(
    ("answer", "heat"),
    [
        (COOL, Heat()),
        (WARNED, Heat(level=2)),
        (SLOWED, Heat(speed_percent=65)),
        (SLOWED.replace("65", "100"), Heat()),
        ("", None),
        ("Error: unknown argument\n", None),
    ],
)
def test_heat(answer: str, heat: Heat | None) -> None:
    assert parse_heat(answer) == heat


def test_only_a_warning_or_a_limit_is_throttling() -> None:
    assert not Heat().throttled
    assert Heat(level=1).throttled
    assert Heat(speed_percent=99).throttled


def program(path: Path, batt: str, settings: str, therm: str) -> list[str]:
    """Return the command of a program that answers as `pmset -g` does."""
    answers = {"batt": batt, "therm": therm}
    path.write_text(f"import sys\nprint({answers!r}.get(sys.argv[-1], {settings!r}))\n")
    return [sys.executable, str(path)]


def test_macos_is_asked_for_everything(tmp_path: Path) -> None:
    settings = IN_USE.format(mode="powermode", value=1)
    command = program(tmp_path / "pmset.py", ON_BATTERY, settings, WARNED)
    assert read_power("darwin", command) == Power(False, True, Heat(level=2))
    assert not on_mains("darwin", command)
    assert on_mains("darwin", program(tmp_path / "pmset.py", ON_MAINS, "", ""))


@pytest.mark.parametrize("command", [["/no/such/command"], [sys.executable, "-c", "exit(1)"]])
def test_no_answer_is_no_mains_power(command: list[str]) -> None:
    assert not on_mains("darwin", command)
    assert read_power("darwin", command) == Power(None)


def test_linux_knows_only_the_source() -> None:
    assert read_power("linux") == Power(linux_on_mains())


def test_a_watch_never_waits_and_asks_again_only_after_a_while() -> None:
    jobs: list[Callable[[], None]] = []
    answers = iter((True, False))
    now = [0.0]
    watch = MainsWatch(lambda: next(answers), jobs.append, lambda: now[0])
    assert not watch()  # not answered yet
    jobs.pop()()
    assert watch()
    now[0] += INTERVAL_S - 1
    assert watch()
    assert not jobs
    now[0] += 1
    assert watch()  # the last answer, until the next one has come
    jobs.pop()()
    assert not watch()
