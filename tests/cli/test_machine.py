"""Facts of a machine in `omlx doctor`, and what it warns of, for Macs as well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omlx.machine import Machine, machine_rows, power_rows, read_machine, warnings
from omlx.power import Heat, Power

MAC = Machine(
    system="Darwin 25.1.0 arm64",
    processors=14,
    device="gpu",
    device_name="Apple M4 Pro",
    architecture="applegpu_g16s",
    metal=True,
    mlx="0.32.4",
    macos="26.1",
    power=Power(mains=True, low_power=False, heat=Heat()),
)


def codes(machine: Machine) -> list[str]:
    for warning in warnings(machine):
        assert warning.message != warning.code, "it has no sentence"
    return [warning.code for warning in warnings(machine)]


def test_a_mac_as_it_should_be_has_no_warnings() -> None:
    assert codes(MAC) == []


@pytest.mark.parametrize(
    ("macos", "mlx", "warned"),
    [
        ("27.0", "0.32.1", True),
        ("27.0", "0.31.9", True),
        ("28.1.2", "0.30", True),
        ("27.0", "0.32.2", False),
        ("27.0", "0.32.4.dev20260801+abc", False),
        ("27.0", "1.0", False),
        ("26.4", "0.32.1", False),
    ],
)
def test_a_macos_that_unwires_weights_of_an_old_mlx(macos: str, mlx: str, warned: bool) -> None:
    found = codes(replace(MAC, macos=macos, mlx=mlx))
    assert found == (["doctor.unwired"] if warned else [])


def test_low_power_mode_and_heat() -> None:
    slow = Power(mains=False, low_power=True, heat=Heat(level=1, speed_percent=70))
    assert codes(replace(MAC, power=slow)) == ["doctor.low_power", "doctor.hot"]
    (_, hot) = warnings(replace(MAC, power=slow))
    assert "warning level 1, processor at 70 %" in hot.message


def test_without_a_gpu_it_says_what_that_means_for_a_mac_and_for_others() -> None:
    assert codes(replace(MAC, device="cpu", metal=False)) == ["doctor.no_metal"]
    assert codes(replace(MAC, device="cpu", metal=False, macos="")) == ["doctor.no_gpu"]


def test_rows_of_a_mac() -> None:
    rows = dict(machine_rows(replace(MAC, variables={"MLX_METAL_GPU_ARCH": "applegpu_g16s"})))
    assert rows["device"] == "gpu: Apple M4 Pro"
    assert rows["architecture"] == rows["MLX_METAL_GPU_ARCH"] == "applegpu_g16s"
    assert (rows["macOS"], rows["Metal"]) == ("26.1", "yes")
    assert dict(power_rows(MAC.power)) == {
        "source": "mains",
        "Low Power Mode": "off",
        "heat": "none recorded",
    }


def test_what_is_not_known_is_not_guessed() -> None:
    assert set(dict(power_rows(Power(None))).values()) == {"not known"}


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "20")
    machine = read_machine()
    assert machine.device in ("cpu", "gpu")
    assert machine.variables["MLX_MAX_OPS_PER_BUFFER"] == "20"
    assert machine.metal == (machine.macos != "" and machine.device == "gpu")
