"""How figures and addresses are written."""

from __future__ import annotations

from omlx.admin.web.addresses import model_path
from omlx.admin.web.formats import disk, duration, elapsed, memory, percent, ratio
from omlx.settings.parse import parse
from omlx.settings.schema import table


def test_figures() -> None:
    assert [disk(n) for n in (0, 1_748_960, 812_000_000, 1_300_000_000, 17_200_000_000)] == [
        "0\u202fMB",
        "1.7\u202fMB",
        "812\u202fMB",
        "1.3\u202fGB",
        "17\u202fGB",
    ]
    assert [ratio(value) for value in (0.94, 1.0, 1.04, 1.06, 1.62, 12.34)] == [
        "0.94×",
        "1.00×",
        "1.04×",
        "1.1×",
        "1.6×",
        "12.3×",
    ]
    assert percent(0.744) == "74\u202f%"


def test_memory_is_shown_as_it_is_typed_and_as_activity_monitor_counts() -> None:
    row = table()["memory_limit"]
    typed = ("512MB", "2GB", "12GB", "18GB")
    sizes = [parse(row, text, "--memory-limit") for text in typed]
    assert [memory(size).replace("\u202f", "") for size in sizes if isinstance(size, int)] == list(
        typed
    )
    assert memory(3 * (24 << 30) // 4) == "18\u202fGB"
    assert (memory(0), memory(1_300_000_000)) == ("0\u202fMB", "1.2\u202fGB")


def test_measured_times_have_three_digits() -> None:
    shown = [elapsed(seconds).replace("\u202f", " ") for seconds in (0.004, 1.523, 12.42, 180)]
    assert shown == ["4 ms", "1.52 s", "12.4 s", "3 min"]


def test_units_of_time_are_translated() -> None:
    assert duration(40, "ko") == "40초"
    assert duration(40, "zh") == "40\u202f秒"
    assert duration(4800, "ko") == "1시간 20분"


def test_durations_are_rounded_coarsely() -> None:
    shown = [duration(seconds).replace("\u202f", " ") for seconds in (1, 42, 58, 150, 4800)]
    assert shown == ["5 s", "40 s", "1 min", "2 min", "1 h 20 min"]


def test_the_address_of_a_model_keeps_its_slashes_and_quotes_the_rest() -> None:
    assert model_path("org/a b?c#d") == "/admin/models/org/a%20b%3Fc%23d"
