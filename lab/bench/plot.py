"""Charts as SVG, drawn by matplotlib from results or from the JSON of a report.

Dark on a white ground: they read alike on light pages and on dark ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lab.bench.engine.result import EngineResult

SUITE_COLOURS: Final = {
    "plain": "#2563eb",
    "noise": "#9ca3af",
    "spec": "#7c3aed",
    "batch": "#059669",
    "host": "#d97706",
}
MODE_COLOURS: Final = {
    "draft 1": "#ddd6fe",
    "draft 2": "#c4b5fd",
    "draft 4": "#a78bfa",
    "draft 8": "#8b5cf6",
    "draft 16": "#7c3aed",
    "draft": "#4c1d95",
    "ngram": "#059669",
    "chain": "#d97706",
    "auto": "#2563eb",
}
OTHER: Final = "#4b5563"
LINE: Final = "#1f2937"
BAR: Final = "bar: "
"""Begins the ids of bars in the SVG."""

STYLE: Final[Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "omlx",  # the same figures make the same file
    "axes.spines.top": False,
    "axes.spines.right": False,
}

Result = dict[str, Any]


def save_ratios(file: Path, results: Sequence[EngineResult], title: str) -> None:
    """Draw a bar per case: the median ratio and its range. Cases without a time have no bar."""
    timed = [result for result in results if result.ratio.known]
    with _figure(1, width=8.0, height=1.2 + 0.25 * len(timed)) as (figure, (axis,)):
        for position, result in enumerate(timed):
            ratio = result.ratio
            axis.barh(
                position,
                ratio.median,
                xerr=[[ratio.median - ratio.least], [ratio.most - ratio.median]],
                color=SUITE_COLOURS.get(result.case.suite, OTHER),
                gid=f"{BAR}{position}",
            )
            axis.annotate(f" {ratio.median:.2f}", (ratio.most, position), va="center")
        labels = [f"{result.case.suite}: {result.case.name}" for result in timed]
        axis.set_yticks(range(len(timed)), labels)
        axis.invert_yaxis()
        axis.axvline(1.0, color=LINE)
        axis.set_xlabel("1.0 = mlx-lm")
        axis.set_title(title)
        _save(figure, file, title)


def save_speedups(file: Path, results: Sequence[Result], title: str) -> None:
    """Draw the `results` of a report's JSON: a chart per model and number of streams.

    A group per workload, a bar per mode: the median speed-up and its range.
    """
    charts: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        charts.setdefault((result["model"], result["streams"]), []).append(result)
    widest = max(map(len, charts.values()))
    width = max(7.0, 0.25 * widest + 2)
    with _figure(len(charts), width=width, height=3.0) as (figure, axes):
        for axis, ((role, streams), chart) in zip(axes, charts.items(), strict=True):
            axis.set_title(f"{role}, {streams} stream{'s' * (streams > 1)}", loc="left")
            _draw_groups(axis, chart)
        figure.suptitle(title)
        _save(figure, file, title)


def save_timelines(
    file: Path, minutes: Sequence[float], series: Mapping[str, Sequence[float]], title: str
) -> None:
    """Draw a chart per series over the same `minutes`. Each starts at 0, so that it shows growth in
    proportion.
    """
    with _figure(len(series), width=8.0, height=1.2) as (figure, axes):
        for axis, (name, values) in zip(axes, series.items(), strict=True):
            axis.plot(minutes, values, color=SUITE_COLOURS["plain"], linewidth=1)
            axis.set_ylim(bottom=0, top=1.15 * max(*values, 1.0))
            axis.set_xlim(0, minutes[-1])
            axis.set_title(name, loc="left", fontsize=9)
        axes[-1].set_xlabel("minutes")
        figure.suptitle(title)
        _save(figure, file, title)


def _draw_groups(axis: Any, chart: Sequence[Result]) -> None:
    """Draw the bars of one chart, which are adjacent within a workload."""
    workloads = list(dict.fromkeys(result["workload"] for result in chart))
    modes = list(dict.fromkeys(result["mode"] for result in chart))
    width = 0.8 / len(modes)
    for number, mode in enumerate(modes):
        offset = (number - (len(modes) - 1) / 2) * width
        places, medians, below, above, names = [], [], [], [], []
        for result in chart:
            if result["mode"] == mode:
                gain = result["gain"]
                places.append(workloads.index(result["workload"]) + offset)
                medians.append(gain["median"])
                below.append(gain["median"] - gain["min"])
                above.append(gain["max"] - gain["median"])
                names.append(f"{BAR}{result['workload']}, {mode}: ×{gain['median']:.2f}")
        bars = axis.bar(
            places,
            medians,
            width,
            yerr=[below, above],
            color=MODE_COLOURS.get(mode, OTHER),
            edgecolor=OTHER,
            linewidth=0.5,
            label=mode,
        )
        for bar, name in zip(bars, names, strict=True):
            bar.set_gid(name)
    axis.set_xticks(range(len(workloads)), workloads)
    axis.axhline(1.0, color=LINE, linewidth=1)
    axis.set_ylabel("speed-up")
    axis.legend(frameon=False, fontsize=8, ncols=len(modes), loc="upper right")


@contextmanager
def _figure(rows: int, *, width: float, height: float) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a figure of `rows` charts, each of that size in inches, and their axes."""
    from matplotlib import rc_context  # noqa: PLC0415 — a dependency of development only
    from matplotlib.figure import Figure  # noqa: PLC0415 — as above

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height * rows), layout="constrained", facecolor="white")
        axes = figure.subplots(rows, squeeze=False)
        yield figure, list(axes[:, 0])


def _save(figure: Any, file: Path, title: str) -> None:
    figure.savefig(file, format="svg", metadata={"Title": title, "Date": None})
