"""Bars as an SVG picture, one for each row of a table. No library: a few lines of text each."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, LEFT, RIGHT, TOP, ROW = 720, 240, 60, 40, 26
COLOUR, MARK = "#4c78a8", "#e45756"


class Bar(NamedTuple):
    """``published``: a mark beside it, where there is one."""

    name: str
    value: float | None
    published: float | None = None


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """The picture of these bars, from 0 to the longest."""
    most = max((number for bar in bars for number in bar[1:] if number), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / most
    parts = [f'<text x="{LEFT}" y="22" font-weight="bold">{escape(title)}</text>']
    if any(bar.published is not None for bar in bars):
        parts.append(f'<text x="{WIDTH - RIGHT}" y="22" text-anchor="end" fill="{MARK}">| published</text>')
    for number, bar in enumerate(bars):
        top = TOP + ROW * number
        parts.append(f'<text x="{LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(bar.name)}</text>')
        if bar.value is not None:
            width = bar.value * scale
            parts.append(f'<rect x="{LEFT}" y="{top + 3}" width="{width:.1f}" height="16" fill="{COLOUR}"/>')
            parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{top + 15}">{bar.value:,.4g}</text>')
        if bar.published is not None:
            x = LEFT + bar.published * scale
            parts.append(f'<path d="M{x:.1f} {top}v22" stroke="{MARK}" stroke-width="3"/>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {TOP + ROW * len(bars) + 10}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"])
