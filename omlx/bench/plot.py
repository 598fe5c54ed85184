"""A bar a case: the median ratio with its range. Written by hand: bars and a line need no plotting library."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from xml.sax.saxutils import escape

from omlx.bench.result import Result

LABELS, BARS, ROW, TOP = 220, 460, 22, 48
COLOURS = {
    "plain": "#2563eb",
    "noise": "#9ca3af",
    "spec": "#7c3aed",
    "batch": "#059669",
    "host": "#d97706",
}
TEXT = 'font-family="system-ui, sans-serif" font-size="12" fill="#1f2937"'


def plot(results: Seq[Result], title: str) -> str:
    """The SVG document. What could not be timed has no bar."""
    results = [result for result in results if result.ratio.known]
    longest = max((result.ratio.most for result in results), default=1.0)
    scale = BARS / max(1.25, 1.05 * longest)
    height = TOP + ROW * len(results) + 34
    one = LABELS + scale
    bars = [_bar(result, TOP + ROW * i, scale) for i, result in enumerate(results)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{LABELS + BARS + 60}" height="{height}" role="img">',
            f"<title>{escape(title)}</title>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text x="12" y="24" {TEXT} font-weight="600">{escape(title)}</text>',
            *bars,
            f'<line x1="{one:.1f}" x2="{one:.1f}" y1="{TOP - 6}" y2="{height - 28}" stroke="#1f2937"/>',
            f'<text x="{one:.1f}" y="{height - 12}" {TEXT} text-anchor="middle">1.0 = mlx-lm</text>',
            "</svg>\n",
        ]
    )


def _bar(result: Result, y: int, scale: float) -> str:
    low, median, high = result.ratio.least, result.ratio.median, result.ratio.most
    colour = COLOURS.get(result.case.suite, "#4b5563")
    middle = y + ROW / 2
    x1, x2 = LABELS + scale * low, LABELS + scale * high
    label = escape(f"{result.case.suite}: {result.case.name}")
    return (
        f'<text x="{LABELS - 8}" y="{middle + 4}" {TEXT} text-anchor="end">{label}</text>'
        f'<rect x="{LABELS}" y="{y + 4}" width="{scale * median:.1f}" height="{ROW - 8}" fill="{colour}"/>'
        f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{middle}" y2="{middle}" stroke="#111827" stroke-width="1.5"/>'
        f'<text x="{x2 + 6:.1f}" y="{middle + 4}" {TEXT}>{median:.2f}</text>'
    )
