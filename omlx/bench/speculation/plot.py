"""Adjacent bars: a group a workload, a bar a mode, the median gain and its range. A chart a model and stream count.

Drawn from a report's JSON, so that a page can be drawn anew without measuring anew. Dark on a white ground of its own:
it reads alike on light pages and on dark ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any, Final
from xml.sax.saxutils import escape

from omlx.bench.plot import TEXT

LEFT, BAR, GAP, HEIGHT, HEAD, FOOT = 44, 13, 18, 220, 34, 44
LETTER: Final = 6.5
"""Width of a letter of a label, about."""

COLOURS: Final = {
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

Result = dict[str, Any]


def plot(results: Seq[Result], title: str) -> str:
    """The SVG document of what stands under `results` in the JSON of `omlx bench spec`."""
    charts: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        charts.setdefault((result["model"], result["streams"]), []).append(result)
    modes = list(dict.fromkeys(result["mode"] for result in results))
    width = max([_width(chart) for chart in charts.values()] + [LEFT + 90 * len(modes), 480])
    height = 2 * HEAD + len(charts) * (HEAD + HEIGHT + FOOT)
    body: list[str] = []
    for i, ((role, streams), chart) in enumerate(charts.items()):
        top = 2 * HEAD + i * (HEAD + HEIGHT + FOOT)
        body.append(
            _text(12, top + 16, f"{role}, {streams} stream{'s' * (streams > 1)}", weight=600)
        )
        body += _chart(chart, top + HEAD, width)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            _text(12, 22, title, weight=600),
            *(part for i, mode in enumerate(modes) for part in _key(LEFT + 90 * i, mode)),
            *body,
            "</svg>\n",
        ]
    )


def _chart(chart: Seq[Result], top: int, width: int) -> Iterator[str]:
    highest = max(1.25, *(result["gain"]["max"] for result in chart))
    scale = HEIGHT / (1.05 * highest)
    floor = top + HEIGHT
    step = 0.25 if highest < 2 else 0.5 if highest < 4 else 1.0
    for i in range(int(highest / step) + 1):
        y = floor - i * step * scale
        colour = "#1f2937" if i * step == 1.0 else "#e5e7eb"
        yield f'<line x1="{LEFT}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
        yield _text(LEFT - 6, y + 4, f"{i * step:g}", anchor="end")
    x = LEFT + GAP
    for workload, group in _groups(chart).items():
        wide = _group_width(workload, group)
        yield _text(x + wide / 2, floor + 18, workload, anchor="middle")
        for i, result in enumerate(group):
            yield from _bar(result, x + (wide - BAR * len(group)) // 2 + BAR * i, floor, scale)
        x += wide + GAP


def _bar(result: Result, x: int, floor: float, scale: float) -> Iterator[str]:
    gain = result["gain"]
    low, top, high = (floor - scale * gain[name] for name in ("min", "median", "max"))
    name = escape(f"{result['workload']}, {result['mode']}: ×{gain['median']:.2f}")
    yield (
        f'<rect x="{x}" y="{top:.1f}" width="{BAR - 2}" height="{floor - top:.1f}" {_paint(result["mode"])}>'
        f"<title>{name}</title></rect>"
    )
    middle = x + (BAR - 2) / 2
    yield f'<line x1="{middle}" x2="{middle}" y1="{high:.1f}" y2="{low:.1f}" stroke="#111827" stroke-width="1.5"/>'


def _key(x: int, mode: str) -> Iterator[str]:
    yield f'<rect x="{x}" y="{HEAD}" width="11" height="11" {_paint(mode)}/>'
    yield _text(x + 16, HEAD + 10, mode)


def _paint(mode: str) -> str:
    """With an edge, for the palest of them would be lost on white."""
    return f'fill="{COLOURS.get(mode, "#4b5563")}" stroke="#4b5563" stroke-width="0.5"'


def _groups(chart: Seq[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in chart:
        groups.setdefault(result["workload"], []).append(result)
    return groups


def _group_width(workload: str, group: Seq[Result]) -> int:
    """What its bars take, or its label."""
    return max(BAR * len(group), int(LETTER * len(workload)))


def _width(chart: Seq[Result]) -> int:
    return LEFT + GAP + sum(_group_width(*group) + GAP for group in _groups(chart).items())


def _text(x: float, y: float, text: str, anchor: str = "start", weight: int = 400) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place} {TEXT}>{escape(text)}</text>"
