"""Diagrams as an SVG picture, side by side in two columns. No library: a few lines of text each."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 36, 34, 46
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")

Point = tuple[float, float]


class Axis(NamedTuple):
    """From ``least`` to ``most``, which differ; ``ticks``: where it is labelled."""

    label: str
    least: float
    most: float
    ticks: Sequence[float]
    is_log: bool = False

    def place(self, value: float) -> float:
        """0 at ``least``, 1 at ``most``."""
        scale = math.log10 if self.is_log else float
        return (scale(value) - scale(self.least)) / (scale(self.most) - scale(self.least))


class Panel(NamedTuple):
    """One diagram; ``curves``: name -> points."""

    title: str
    x: Axis
    y: Axis
    curves: Mapping[str, Sequence[Point]]


def draw_panels(panels: Sequence[Panel]) -> str:
    """The picture of these diagrams."""
    num_rows = max(1, -(-len(panels) // 2))
    parts = [_panel(panel, (i % 2) * WIDTH, (i // 2) * HEIGHT) for i, panel in enumerate(panels)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {num_rows * HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"])


def round_ticks(most: float) -> list[float]:
    """Four to ten from 0 to above ``most``, at multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    step = next(times * power for times in (5, 2, 1) if 4 * times * power <= most)
    return [step * i for i in range(math.floor(most / step) + 2)]


def decades(label: str, values: Sequence[float]) -> Axis:
    """A logarithmic axis of whole decades."""
    least, most = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    exponents = range(least, max(most, least + 1) + 1)
    return Axis(label, 10.0**least, 10.0 ** exponents[-1], [10.0**exponent for exponent in exponents], is_log=True)


def _panel(panel: Panel, left: float, top: float) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    parts = [_text(LEFT, TOP - 14, panel.title, weight="bold")]
    for tick in panel.x.ticks:
        x = LEFT + width * panel.x.place(tick)
        parts += [_line(x, TOP, x, TOP + height), _text(x, TOP + height + 16, _plain(tick), "middle")]
    for tick in panel.y.ticks:
        y = TOP + height * (1 - panel.y.place(tick))
        parts += [_line(LEFT, y, LEFT + width, y), _text(LEFT - 6, y + 4, _plain(tick), "end")]
    parts.append(_text(LEFT + width / 2, HEIGHT - 12, panel.x.label, "middle"))
    parts.append(_text(LEFT - 6, TOP - 14, panel.y.label, "end"))
    for number, (name, points) in enumerate(panel.curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = " ".join(
            f"{LEFT + width * panel.x.place(x):.1f},{TOP + height * (1 - panel.y.place(y)):.1f}" for x, y in points
        )
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(LEFT + 8, TOP + 16 + 15 * number, name, colour=colour))
    return f'<g transform="translate({left:g} {top:g})">' + "".join(parts) + "</g>"


def _plain(tick: float) -> str:
    """Three digits, or all before the point; no exponent."""
    return f"{tick:,.0f}" if tick >= 100 else f"{tick:.3g}"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal", colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">'
        f"{escape(words)}</text>"
    )
