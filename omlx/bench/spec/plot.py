"""Adjacent bars: a group a workload, a bar a mode, the median gain and its range. A chart a model and stream count."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Final
from xml.sax.saxutils import escape

from omlx.bench.plot import TEXT
from omlx.bench.spec.outcome import Outcome

LEFT, BAR, GAP, HEIGHT, HEAD, FOOT = 44, 13, 18, 220, 34, 44
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


def plot(outcomes: Seq[Outcome], title: str) -> str:
    """The SVG document."""
    charts: dict[tuple[str, int], list[Outcome]] = {}
    for outcome in outcomes:
        charts.setdefault((outcome.case.role, outcome.case.streams), []).append(outcome)
    modes = list(dict.fromkeys(outcome.case.mode.name for outcome in outcomes))
    width = max([_width(chart) for chart in charts.values()] + [LEFT + 90 * len(modes), 480])
    height = 2 * HEAD + len(charts) * (HEAD + HEIGHT + FOOT)
    body: list[str] = []
    for i, ((role, streams), chart) in enumerate(charts.items()):
        top = 2 * HEAD + i * (HEAD + HEIGHT + FOOT)
        body.append(_text(12, top + 16, f"{role}, {streams} stream{'s' * (streams > 1)}", weight=600))
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


def _chart(chart: Seq[Outcome], top: int, width: int) -> Iterator[str]:
    highest = max(1.25, *(max(outcome.gain.values) for outcome in chart))
    scale = HEIGHT / (1.05 * highest)
    floor = top + HEIGHT
    step = 0.25 if highest < 2 else 0.5 if highest < 4 else 1.0
    for i in range(int(highest / step) + 1):
        y = floor - i * step * scale
        colour = "#1f2937" if i * step == 1.0 else "#e5e7eb"
        yield f'<line x1="{LEFT}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
        yield _text(LEFT - 6, y + 4, f"{i * step:g}", anchor="end")
    x = LEFT + GAP
    for workload in dict.fromkeys(outcome.case.workload.name for outcome in chart):
        group = [outcome for outcome in chart if outcome.case.workload.name == workload]
        yield _text(x + BAR * len(group) / 2, floor + 18, workload, anchor="middle")
        for outcome in group:
            yield from _bar(outcome, x, floor, scale)
            x += BAR
        x += GAP


def _bar(outcome: Outcome, x: float, floor: float, scale: float) -> Iterator[str]:
    gain = outcome.gain
    low, top, high = (floor - scale * value for value in (min(gain.values), gain.median, max(gain.values)))
    name = escape(f"{outcome.case.workload.name}, {outcome.case.mode.name}: ×{gain.median:.2f}")
    colour = COLOURS.get(outcome.case.mode.name, "#4b5563")
    yield (
        f'<rect x="{x}" y="{top:.1f}" width="{BAR - 2}" height="{floor - top:.1f}" fill="{colour}">'
        f"<title>{name}</title></rect>"
    )
    middle = x + (BAR - 2) / 2
    yield f'<line x1="{middle}" x2="{middle}" y1="{high:.1f}" y2="{low:.1f}" stroke="#111827" stroke-width="1.5"/>'


def _key(x: float, mode: str) -> Iterator[str]:
    yield f'<rect x="{x}" y="{HEAD}" width="11" height="11" fill="{COLOURS.get(mode, "#4b5563")}"/>'
    yield _text(x + 16, HEAD + 10, mode)


def _width(chart: Seq[Outcome]) -> int:
    groups = len({outcome.case.workload.name for outcome in chart})
    return LEFT + len(chart) * BAR + (groups + 2) * max(GAP, 30)


def _text(x: float, y: float, text: str, anchor: str = "start", weight: int = 400) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}"'
    return f"<text {place} {TEXT}>{escape(text)}</text>"
